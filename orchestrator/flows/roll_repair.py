"""Repair: what the router has against what the inventory says, and having in again what is missing and serves.

A router's list is in its memory alone, so it is short after a restart, and after a roll whose operator's machine was lost for good.
Workers that the inventory does not know are told and never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.agent.wire_router import RollLock, RouterView, Worker, plain_url
from orchestrator.errors import OrchestratorError
from orchestrator.flows import look
from orchestrator.flows.observer import Observer
from orchestrator.flows.roll_lock import RouterLock
from orchestrator.flows.roll_plan import Fleet
from orchestrator.flows.roll_router import SERVING


class Mend:
    """What a repair does with a replica."""

    NOTHING = "nothing"
    """It is in, and gets requests."""
    ADD = "add"
    """It serves, and the router does not know it."""
    ADD_AGAIN = "add again"
    """The router knows it and lacks its key."""
    LEAVE = "leave"
    """Something else comes first, or it mends itself; `advice` says what."""


@dataclass(frozen=True)
class Finding:
    """A replica as the router and its own place tell it. `health` is None where that can't be asked; `mend` is one of :class:`Mend`."""

    service: str
    host: str
    worker: str
    state: str
    health: str | None
    mend: str
    advice: str = ""


@dataclass(frozen=True)
class RepairPlan:
    """Shown before the question. `strangers` are workers that the inventory does not know; `rolling` is the roll whose lock stands."""

    router: str
    url: str
    findings: Sequence[Finding]
    strangers: Sequence[str]
    rolling: RollLock | None = None

    @property
    def to_mend(self) -> list[Finding]:
        return [item for item in self.findings if item.mend in (Mend.ADD, Mend.ADD_AGAIN)]

    @property
    def left(self) -> list[Finding]:
        """What is not as it should be and is not mended here."""
        return [item for item in self.findings if item.mend == Mend.LEAVE]


def plan_repair(fleet: Fleet, note: Callable[[str], None] = lambda text: None) -> RepairPlan:
    """Compare; nothing is changed.

    Raises:
        RouterError: the router can't be asked.
    """
    view = fleet.asked.look()
    findings = []
    for replica in fleet.router.replicas:
        note(f"looking at {replica.service}")
        findings.append(_finding(fleet, replica.service, replica.worker, view))
    known = {plain_url(url) for url in fleet.workers}
    strangers = [worker.url for worker in view.workers if plain_url(worker.url) not in known]
    return RepairPlan(fleet.router.name, fleet.router.url, findings, strangers, _rolling(fleet, note))


def _rolling(fleet: Fleet, note: Callable[[str], None]) -> RollLock | None:
    try:
        return RouterLock(fleet).standing()
    except OrchestratorError as error:
        note(f"whether somebody rolls behind it can't be asked: {error.message}")
        return None


def _finding(fleet: Fleet, service: str, url: str, view: RouterView) -> Finding:
    target, worker = fleet.target(service), view.worker(url)
    state = _state(worker)
    health: str | None = None
    order = None
    why = ""
    try:
        with fleet.connect(target) as agent:
            found = look.survey(agent, target)
        health, order = found.health, found.order
    except OrchestratorError as error:
        why = error.message
    if worker is not None and worker.serves and health == SERVING:
        return Finding(service, target.host.name, url, state, health, Mend.NOTHING)
    mend, advice = Mend.LEAVE, why
    if order is not None and (order.live or order.half_done):
        advice = target.command("attach" if order.live else "resume")
    elif health == SERVING and worker is None:
        mend, advice = Mend.ADD, ""
    elif health == SERVING and worker is not None and worker.healthy and not worker.model_known:
        mend, advice = Mend.ADD_AGAIN, "the router lacks its key"
    elif health == SERVING:
        advice = "it serves; the router's next health check finds that out (--health-check-interval-secs, 60 s by default)"
    elif health is not None:
        advice = target.command("doctor") if health not in ("down",) else target.command("launch")
    return Finding(service, target.host.name, url, state, health, mend, advice)


def _state(worker: Worker | None) -> str:
    if worker is None:
        return "not in the list"
    if worker.serves:
        return "in"
    if worker.status not in (None, "ready"):
        return str(worker.status)
    return "in, its model unknown" if worker.healthy else "in, not healthy"


def repair(
    fleet: Fleet,
    plan: RepairPlan,
    observer: Observer,
    done: Callable[[Finding], None] = lambda finding: None,
    *,
    give_up: bool = False,
) -> None:
    """Have in what the plan says; `done` hears of each as it is in. `give_up` ends the lock of the roll that stands, whoever's it is.

    Raises:
        LockedError: a roll of somebody else's stands, or one that is at work, and it is not given up.
        RouterError: the router does not take one, or does not answer.
    """
    if plan.rolling is not None and not give_up:
        RouterLock(fleet).refuse_others()
    for finding in plan.to_mend:
        observer.note(f"having {finding.service} in router {plan.router}")
        if finding.mend == Mend.ADD_AGAIN:
            fleet.asked.remove(finding.worker)
        fleet.asked.add(finding.worker, fleet.worker_key(finding.service, observer), fleet.router.join)
        done(finding)
    if plan.rolling is not None and give_up:
        RouterLock(fleet).release(plan.rolling.token)
