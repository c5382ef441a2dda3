"""The answer of init."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.agent.wire_discovery import DiscoverReport
from orchestrator.flows.plan import Plan
from orchestrator.flows.trust import Offer


@dataclass(frozen=True)
class FileAdded:
    """A file of the inventory: `name` below its folder, whether it is `new`, and the `text` that is added to it."""

    name: str
    new: bool
    text: str


@dataclass(frozen=True)
class PlaceSeen:
    """A place that could run the service.

    Attributes:
        place: what ``--container`` calls it; ``none`` is the machine itself.
        problem: why it said nothing.
        report: what is there.
    """

    place: str
    problem: str | None
    report: DiscoverReport | None


@dataclass(frozen=True)
class Checks:
    """The exit codes of the diagnosis and of the plan of a relaunch at the end; null of a plan where there is nothing to plan."""

    doctor: int
    plan: int | None


@dataclass(frozen=True)
class NewInventory:
    """An inventory of one's own machine.

    Attributes:
        inventory: its folder.
        service: null where none would be in it.
        files: what was added, or would be.
        paste: the entry for hosts.yml, where that can't be written without touching somebody's lines.
        unfinished: a service file that is no valid one yet, and so is not written.
        offers: the host keys, as they were accepted.
        places: where was looked.
        remarks: what to look at in the files.
        written: whether the files were written by this call.
        checks: null where nothing was written.
        plan: of a relaunch (or launch, where nothing serves) at the end; null where none was made.
    """

    inventory: str
    host: str
    service: str | None
    files: list[FileAdded]
    paste: str | None
    unfinished: str | None
    offers: list[Offer]
    places: list[PlaceSeen]
    remarks: list[str]
    written: bool = False
    checks: Checks | None = None
    plan: Plan | None = None
