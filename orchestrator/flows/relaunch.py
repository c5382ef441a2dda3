"""Relaunch and launch: change what serves, with only the backend changed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire_host import DoctorReport, PlaceKind
from orchestrator.errors import RefusedError
from orchestrator.flows import look
from orchestrator.flows.afterwards import Arrangement
from orchestrator.flows.attach import survey_with_clear_way
from orchestrator.flows.doctor import HOST_SECONDS, host_beside, in_plan, place_beside, settled
from orchestrator.flows.hooks import UNLESS_HOOKED, hooks_of
from orchestrator.flows.locks import Patience, persistently
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Confirm, Interruption, Options, Outcome, carry_out, leave_running, make_order, policy_for, settle
from orchestrator.flows.plan import (
    Origin,
    Plan,
    grace_remarks,
    masked,
    merged,
    next_step_for,
    overruled,
    refusals,
    switch_commands,
)
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.requests_meanwhile import Behind, clients, failing, held, look_behind, with_seat
from orchestrator.flows.target import Agent, Connect, Target, connect
from orchestrator.remote.beside import Beside
from orchestrator.results.runs import last_dark_seconds

if TYPE_CHECKING:
    from orchestrator.config import Backend

_NOTHING_SERVES = "nothing serves now, so this is a launch: there is nothing to stop and nothing to go back to"
_NOTHING_CHANGES = "nothing would change: the server that serves now is what would be started, so this would be dark time for nothing"
_FORCE_IDLE = "choose another --backend, or give --force to start the same server again"
_BACK_STAGED = "If the new server fails before its gate, the old one was never stopped; if it fails later, the old one is started again"
_NO_ROUTER = (
    "no router or load balancer is drained: requests keep coming until the old server closes its port and fail from then until the new "
    "one answers; from SIGTERM on /health is 503, which a load balancer that asks obeys"
)


def relaunch(
    target: Target,
    backends: Sequence[Backend],
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect = connect,
    open: Open = open_agent,  # noqa: A002
    interruption: Interruption = leave_running,
) -> Outcome:
    """Replace the running server by one that differs in its backend profiles only. Without a server this is a launch.

    Raises:
        RefusedError: something speaks against it; nothing was touched.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`carry_out`.
    """
    return persistently(
        options.wait,
        observer,
        lambda patience: _change(
            wire.OrderKind.RELAUNCH, target, backends, options, observer, confirm, connect, open, interruption, patience
        ),
    )


def launch(
    target: Target,
    backends: Sequence[Backend],
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect = connect,
    open: Open = open_agent,  # noqa: A002
    interruption: Interruption = leave_running,
) -> Outcome:
    """Start the service where nothing serves on its port.

    Raises:
        RefusedError: a server is there already, or something else speaks against it; nothing was touched.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`carry_out`.
    """
    return persistently(
        options.wait,
        observer,
        lambda patience: _change(
            wire.OrderKind.LAUNCH, target, backends, options, observer, confirm, connect, open, interruption, patience
        ),
    )


def _change(
    verb: str,
    target: Target,
    backends: Sequence[Backend],
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect,
    open: Open,  # noqa: A002
    interruption: Interruption,
    patience: Patience,
) -> Outcome:
    if target.service.nodes:
        from orchestrator.flows import nodes

        return nodes.change(verb, target, backends, options, observer, confirm, connect, open, interruption, patience)
    asked_host = host_beside(target.inventory, target.host, open) if target.service.in_container else None
    with connect(target) as agent:
        observer.note(f"looking at {target.place}: what runs, what is installed")
        found = survey_with_clear_way(agent, target, verb, options, observer, confirm, interruption, connect, patience)
        if isinstance(found, Outcome):
            return found
        if verb == wire.OrderKind.LAUNCH:
            refuse_when_serving(target, found)
        arrangement = Arrangement(agent, target, observer)
        behind = look_behind(target, options, connect) if verb == wire.OrderKind.RELAUNCH and found.server is not None else None
        signs = look.signs(agent, target, backends)
        new = look.candidate(target, backends, found, observer, signs, options.overlay)
        observer.note(f"checking {new.backend} against {target.place} while nothing changes")
        report = checked_candidate(verb, target, agent, new, backends, signs, found, options, asked_host)
        plan = arrangement.shown_in(plan_change(verb, target, new, found, report, options, behind), force=options.force)
        if not settle(plan, options, observer, confirm):
            return Outcome(plan, lock=found.lock)
        order = arrangement.laid_into(make_order(target, plan, with_seat(options, behind, plan.held), new), plan)
        result = carry_out(agent, target, order, observer, connect, interruption, force=options.force)
        return Outcome(plan, result, clients=clients(behind))


def checked_candidate(
    verb: str,
    target: Target,
    agent: Agent,
    new: wire.Launch,
    backends: Sequence[Backend],
    signs: Mapping[str, bool],
    found: wire.SurveyReport,
    options: Options,
    asked_host: Beside[DoctorReport] | None,
) -> wire.PreflightReport:
    """:func:`checked` of a launch that profiles were composed into. Only a relaunch stops something, so only it has a policy for that."""
    policy = policy_for(target, options) if verb == wire.OrderKind.RELAUNCH else None
    version = str(found.sglang_version)
    ask = functools.partial(look.preflight, agent, target, new, backends, version, signs, policy, sequential=options.sequential)
    return checked(agent, target, new, ask, asked_host)


def checked(
    agent: Agent,
    target: Target,
    new: wire.Launch | None,
    ask: Callable[[], wire.PreflightReport],
    asked_host: Beside[DoctorReport] | None,
) -> wire.PreflightReport:
    """The preflight's report (`ask`), with what a diagnosis of the place and of its host adds to its verdicts.

    The preflight asks cuInit itself. The host is waited for a little longer than the rest: it may be slow, or not to be reached.
    """
    kind = PlaceKind.CONTAINER if asked_host is not None else PlaceKind.HOST
    asked_place = place_beside(agent, target, new, cuda=False)
    report = ask()
    place = settled(asked_place, kind, target.place, None, wire.Outcome.WARN)
    host = None
    if asked_host is not None:
        host = settled(asked_host, PlaceKind.HOST, target.host.name, HOST_SECONDS, wire.Outcome.WARN)
    return dataclasses.replace(report, verdicts=in_plan(target, host, place, report.verdicts))


def refuse_when_serving(target: Target, found: wire.SurveyReport) -> None:
    """Raise RefusedError when a server of this service is there already."""
    if found.server is None:
        return
    raise RefusedError(
        f"process {found.server.main.pid} has port {found.server.port} already: a launch never replaces a server",
        next_step=target.command("relaunch", "--backend NAME"),
    )


def plan_change(
    verb: str,
    target: Target,
    new: wire.Launch,
    found: wire.SurveyReport,
    report: wire.PreflightReport,
    options: Options,
    behind: Behind | None = None,
) -> Plan:
    """Put together what the operator sees before the question."""
    from orchestrator.agent.preflight import NEVER_FORCED

    server = report.server
    policy = policy_for(target, options)
    verdicts = target.advised(merged(found.verdicts, report.verdicts))
    idle = changes_nothing(found, report)
    return Plan(
        verb=verb,
        host=target.host.name,
        place=target.place,
        service=target.service.name,
        policy=policy,
        server=server,
        launch=masked(new),
        sglang_version=report.sglang_version or found.sglang_version,
        load=report.load,
        differences=report.differences,
        verdicts=verdicts,
        by_hand=switch_commands(server, policy, new, staged=report.staging is not None and report.staging.staged),
        remarks=_remarks(verb, target, found, report, policy, options),
        refusals=[
            *refusals(report.differences, verdicts, accept_drift=options.accept_drift, force=options.force, never_forced=NEVER_FORCED),
            *([_NOTHING_CHANGES] if idle and not (options.force or options.again) else []),
        ],
        overruled=overruled(
            report.differences, verdicts, accept_drift=options.accept_drift, force=options.force, never_forced=NEVER_FORCED
        ),
        next_step=target.named(next_step_for(report.differences, verdicts, NEVER_FORCED) or (_FORCE_IDLE if idle else None)),
        gpus=found.gpus,
        reason=options.reason,
        staging=report.staging,
        order_id=look.new_id(),
        changes_nothing=idle,
        held=None if behind is None or server is None else held(behind, report.staging, policy, report.request_rate),
        failing=failing(report) if server is not None and _stands_alone(target) else None,
    )


def _stands_alone(target: Target) -> bool:
    """Whether no router of the inventory is before it."""
    return target.inventory.router_of(target.service.name) is None


def _router_remarks(target: Target, options: Options) -> list[str]:
    """What becomes of requests, where no roll takes care of that."""
    if options.rolled:
        return []
    router = target.inventory.router_of(target.service.name)
    if router is None:
        return [f"{UNLESS_HOOKED}{_NO_ROUTER}" if hooks_of(target).before else _NO_ROUTER]
    if len(router.replicas) == 1:
        return []
    step = f"fab roll --router {router.name} --service {target.service.name}"
    return [f"router {router.name} is not told and goes on sending requests here, which it has to try elsewhere; {step} takes it out first"]


def changes_nothing(found: wire.SurveyReport, report: wire.PreflightReport) -> bool:
    """Whether a healthy server would be replaced by its equal. One that does not serve well may need no more than a new start."""
    if report.server is None or found.health != "serving":
        return False
    return all(difference.origin in {Origin.OURS, Origin.INHERITED} for difference in report.differences)


def _remarks(
    verb: str, target: Target, found: wire.SurveyReport, report: wire.PreflightReport, policy: wire.Policy, options: Options
) -> list[str]:
    if report.server is None:
        return [_NOTHING_SERVES] if verb == wire.OrderKind.RELAUNCH else []
    last = last_dark_seconds(target.host.name, target.service.name)
    known = f"the last one was dark for {last:.0f} s" if last is not None else "no earlier one is known here"
    stop = f"the stop (3 to 7 s when idle, at most {policy.drain + policy.grace:g} s)"
    staged = report.staging is not None and report.staging.staged
    back = _BACK_STAGED if staged else "If the new server fails, the old one is started again: another load"
    dark = f"dark time: {stop} and the load{' from the gate on' if staged else ''}; {known}. {back}"
    remarks = [*_router_remarks(target, options), dark, *grace_remarks(policy)]
    return ["nothing would change: the same server would be started again", *remarks] if changes_nothing(found, report) else remarks
