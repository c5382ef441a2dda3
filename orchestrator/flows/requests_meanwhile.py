"""What becomes of requests while one server is switched: held by a router whose only worker it is, or failing. Decided before the question,
told after the end.

Behind one worker nothing is taken out of the router that only this program could have in again: if it died, nobody would be served. So
the supervisor does it, or the worker stays in the list, which costs more of the router's settings (:mod:`retry_cover`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire_router import RouterSeat, RouterSettings, RouterView
from orchestrator.errors import OrchestratorError
from orchestrator.flows import retry_cover
from orchestrator.flows.plan import Failing, Held
from orchestrator.flows.retry_cover import Dark, Kind, Way
from orchestrator.flows.router import ReachedRouter, reach, reached_by_box
from orchestrator.results.roll import Growth, counted, growth

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.config import Router
    from orchestrator.flows.order import Options
    from orchestrator.flows.target import Connect, Target

    Reach = Callable[[Target, Router], ReachedRouter]

AROUND_SECONDS = 8.0
"""Without a worker beyond the dark time, where no switch has told yet: its last requests end, three looks at that 0.3 s apart, its
successor's answers are compared, and the router takes 1.1 s to have it in (measured: 6.6 s in all with SGLang 0.5.23 on two busy cores)."""


@dataclass(frozen=True)
class Behind:
    """A router whose only worker is the server that is to be switched, as it was looked at.

    `by_box`: the place of the server reaches it. `trouble`: why it could not be asked.
    """

    router: Router
    asked: ReachedRouter
    view: RouterView | None = None
    settings: RouterSettings | None = None
    by_box: bool = False
    trouble: str = ""

    @property
    def worker(self) -> str:
        return self.router.replicas[0].worker

    @property
    def kind(self) -> str:
        """smg tells a state of each worker, and 0.3.2 none."""
        found = None if self.view is None else self.view.worker(self.worker)
        return Kind.SMG if found is not None and found.status is not None else Kind.SGLANG_ROUTER

    @property
    def seat(self) -> RouterSeat:
        """The server's place behind it, for the supervisor that takes it out and has it in."""
        return RouterSeat(self.asked.address, self.worker, [], self.router.drain, self.router.join)


def look_behind(target: Target, options: Options, connect: Connect, reached: Reach | None = None) -> Behind | None:
    """The router before a service that has no other replica; None where there is none, or a roll takes care of it."""
    router = target.inventory.router_of(target.service.name)
    if options.rolled or router is None or len(router.replicas) > 1:
        return None
    asked = (reached or _reach)(target, router)
    try:
        view = asked.look()
        settings = asked.settings()
    except OrchestratorError as error:
        return Behind(router, asked, settings=router.declared_settings, trouble=error.message)
    by_box = view.worker(router.replicas[0].worker) is not None and reached_by_box(
        router, asked, target, router.replicas[0].worker, connect
    )
    return Behind(router, asked, view, settings, by_box)


def _reach(target: Target, router: Router) -> ReachedRouter:
    return reach(target.inventory, router)


def held(behind: Behind, staging: wire.StagingPlan | None, policy: wire.Policy, request_rate: float | None = None) -> Held:
    """What the router will do with requests meanwhile, and whether the server is taken out of its list for it."""
    made = Held(behind.router.name, behind.router.url, behind.kind, Way.KEPT, settings=behind.settings)
    if behind.view is None:
        return dataclasses.replace(made, why=f"the router can't be asked: {behind.trouble}")
    if behind.view.worker(behind.worker) is None:
        return dataclasses.replace(made, why=f"the router has no worker {behind.worker}, so none of its requests come here")
    estimate = None if staging is None else staging.estimate
    if estimate is None:
        return dataclasses.replace(made, why="nobody knows how long it will be dark, so how long requests would be held")
    around = AROUND_SECONDS if staging is None or staging.around is None else staging.around
    dark = Dark(estimate.longest, around, estimate.longest + policy.drain)
    if behind.settings is None:
        way = Way.REMOVED if behind.kind == Kind.SGLANG_ROUTER and behind.by_box else Way.KEPT
        flags = retry_cover.suggested(RouterSettings(), behind.kind, way, dark)
        return dataclasses.replace(made, why="nobody knows whether its retries would hold requests without a worker", flags=flags)
    way, why = _way(behind, behind.settings, dark)
    coverage = retry_cover.covered(behind.settings, behind.kind, way, dark)
    failing = failing_requests(request_rate, coverage.fails_for, coverage.fails_for)
    missed = None if coverage.covered else failing
    return dataclasses.replace(made, way=way, why=why, coverage=coverage, failing=missed, flags=coverage.flags)


def _way(behind: Behind, settings: RouterSettings, dark: Dark) -> tuple[str, str]:
    """What is best for the worker in the list, and why."""
    if behind.kind == Kind.SMG:
        return Way.KEPT, "smg tries again what a worker in its list has not answered, and nothing without one"
    if not behind.by_box:
        return Way.KEPT, "the box does not reach the router, and this machine may be gone before it is had in again"
    out = retry_cover.covered(settings, behind.kind, Way.REMOVED, dark)
    stays = retry_cover.covered(settings, behind.kind, Way.KEPT, dark)
    if out.covered or out.fails_for < stays.fails_for:
        return (
            Way.REMOVED,
            "without a worker its retries go on, no stream is cut, and neither breaker nor health check hold its successor back",
        )
    return Way.KEPT, f"out of the list it would be without a worker for {out.span:.0f} s, and its retries hold {out.holds:.1f} s"


def failing_requests(request_rate: float | None, shortest: float, longest: float) -> Failing:
    """How many requests will fail of those that come within so many seconds."""
    if request_rate is None:
        return Failing(None, shortest, longest, None, None)
    return Failing(request_rate, shortest, longest, round(request_rate * shortest), round(request_rate * longest))


def failing(report: wire.PreflightReport) -> Failing | None:
    """How many requests will fail where no router holds them; None where it is not known how long it will be dark."""
    known = None if report.staging is None else report.staging.estimate
    return None if known is None else failing_requests(report.request_rate, known.shortest, known.longest)


def with_seat(options: Options, behind: Behind | None, planned: Held | None) -> Options:
    """The options of an order whose supervisor takes the server out of its router, where that is the plan."""
    if behind is None or planned is None or planned.way != Way.REMOVED:
        return options
    return dataclasses.replace(options, router=behind.seat)


def clients(behind: Behind | None) -> Growth | None:
    """What the router has counted since it was looked at; None where it has no counters, or does not answer any more."""
    if behind is None or behind.view is None:
        return None
    try:
        return growth(counted(behind.view.counters), counted(behind.asked.look().counters))
    except OrchestratorError:
        return None
