"""Answers of the verbs that change a server, or say what keeps a change away."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.agent.wire import Fate, LockStatus, OrderResult
from orchestrator.agent.wire_launches import AdoptReport, BootReport, LaunchesReport
from orchestrator.flows.plan import Plan
from orchestrator.results.hook_run import HookRun
from orchestrator.results.roll import Growth


@dataclass(frozen=True)
class Change:
    """A change of a server.

    Attributes:
        result: how it ended; null where only the plan was asked for.
        hooks: the commands around it that were run here, in their sequence.
        notice: what became of the notice of its end; null where none was to be sent.
        see: the commands that show pages about how it failed.
        clients: what the router before its only server counted from the plan to the end; null where there is none, or nobody knows.
    """

    host: str
    service: str
    plan: Plan
    result: OrderResult | None
    hooks: list[HookRun]
    notice: Fate | None
    see: list[str]
    clients: Growth | None = None


@dataclass(frozen=True)
class Watched:
    """How a change ended that was begun elsewhere or earlier.

    Attributes:
        hooks: the commands after it that were run here, as nobody had run them yet.
        notice: what became of the notice of its end, whoever sent it; null where none was to be sent.
        see: the commands that show pages about how it failed.
    """

    host: str
    service: str
    result: OrderResult
    hooks: list[HookRun]
    notice: Fate | None
    see: list[str]


@dataclass(frozen=True)
class Heard:
    """What the document of a verb that failed has beside the error: each of these that was known by then, and no other.

    Attributes:
        plan: the plan.
        result: how the change ended.
        hooks: the commands around it that were run here, in their sequence.
        notice: what became of the notice of its end.
        host: where several hosts were asked: which of them gave no answer.
        service: likewise the service; null for a host without one.
    """

    plan: Plan
    result: OrderResult
    hooks: list[HookRun]
    notice: Fate
    host: str
    service: str | None


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
