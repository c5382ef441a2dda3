"""What a sweep is about to do: every point checked while nothing changes, and what it will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire_launches import LaunchesReport, LaunchesRequest
from orchestrator.errors import RefusedError, UnfinishedOrderError
from orchestrator.flows import look
from orchestrator.flows.locks import Patience, survey_when_free
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Options, policy_for
from orchestrator.flows.plan import next_step_for, refusals
from orchestrator.flows.rollback import LAUNCHES_SECONDS
from orchestrator.flows.target import Agent, Target
from orchestrator.results.sweep import Design, Point, Standing, resumed
from orchestrator.results.sweep_estimate import Pace, pace
from orchestrator.results.sweep_records import Allowed, Seen

if TYPE_CHECKING:
    from orchestrator.config import Overlay

_NO_WAY_BACK = "what serves now is no launch that this program remembers, so it could not be brought back at the end"


@dataclass(frozen=True)
class PointPlan:
    """A point as the box would take it now. `refusals` say why it would be skipped; `dark` is what earlier switches took."""

    point: Point
    refusals: Sequence[str] = ()
    next_step: str | None = None
    staged: bool = False
    dark: wire.DarkEstimate | None = None


@dataclass(frozen=True)
class SweepPlan:
    """Shown before the one question.

    Attributes:
        server: what serves now.
        start_launch: the launch by which that could be brought back; None: there is none.
        standing: where a sweep that is taken up again stands; None for a new one.
        steps: the points that will be launched, by number, in their order; `to_time` more are up already and have to be timed.
    """

    host: str
    place: str
    service: str
    design: Design
    points: Sequence[PointPlan]
    server: wire.ServerInfo
    sglang_version: str | None
    load: int | None
    start_launch: str | None
    steps: Sequence[int]
    pace: Pace
    to_time: int = 0
    standing: Standing | None = None
    reason: str = ""

    @property
    def seen(self) -> Seen:
        return seen(self.server)

    @property
    def changed_meanwhile(self) -> bool:
        """Whether a sweep that is taken up again finds another server than it has left."""
        left = None if self.standing is None else self.standing.seen
        return left is not None and left.is_known and not left.is_same(self.seen)

    @property
    def dark_seconds(self) -> float | None:
        """Of all launches together; None where one of them is not known."""
        known = [self.points[point].dark for point in self.steps if not self.points[point].refusals]
        return None if None in known else sum(estimate.seconds for estimate in known if estimate is not None)


def seen(server: wire.ServerInfo | None) -> Seen:
    """What tells the server from any other."""
    return Seen(None) if server is None else Seen(server.launch_id, server.main.pid, server.main.start_time)


def overlay(design: Design, point: Point) -> Overlay:
    """What a point lays over the service."""
    from orchestrator.config import Overlay

    return Overlay(point.arguments, design.flags)


def options_for(allowed: Allowed, *, first: bool, reason: str = "") -> Options:
    """The options of one of a sweep's relaunches. Drift was accepted of what served at the beginning, and of nothing that comes later.

    Each is a launch of its own, also where nothing would change: launches of the same thing differ, and only several show by how much.
    """
    return Options(
        accept_drift=allowed.accept_drift and first,
        force=allowed.force,
        grace=allowed.grace,
        measure=False,
        reason=reason,
        wait=allowed.wait,
        sequential=allowed.sequential,
        again=True,
    )


def plan_sweep(
    agent: Agent, target: Target, design: Design, allowed: Allowed, observer: Observer, standing: Standing | None = None
) -> SweepPlan:
    """Look at the service, and check each point that is left, while nothing changes.

    Raises:
        RefusedError: nothing serves, no point could be launched, or what serves could not be brought back as was asked.
        UsageError: a point sets what its profile sets.
        LockedError: somebody else is changing the service, or has locked it.
        UnfinishedOrderError: an order was left half-done.
    """
    observer.note(f"looking at {target.place}: what runs, what is installed")
    found = survey_when_free(agent, target, observer, Patience(allowed.wait))
    server = _serving(target, found)
    start = _start_launch(agent, target) if standing is None else standing.start_launch
    if design.restore and start is None:
        raise RefusedError(_NO_WAY_BACK, next_step=f"{target.command('adopt')}, which makes a record of it; or leave out --restore")
    now = None if standing is None else resumed(standing, seen(server))
    steps = design.steps if now is None else now.steps_left
    options = options_for(allowed, first=now is None or now.at_start)
    points, load = _check(agent, target, design, options, found, set(steps), observer)
    _refuse_hopeless(target, [points[number] for number in sorted(set(steps))], now)
    return SweepPlan(
        host=target.host.name,
        place=target.place,
        service=target.service.name,
        design=design,
        points=points,
        server=server,
        sglang_version=found.sglang_version,
        load=load,
        start_launch=start,
        steps=steps,
        pace=pace(target.host.name, target.service.name, design.timing),
        to_time=int(now is not None and now.untimed is not None),
        standing=standing,
        reason=allowed.reason,
    )


def _serving(target: Target, found: wire.SurveyReport) -> wire.ServerInfo:
    order = found.order
    if order is not None and order.half_done:
        raise UnfinishedOrderError(
            f"the {order.kind} {order.order_id} by {order.operator} was cut off: {order.state}", next_step=target.command("resume")
        )
    if found.server is None:
        raise RefusedError("nothing serves, so no point would have anything to fall back on", next_step=target.command("launch"))
    if found.health != "serving":
        raise RefusedError(
            f"the server does not answer as it should ({found.health}), so no point would have anything to fall back on",
            next_step=target.command("doctor"),
        )
    return found.server


def _start_launch(agent: Agent, target: Target) -> str | None:
    """The box's own record of what serves, by which it could be started again."""
    request = LaunchesRequest(target.service.name, target.state_root, target.service.port)
    known = agent.ask("launches", request, LaunchesReport, LAUNCHES_SECONDS).launches
    return next((item.launch.launch_id for item in known if item.serves), None)


