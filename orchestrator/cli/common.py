"""What the verbs share: where the inventory is, flags that are numbers, the words of their help."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cli.edge import Call
    from orchestrator.config import Inventory
    from orchestrator.flows.order import Confirm, Interruption
    from orchestrator.flows.plan import Plan
    from orchestrator.flows.target import Target

INVENTORY_VARIABLE = "ORCHESTRATOR_INVENTORY"
SHIPPED = "what comes with the program"
"""How a folder was chosen where there is no inventory and none is needed."""

SHARED_FLAGS = {
    "inventory": f"Inventory folder; else ${INVENTORY_VARIABLE}, else ./inventory here or above, else the lab's.",
    "json": "Print one JSON document on standard output; progress goes to standard error.",
}
TARGET_FLAGS = {
    "host": "Host, by its inventory name (as Fabric's -H); not needed when there is one.",
    "service": "Service, by its inventory name; not needed when the host has one.",
    **SHARED_FLAGS,
}
FLEET_FLAGS = {
    "host": "Hosts or groups by their inventory names, with commas, or all (as Fabric's -H); not needed when there is one.",
    "all": "All hosts of the inventory.",
    "forks": "How many are asked at the same time, where there are several.",
}
FLEET_TARGET_FLAGS = {
    **FLEET_FLAGS,
    "service": "Service, by its inventory name; not needed when the host has one. Of several hosts all services are meant.",
    **SHARED_FLAGS,
    "json": "Print JSON on standard output: one document, or of several hosts one a line as they answer. Progress goes to standard error.",
}
GRACE_FLAG = {"grace": "Seconds from the end of the drain until SIGKILL, instead of the service's own (policy: grace)."}
WAIT_FLAG = {
    "wait": "Seconds to wait for a change that is under way, instead of ending with exit code 5; a person's lock is never waited for."
}
CHANGE_FLAGS = {
    "plan": "Show what would be done and stop: nothing is touched.",
    "yes": "Do not ask.",
    "reason": "Why, for the journal and for whoever looks next.",
    **WAIT_FLAG,
    **TARGET_FLAGS,
}


def find_inventory(folder: str | None) -> tuple[Path, str]:
    """The inventory folder that is meant, and how it was chosen.

    Raises:
        UsageError: there is none.
    """
    variable = os.environ.get(INVENTORY_VARIABLE)
    if folder:
        return _named_inventory(folder, "--inventory", "--inventory FOLDER, a folder with a hosts.yml in it")
    if variable:
        return _named_inventory(variable, f"${INVENTORY_VARIABLE}", f"unset {INVENTORY_VARIABLE}, or --inventory FOLDER")
    here = Path.cwd()
    candidates = [above / "inventory" for above in (here, *here.parents)]
    for path in candidates:
        if (path / "hosts.yml").is_file():
            return path, "found here" if path.parent == here else "found above"
    lab = _lab_inventory()
    if lab is not None:
        return lab, "the lab's"
    raise UsageError(
        f"no inventory: {candidates[0]} does not exist, nor one further up, and no lab is running",
        next_step="fab init ADDRESS writes one; --inventory FOLDER; or fab lab.up to play",
    )


def inventory_to_write(folder: str | None) -> Path:
    """The inventory folder that is meant, which may not exist yet: as :func:`find_inventory`, else ``./inventory``. Never the lab's."""
    named = folder or os.environ.get(INVENTORY_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    here = Path.cwd()
    found = (above / "inventory" for above in (here, *here.parents) if (above / "inventory" / "hosts.yml").is_file())
    return next(found, here / "inventory")


def _named_inventory(text: str, named_by: str, next_step: str) -> tuple[Path, str]:
    path = Path(text).expanduser()
    if (path / "hosts.yml").is_file():
        return path, named_by
    problem = "it has no hosts.yml" if path.is_dir() else "there is no such folder"
    raise UsageError(f"{path} (from {named_by}) is not an inventory: {problem}", next_step=next_step)


def lab_directory() -> Path:
    """The lab's folder in the working directory or above; the working directory's, not yet made, when there is none."""
    from orchestrator.lab.layout import DEFAULT_DIRECTORY, Layout

    here = Path.cwd()
    found = (above / DEFAULT_DIRECTORY for above in (here, *here.parents) if Layout.of(above / DEFAULT_DIRECTORY).mark.exists())
    return next(found, here / DEFAULT_DIRECTORY)


def _lab_inventory() -> Path | None:
    folder = lab_directory() / "inventory"
    return folder if (folder / "hosts.yml").is_file() else None


def load(folder: str | None) -> Inventory:
    """Load the inventory that is meant.

    Raises:
        UsageError: there is none.
        ConfigError: it has mistakes.
    """
    from orchestrator.config import load_inventory

    path, chosen_by = find_inventory(folder)
    return dataclasses.replace(load_inventory(path), chosen_by=chosen_by)


def load_for_profiles(folder: str | None) -> Inventory:
    """The inventory that is meant; where there is none, the profiles that come with the program, and nothing else.

    Raises:
        UsageError: what was named is no inventory.
        ConfigError: it has mistakes.
    """
    from orchestrator.config import load_profiles
    from orchestrator.folders import shipped_profiles

    try:
        return load(folder)
    except UsageError:
        if folder or os.environ.get(INVENTORY_VARIABLE):
            raise
    return dataclasses.replace(load_profiles(shipped_profiles()), chosen_by=SHIPPED)


def choose(inventory: str | None, host: str | None, service: str | None) -> Target:
    """Load the inventory and find the service that is meant; see :func:`orchestrator.flows.target.choose_target`."""
    from orchestrator.flows.target import choose_target

    return choose_target(load(inventory), host, service)


def seconds(flag: str, text: str | None) -> float | None:
    """The value of a flag in seconds, None when it was not given.

    Raises:
        UsageError: it is not a number of seconds.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"--{flag} takes seconds, such as 3 or 0.5; {text!r} is not that")
    return value


def count(flag: str, text: str) -> int:
    """The value of a flag that counts something.

    Raises:
        UsageError: it is not a whole number.
    """
    if not text.isdecimal():
        raise UsageError(f"--{flag} takes a whole number; {text!r} is not that")
    return int(text)


def confirmation(call: Call, *, yes: bool) -> Confirm:
    """How a plan is confirmed: by ``--yes``, or by one question on a terminal. From then on the run is kept."""

    def confirm(plan: Plan) -> bool:
        confirmed = asked(call, f"{plan.verb} {plan.service} in {plan.place} now?", yes=yes)
        if confirmed and call.run is not None:
            call.run.begin()
        return confirmed

    return confirm


def asked(call: Call, question: str, *, yes: bool) -> bool:
    """Whether it is to be done: by ``--yes``, or by the answer of whoever sits at the terminal.

    Raises:
        UsageError: nobody sits there.
    """
    if not yes and not call.screen.interactive:
        raise UsageError("nobody can be asked here: nothing was touched", next_step="give --yes to do it, or --plan to look only")
    return yes or call.confirm(question)


def interruption(call: Call) -> Interruption:
    """What a Ctrl-C means while an order is at work: one question on a terminal; leave it running where nobody can be asked.

    A second Ctrl-C is an answer too: leave it. So is a signal that ends this process for good.
    """

    def ask(order: str) -> bool:
        if call.stopped_by is not None or not call.screen.interactive:
            return False
        return call.screen.ask(f"stop {order} safely, so that nothing is left half-done? No leaves it running")

    return ask


def positive(flag: str, text: str, least: int = 1) -> int:
    """A flag's whole number that is at least `least`.

    Raises:
        UsageError: it is not.
    """
    value = count(flag, text)
    if value < least:
        raise UsageError(f"--{flag} takes {least} or more; {text!r} is not that")
    return value


def hosts_text(host: str | None, *, all: bool) -> str | None:  # noqa: A002  # the flag's name
    """What ``--host`` and ``--all`` say together, in the words of ``--host``.

    Raises:
        UsageError: they say different things.
    """
    from orchestrator.config.inventory import ALL_HOSTS

    if all and host not in (None, ALL_HOSTS):
        raise UsageError(f"--all and --host {host} name different hosts", next_step="leave out one of the two")
    return ALL_HOSTS if all else host


def forks_of(text: str | None) -> int:
    """How many are asked at the same time.

    Raises:
        UsageError: ``--forks`` is not a whole number from 1 on.
    """
    from orchestrator.flows.side_by_side import default_bound

    return default_bound() if text is None else positive("forks", text)
