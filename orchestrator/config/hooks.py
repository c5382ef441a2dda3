"""What is done around each order of a service: commands on the operator's machine, and a notice to a webhook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from orchestrator.config import fields
from orchestrator.config.strict import STRICT

HOOK_SECONDS = 30.0

_ARGUMENT_LIST = "expected an argument list such as [./drain, --out], or a mapping with one as its command: no shell is used"


class _Model(BaseModel):
    model_config = STRICT


class HookModel(_Model):
    """A command: its program and arguments, as they are. An argument list alone stands for a mapping with it as `command`.

    A program that is named by a path (``./drain``, ``~/bin/drain``) is found from the inventory's folder.
    """

    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """The program and its arguments; no shell is used."""
    timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = HOOK_SECONDS
    """Seconds after which it is killed, with all of its process group."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_list(cls, data: Any) -> Any:
        if isinstance(data, list):
            return {"command": data}
        if not isinstance(data, dict):
            raise ValueError(_ARGUMENT_LIST)
        return data

    @field_validator("command")
    @classmethod
    def _find_program(cls, value: list[str], info: ValidationInfo) -> list[str]:
        program = value[0]
        return [fields.local_path(program, info), *value[1:]] if "/" in program else value


class BeforeHookModel(HookModel):
    """A command before anything is changed."""

    on_failure: Literal["refuse", "warn"] = "refuse"
    """Whether the order is refused when it fails, or that is only told."""


class HooksModel(_Model):
    """Commands around each order, in their sequence; each gets facts as JSON on its standard input."""

    before: list[BeforeHookModel] = []
    """Run once the change was agreed to, before anything is touched."""
    after: list[HookModel] = []
    """Run when the change has ended, however it ended; their failure changes nothing."""


class WebhookModel(_Model):
    """Where the end of each order is told, the way Slack takes it: ``{"text": ...}``."""

    url: fields.SecretReference
    """Where the URL is found: whoever has it may post, so it is a secret."""
    when: Annotated[list[Literal["failure", "success"]], Field(min_length=1)] = ["failure", "success"]
    """Which endings are told. A failure is each whose exit code is not 0."""
    sender: Literal["auto", "operator"] = "auto"
    """``auto``: the box where it reaches the webhook, else the operator's machine. ``operator``: the URL never leaves that machine."""


@dataclass(frozen=True)
class Hooks:
    """The commands around a service's orders: its host's first, then its own."""

    before: Sequence[BeforeHookModel] = ()
    after: Sequence[HookModel] = ()

    @classmethod
    def of(cls, *parts: HooksModel) -> Hooks:
        """Those of a host and a service together; a command that both name is meant once."""
        return cls(_once(hook for part in parts for hook in part.before), _once(hook for part in parts for hook in part.after))


AnyHook = TypeVar("AnyHook", bound=HookModel)


def _once(hooks: Iterable[AnyHook]) -> tuple[AnyHook, ...]:
    return tuple({tuple(hook.command): hook for hook in hooks}.values())
