"""What a roll is about to do: the router looked at, and each replica's relaunch checked, while nothing changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent.router import not_serving
from orchestrator.agent.wire_router import RouterView, plain_url
from orchestrator.errors import RefusedError, UsageError
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Options
from orchestrator.flows.plan import Plan
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.quietly import Quietly
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.roll_lock import RouterLock
from orchestrator.flows.router import Asked, reached_by_box
from orchestrator.flows.target import Connect, Target, connect
from orchestrator.results.roll import Standing, counted
from orchestrator.results.roll_records import By, Counted, RolledReplica
from orchestrator.results.sweep_records import Allowed

if TYPE_CHECKING:
    from orchestrator.config import Backend, Inventory, Router

_LEAST = 2
_NO_COUNTERS = "the router's counters can't be read, so nobody can say whether the roll was clean, nor see requests reach a replica again"


@dataclass(frozen=True)
class Fleet:
    """The replicas behind a router, and how they and it are reached."""

    inventory: Inventory
    router: Router
    asked: Asked
    connect: Connect = connect
    open: Open = open_agent

    def target(self, service: str) -> Target:
        """The service of a replica, on its host.

        Raises:
            UsageError: the inventory has none of that name any more.
        """
        found = self.inventory.service(service)
        return Target(self.inventory, self.inventory.host(found.host), found)

    def worker_key(self, service: str, observer: Observer) -> str | None:
        """The key that the replica's server asks for.

        Raises:
            ConfigError: it can't be had here.
        """
        from orchestrator.config import resolve_secrets

        values = resolve_secrets(self.inventory.service(service))
        observer.hide(list(values.values()))
        return values.get("api-key")

    @property
    def workers(self) -> list[str]:
        """The urls of all replicas, those included that are not rolled."""
        return [replica.worker for replica in self.router.replicas]

    def command(self, *more: str) -> str:
        """A command line about this fleet, for a next step."""
        return " ".join(["fab", "roll", f"--router {self.router.name}", *more])


@dataclass(frozen=True)
class ReplicaPlan:
    """One replica as it would be rolled. `already`: it serves as wanted, and is passed over."""

    replica: RolledReplica
    place: str
    plan: Plan | None = None
    already: bool = False
    refusals: Sequence[str] = ()
    next_step: str | None = None


@dataclass(frozen=True)
class RollPlan:
    """Shown before the one question.

    Attributes:
        reached: from where the router is asked.
        workers: the urls of all its replicas.
        refusals: why it will not be done; empty when nothing speaks against it.
        standing: where a roll that is taken up again stands; None for a new one.
    """

    router: str
    url: str
    reached: str
    backend: str
    replicas: Sequence[ReplicaPlan]
    view: RouterView
    drain: float
    workers: Sequence[str] = ()
    remarks: Sequence[str] = ()
    refusals: Sequence[str] = ()
    next_step: str | None = None
    standing: Standing | None = None
    reason: str = ""

    @property
    def before(self) -> Counted | None:
        return counted(self.view.counters)

    @property
    def to_change(self) -> list[ReplicaPlan]:
        """The replicas that will be relaunched."""
        return [item for item in self.replicas if not item.already]


def options_for(allowed: Allowed, reason: str = "", *, plan_only: bool = False) -> Options:
    """The options of one replica's relaunch. Nothing is timed: its clients' load would be in the timing."""
    return Options(
        plan_only=plan_only,
        accept_drift=allowed.accept_drift,
        force=allowed.force,
        grace=allowed.grace,
        measure=False,
        reason=reason or allowed.reason,
        wait=allowed.wait,
        sequential=allowed.sequential,
        rolled=True,
    )


def chosen_replicas(router: Router, services: Sequence[str] | None) -> list[RolledReplica]:
    """The replicas that are rolled: the named ones, in the router's order, or all. Their hosts are filled in by the plan.

    Raises:
        UsageError: one that is named is not behind this router.
    """
    known = [replica.service for replica in router.replicas]
    unknown = [name for name in services or () if name not in known]
    if unknown:
        raise UsageError(f"service {unknown[0]} is not behind router {router.name}", evidence=[f"replicas: {', '.join(known)}"])
    return [RolledReplica(item.service, "", item.worker) for item in router.replicas if services is None or item.service in services]


def plan_roll(
    fleet: Fleet,
    backend: str,
    profiles: Sequence[Backend],
    replicas: Sequence[RolledReplica],
    allowed: Allowed,
    observer: Observer,
    standing: Standing | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> RollPlan:
    """Look at the router and check each replica.

    Raises:
        RouterError: the router can't be asked.
        UnreachableError, LockedError: a replica's place can't be reached, or somebody else changes it, or rolls behind that router.
    """
    RouterLock(fleet).refuse_others("" if standing is None else standing.begun.token)
    note(f"asking router {fleet.router.name} for its workers")
    view = fleet.asked.look()
    planned = []
    for number, replica in enumerate(replicas, start=1):
        note(f"{number}/{len(replicas)}: checking {backend} for {replica.service} while nothing changes")
        planned.append(_plan_replica(fleet, replica, profiles, allowed, observer))
    refusals, next_step = _refusals(fleet, view, planned, standing)
    return RollPlan(
        router=fleet.router.name,
        url=fleet.router.url,
        reached=_reached(fleet),
        backend=backend,
        replicas=planned,
        view=view,
        drain=fleet.router.drain,
        workers=fleet.workers,
        remarks=_remarks(fleet, view, planned),
        refusals=refusals,
        next_step=next_step,
        standing=standing,
        reason=allowed.reason,
    )


def _plan_replica(fleet: Fleet, replica: RolledReplica, profiles: Sequence[Backend], allowed: Allowed, observer: Observer) -> ReplicaPlan:
    target = fleet.target(replica.service)
    quiet = Quietly(observer)
    known = dataclasses.replace(replica, host=target.host.name, by=who_steps(fleet, target, replica.worker))
    try:
        relaunch(target, profiles, options_for(allowed, plan_only=True), quiet, lambda plan: False, fleet.connect, fleet.open)
        refusals, step = _own_refusals(quiet.seen), None
    except RefusedError as error:
        refusals, step = list(error.evidence) or [error.message], error.next_step
    plan = quiet.seen
    if plan is not None and plan.changes_nothing and not allowed.force and plan.server is not None:
        return ReplicaPlan(known, target.place, plan, already=True)
    return ReplicaPlan(known, target.place, plan, refusals=refusals, next_step=step)


def _own_refusals(plan: Plan | None) -> list[str]:
    """What speaks against a roll and not against a relaunch."""
    if plan is None or plan.server is None:
        return ["nothing serves there: it is launched, not rolled"]
    if plan.launch is None:
        return ["an order was cut off there half-way, which comes to its end first"]
    return []


def who_steps(fleet: Fleet, target: Target, worker: str) -> str:
    """Who takes the replica out of the router and has it in: its supervisor where its place reaches that router, else this program."""
    return By.SUPERVISOR if reached_by_box(fleet.router, fleet.asked, target, worker, fleet.connect) else By.OPERATOR


def _refusals(fleet: Fleet, view: RouterView, planned: Sequence[ReplicaPlan], standing: Standing | None) -> tuple[list[str], str | None]:
    if not planned:
        return [], None
    if len(fleet.workers) < _LEAST:
        return ["behind the router is one replica: nothing would serve while it is out"], "fab relaunch, which says how long it is dark"
    out = standing.turn.service if standing is not None and standing.turn is not None else None
    missing = not_serving(view, [replica.worker for replica in fleet.router.replicas if replica.service != out])
    if missing:
        return missing, fleet.command("--repair", "--plan")
    if view.healthy < len(fleet.workers) - (out is not None):
        few = f"the router counts {view.healthy} healthy workers, and has {len(fleet.workers)} replicas"
        return [few], fleet.command("--repair", "--plan")
    refused = [item for item in planned if item.refusals]
    step = next((item.next_step for item in refused if item.next_step), None)
    by_reason: dict[str, list[str]] = {}
    for item in refused:
        for reason in item.refusals:
            by_reason.setdefault(reason, []).append(item.replica.service)
    return [f"{', '.join(services)}: {reason}" for reason, services in by_reason.items()], step


def _remarks(fleet: Fleet, view: RouterView, planned: Sequence[ReplicaPlan]) -> list[str]:
    remarks = []
    if view.counters is None:
        remarks.append(view.remark or _NO_COUNTERS)
    if any(item.replica.by == By.OPERATOR and not item.already for item in planned):
        remarks.append(
            "a replica that is taken out from here is out until this program has it in again: if it is killed meanwhile, "
            f"{fleet.command('--resume')} goes on"
        )
    known = {plain_url(url) for url in fleet.workers}
    strangers = [worker.url for worker in view.workers if plain_url(worker.url) not in known]
    if strangers:
        remarks.append(f"the router has workers that the inventory does not know and that are left alone: {', '.join(strangers)}")
    return remarks


def _reached(fleet: Fleet) -> str:
    router = fleet.router
    if router.host is None:
        return "from this machine"
    label = fleet.inventory.host(router.host).place(container=router.place == "container").label
    return f"by the agent in {label}"
