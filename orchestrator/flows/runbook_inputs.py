"""Whether what a runbook's inputs were set to exists: each is held against the inventory as the flag that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.config.mistakes import did_you_mean
from orchestrator.config.playbook import InputReference, Playbook, Step
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.config import Inventory

_LOOK_UP: Mapping[str, Callable[[Inventory, str], Any]] = {
    "backend": lambda inventory, text: inventory.backends_named(text),
    "backends": lambda inventory, text: [inventory.backends_named(name.strip()) for name in text.split(",")],
    "profile": lambda inventory, text: inventory.tuning(text),
    "router": lambda inventory, text: inventory.router(text),
    "service": lambda inventory, text: inventory.service(text),
}
"""What raises where a flag's value names nothing in the inventory."""
_WRITES_SERVICE = "adopt"
"""The verb whose service need not exist yet."""


def check_inputs(playbook: Playbook, inputs: Mapping[str, str], inventory: Inventory) -> None:
    """Look up in the inventory what the inputs name, by the flags of the steps that they are for.

    Raises:
        UsageError: there is nothing of that name; it tells the nearest, and which there are.
    """
    new = {name for step in playbook.steps if step.verb == _WRITES_SERVICE for flag, name in _filled(step) if flag == "service"}
    for step in playbook.steps:
        for flag, name in _filled(step):
            look_up = _LOOK_UP.get(flag)
            if look_up is None or name in new:
                continue
            try:
                look_up(inventory, inputs[name])
            except UsageError as error:
                raise UsageError(f"--set {name}: {error.message}", evidence=error.evidence, next_step=error.next_step) from None


def unknown_input(playbook: Playbook, name: str) -> UsageError:
    """The playbook has no input of that name; the nearest is told."""
    near = did_you_mean(name, list(playbook.inputs)).replace("Allowed: nothing", "inputs: none").replace("Allowed", "inputs")
    return UsageError(f"runbook {playbook.name} has no input {name!r}", evidence=[near], next_step=f"fab runbook.show {playbook.name}")


def _filled(step: Step) -> Iterator[tuple[str, str]]:
    """Each flag or argument of a step that an input fills, with the input's name."""
    return ((flag, value.name) for flag, value in step.arguments.items() if isinstance(value, InputReference))
