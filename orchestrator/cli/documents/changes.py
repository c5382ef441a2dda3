"""Answers of the verbs that change a server, or say what keeps a change away."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.agent.wire import LockStatus, OrderResult
from orchestrator.agent.wire_launches import AdoptReport, BootReport, LaunchesReport
from orchestrator.flows.plan import Plan


@dataclass(frozen=True)
class Change:
    """A change of a server.

    Attributes:
        result: how it ended; null where only the plan was asked for.
        see: the commands that show pages about how it failed.
    """

    host: str
    service: str
    plan: Plan
    result: OrderResult | None
    see: list[str]


@dataclass(frozen=True)
class Watched:
    """How a change ended that was begun elsewhere or earlier; `see` are the commands that show pages about how it failed."""

    host: str
    service: str
    result: OrderResult
    see: list[str]


@dataclass(frozen=True)
class Launches:
    """The launches that the box remembers: what ``rollback --list`` shows."""

    host: str
    service: str
    report: LaunchesReport


@dataclass(frozen=True)
class Adopted:
    """A server that somebody started by hand, as a service.

    Attributes:
        report: what was read of the server.
        path: the service file.
        text: what it holds, or would hold.
        remarks: what to look at in it.
        rollback: why the server could not be brought back; null where that is promised.
        written: whether the file was written by this call.
        recorded: the launch that the box keeps of it, by which it is brought back; null where it keeps none.
        answers_kept: whether the box keeps its answers too, which later servers are held against.
    """

    host: str
    service: str
    report: AdoptReport
    path: str
    text: str
    remarks: list[str]
    rollback: str | None
    written: bool = False
    recorded: str | None = None
    answers_kept: bool = False


@dataclass(frozen=True)
class Boot:
    """What starts the server again after a crash or a reboot."""

    host: str
    service: str
    report: BootReport


@dataclass(frozen=True)
class Lock:
    """Who keeps changes of a service away."""

    host: str
    service: str
    lock: LockStatus