def _check(
    agent: Agent, target: Target, design: Design, options: Options, found: wire.SurveyReport, wanted: set[int], observer: Observer
) -> tuple[list[PointPlan], int | None]:
    """Each point that is wanted as the box would take it now, and how many requests run."""
    profiles = {point.backend: target.inventory.backends_named(point.backend) for point in design.points}
    signs = look.signs(agent, target, list({item.name: item for items in profiles.values() for item in items}.values()))
    policy, version = policy_for(target, options), str(found.sglang_version)
    checked, load = [], None
    for number, point in enumerate(design.points):
        if number not in wanted:
            checked.append(PointPlan(point))
            continue
        observer.note(f"checking point {number + 1} of {len(design.points)} while nothing changes: {point.label}")
        try:
            launch = look.candidate(target, profiles[point.backend], found, observer, signs, overlay(design, point))
            report = look.preflight(agent, target, launch, profiles[point.backend], version, signs, policy, sequential=options.sequential)
        except RefusedError as error:
            checked.append(PointPlan(point, [error.message], target.named(error.next_step)))
            continue
        checked.append(_judged(target, point, report, options))
        load = report.load
    return checked, load


def _judged(target: Target, point: Point, report: wire.PreflightReport, options: Options) -> PointPlan:
    from orchestrator.agent.preflight import NEVER_FORCED

    against = refusals(
        report.differences, report.verdicts, accept_drift=options.accept_drift, force=options.force, never_forced=NEVER_FORCED
    )
    staging = report.staging
    return PointPlan(
        point,
        against,
        target.named(next_step_for(report.differences, target.advised(report.verdicts), NEVER_FORCED)),
        staging is not None and staging.staged,
        None if staging is None else staging.estimate,
    )


def _refuse_hopeless(target: Target, points: Sequence[PointPlan], standing: Standing | None) -> None:
    """A sweep that has tried something ends as it should also where nothing more can be."""
    if standing is not None and (standing.tried or standing.untimed is not None):
        return
    if any(not item.refusals for item in points):
        return
    evidence = list(dict.fromkeys(f"{item.point.label}: {reason}" for item in points for reason in item.refusals))
    raise RefusedError(
        "no point of the sweep could be launched; nothing was touched",
        evidence=evidence,
        next_step=target.named(next((item.next_step for item in points if item.next_step), None)),
    )
