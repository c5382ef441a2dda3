"""Answers of roll: its plan, how it has ended, and a router's list that was mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.agent.wire import Difference
from orchestrator.agent.wire_router import Worker
from orchestrator.flows.roll_repair import RepairPlan
from orchestrator.results.roll import Growth


@dataclass(frozen=True)
class PlannedReplica:
    """One replica as it would be rolled.

    Attributes:
        worker: the url by which the router calls its server.
        by: who takes it out of the router and has it in again: ``supervisor`` (on its box) or ``operator`` (this program).
        already: it serves as wanted and would be passed over.
        refusals: what speaks against it; empty where nothing does.
        staged: the new server would start beside the old one.
        differences: what its new server would have that the one that serves has not, or has otherwise.
    """

    service: str
    host: str
    worker: str
    by: str
    place: str
    already: bool
    refusals: Sequence[str]
    staged: bool
    differences: Sequence[Difference]


@dataclass(frozen=True)
class RollPlanData:
    """What would be rolled, in its order.

    Attributes:
        reached: from where the router is asked.
        healthy: of its workers, by its own count.
        drain: seconds for which a replica's last requests are waited for.
        remarks: what to know before the question is answered.
    """

    router: str
    url: str
    reached: str
    backend: str
    healthy: int
    workers: Sequence[Worker]
    replicas: Sequence[PlannedReplica]
    drain: float
    remarks: Sequence[str]


@dataclass(frozen=True)
class RollPlanned:
    """A roll that was only planned."""

    plan: RollPlanData


@dataclass(frozen=True)
class ReplicaEnd:
    """How a roll has left one replica.

    Attributes:
        worker: the url by which the router calls its server.
        by: who takes it out of the router and has it in again: ``supervisor`` (on its box) or ``operator`` (this program).
        state: how its order ended (DONE, RESTORED, ...); null where there was none.
        summary: the same as a sentence.
        category: the class of its launch's failure; null where it did not fail.
        dark_seconds: for which it did not serve; null when unknown.
        lost_requests: that its server still had when it was stopped; null when unknown.
        run: the run folder of its relaunch.
        requests_since: that have reached it by the router since it was in again; 0 where none came, null when unknown.
        already: it served as wanted and was passed over.
    """

    service: str
    host: str
    worker: str
    by: str
    state: str | None
    summary: str | None
    category: str | None
    dark_seconds: float | None
    lost_requests: int | None
    run: str | None
    requests_since: int | None
    already: bool


@dataclass(frozen=True)
class Rolled:
    """How a roll has ended.

    Attributes:
        stopped_at: the replica that has ended it; null where all are through.
        said: how it ended, as a sentence.
        clients: what the router counted meanwhile; null where that is not known.
        clean: whether no client had anything of it; null where that is not known.
        router_restarted: it was restarted meanwhile, so that its counters began anew.
    """

    router: str
    backend: str
    replicas: Sequence[ReplicaEnd]
    stopped_at: str | None
    said: str
    clients: Growth | None
    clean: bool | None
    router_restarted: bool


@dataclass(frozen=True)
class Repaired:
    """A router's list against the inventory's.

    Attributes:
        repair: what was found, and what it takes.
        mended: the services that were had in again; empty also where it was only planned.
    """

    repair: RepairPlan
    mended: Sequence[str]
