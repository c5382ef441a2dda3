"""What a playbook's YAML may hold: a title, when to use it, inputs, and steps with their reasons.

There is no templating: a value of an argument is text, a number, true or false, or as a whole ``{input: NAME}`` (what was set) or
``{run_of: STEP}`` (the run folder that an earlier step kept). What may follow from what is checked in
:mod:`orchestrator.config.playbook_checks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator

from orchestrator.config.fields import Name, OneLine
from orchestrator.config.models import StrictModel


@dataclass(frozen=True)
class InputReference:
    """``{input: NAME}``: the value that an input was given, or its default."""

    name: str


@dataclass(frozen=True)
class RunReference:
    """``{run_of: STEP}``: the path of the run folder that an earlier step kept."""

    step: str


Value = bool | int | float | str | InputReference | RunReference

_FORMS = "expected text, a number, true, false, {input: NAME} or {run_of: STEP}"


def _check_value(value: Any) -> Value:
    """Text, a number, true, false, ``{input: NAME}`` or ``{run_of: STEP}``."""
    if isinstance(value, dict) and len(value) == 1:
        (key, name), *_ = value.items()
        if isinstance(name, str) and key in ("input", "run_of"):
            return InputReference(name) if key == "input" else RunReference(name)
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(_FORMS)
    if isinstance(value, str) and value.startswith("-"):
        raise ValueError(f"{value!r} begins with '-', which would be taken for a flag")
    return value


def _check_wanted(value: Any) -> tuple[str | InputReference, ...]:
    """Text, ``{input: NAME}``, or a list of those."""
    wanted = value if isinstance(value, list) else [value]
    checked = [_check_value(item) for item in wanted]
    texts = [item for item in checked if isinstance(item, str | InputReference)]
    if not texts or len(texts) != len(checked):
        raise ValueError("expected text, {input: NAME}, or a list of those")
    return tuple(texts)


def _check_default(value: Any) -> str:
    """Text or a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected text or a number")
    return str(value)


def _check_prose(value: str) -> str:
    """A paragraph, however its lines are broken."""
    text = " ".join(value.split())
    if not text:
        raise ValueError("is empty")
    return text


def _written(value: Value) -> Any:
    """As the file has it."""
    if isinstance(value, InputReference):
        return {"input": value.name}
    return {"run_of": value.step} if isinstance(value, RunReference) else value


def _written_wanted(wanted: tuple[str | InputReference, ...] | None) -> list[Any] | None:
    return None if wanted is None else [_written(item) for item in wanted]


ArgumentValue = Annotated[Value, PlainValidator(_check_value), PlainSerializer(_written)]
Wanted = Annotated[tuple[str | InputReference, ...], PlainValidator(_check_wanted), PlainSerializer(_written_wanted)]
Default = Annotated[str, PlainValidator(_check_default)]
Prose = Annotated[str, AfterValidator(_check_prose)]


class Input(StrictModel):
    """Something that differs from one use to the next. Without a `default` it has to be set."""

    about: Prose
    """What it means, for whoever has to set it."""
    default: Default | None = None
    """What it is when nobody sets it; left out, it has to be set."""


class Condition(StrictModel):
    """What a guard asks for: one of `fact`, `finding` (of a diagnosis), `step` (its verdict) and `input`, and what it is, or is not."""

    fact: str | None = None
    """Something that is true of the service, read when the step is about to be taken."""
    finding: str | None = None
    """What the diagnosis says under a name."""
    step: str | None = None
    """An earlier step's verdict."""
    input: str | None = None
    """An input's value."""
    is_: Wanted | None = Field(default=None, alias="is")
    """One of these: text, ``{input: NAME}`` or a list of those."""
    is_not: Wanted | None = None
    """None of these."""

    @property
    def subject(self) -> tuple[str, str]:
        """The kind of what is asked for, and its name."""
        kinds = {"fact": self.fact, "finding": self.finding, "step": self.step, "input": self.input}
        return next((kind, name) for kind, name in kinds.items() if name is not None)

    @property
    def wanted(self) -> tuple[str | InputReference, ...]:
        return self.is_ if self.is_ is not None else self.is_not or ()


class Stop(Condition):
    """A condition under which a runbook ends before a step. `ends` ``done``: there is nothing to do; ``refused``: it must not go on."""

    because: Prose
    """What is said then."""
    ends: Literal["done", "refused"] = "refused"
    """``done``: there is nothing to do; ``refused``: it must not go on."""


class HandCommand(StrictModel):
    """One command of a manual step, and where it is typed: on the host, where SGLang runs (`place`), or at the operator's machine."""

    at: Literal["host", "place", "here"]
    """Where it is typed: on the host, where SGLang runs (`place`), or at the operator's machine (`here`)."""
    run: OneLine
    """One line of shell."""


class Step(StrictModel):
    """One step: a `verb` of ours, a `check`, or something `manual` that a person does.

    Attributes:
        arguments: of the verb, by flag without its dashes, or of the check.
        by_hand: the commands of a manual step; those of verbs and checks are known.
        only_if: all must hold, else the step is skipped.
        stop_if: one that holds ends the runbook before the step.
        go_on_after: bad verdicts of this step that do not end the runbook.
    """

    id: Name
    """By what other steps, ``--from`` and ``--done`` mean it."""
    verb: str | None = None
    """A verb of the program, by its whole name."""
    check: str | None = None
    """A check."""
    manual: Prose | None = None
    """What a person does."""
    arguments: dict[str, ArgumentValue] = Field(default_factory=dict)
    by_hand: list[HandCommand] = Field(default_factory=list)
    only_if: list[Condition] = Field(default_factory=list)
    stop_if: list[Stop] = Field(default_factory=list)
    go_on_after: list[str] = Field(default_factory=list)
    why: Prose
    """Why the step is there."""
    look_at: Prose
    """What to look at in its answer."""
    when_it_fails: Prose
    """What to do when it fails."""

    @property
    def kind(self) -> str:
        """``verb``, ``check`` or ``manual``."""
        return "verb" if self.verb is not None else "check" if self.check is not None else "manual"


class Playbook(StrictModel):
    """Ordered steps with their reasons: run by the program, or rendered for a person."""

    name: Name
    """The file's name without .yml."""
    title: OneLine
    """What it does, in one line."""
    when: Prose
    """When it is the right one."""
    inputs: dict[Name, Input] = Field(default_factory=dict)
    """What differs from one use to the next."""
    steps: Annotated[list[Step], Field(min_length=1)]
    """What is done, in order."""

    def step(self, step_id: str) -> Step:
        """The step of that id, which exists."""
        return next(step for step in self.steps if step.id == step_id)
