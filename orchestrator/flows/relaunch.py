"""Relaunch and launch: change what serves, with only the backend changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.errors import RefusedError
from orchestrator.flows import look
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Confirm, Options, Outcome, carry_out, make_order, policy_for, settle
from orchestrator.flows.plan import Origin, Plan, command_line, grace_remarks, masked, merged, next_step_for, refusals, stop_commands
from orchestrator.flows.target import Connect, Target, connect
from orchestrator.results.runs import last_dark_seconds

if TYPE_CHECKING:
    from orchestrator.config import Backend

_NOTHING_SERVES = "nothing serves now, so this is a launch: there is nothing to stop and nothing to go back to"
_NOTHING_CHANGES = "nothing would change: the server that serves now is what would be started, so this would be dark time for nothing"
_FORCE_IDLE = "choose another --backend, or give --force to start the same server again"
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
) -> Outcome:
    """Replace the running server by one that differs in its backend profiles only. Without a server this is a launch.

    Raises:
        RefusedError: something speaks against it; nothing was touched.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`carry_out`.
    """
    return _change(wire.OrderKind.RELAUNCH, target, backends, options, observer, confirm, connect)


def launch(
    target: Target,
    backends: Sequence[Backend],
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect = connect,
) -> Outcome:
    """Start the service where nothing serves on its port.

    Raises:
        RefusedError: a server is there already, or something else speaks against it; nothing was touched.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`carry_out`.
    """
    return _change(wire.OrderKind.LAUNCH, target, backends, options, observer, confirm, connect)


def _change(
    verb: str,
    target: Target,
    backends: Sequence[Backend],
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect,
) -> Outcome:
    with connect(target) as agent:
        observer.note(f"looking at {target.place}: what runs, what is installed")
        found = look.survey(agent, target)
        look.refuse_when_held(target, found)
        if verb == wire.OrderKind.LAUNCH:
            refuse_when_serving(target, found)
        new = look.candidate(target, backends, found, observer)
        observer.note(f"checking {new.backend} against {target.place} while nothing changes")
        report = look.preflight(agent, target, new, backends, str(found.sglang_version))
        plan = plan_change(verb, target, new, found, report, options)
        if not settle(plan, options, observer, confirm):
            return Outcome(plan)
        order = make_order(target, plan, options, new)
        return Outcome(plan, carry_out(agent, target, order, observer, connect))


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
) -> Plan:
    """Put together what the operator sees before the question."""
    from orchestrator.agent.preflight import NEVER_FORCED

    server = report.server
    policy = policy_for(target, options)
    verdicts = merged(found.verdicts, report.verdicts)
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
        by_hand=[*(stop_commands(server, policy) if server is not None else []), command_line(new)],
        remarks=_remarks(verb, target, found, report, policy),
        refusals=[
            *refusals(report.differences, verdicts, accept_drift=options.accept_drift, force=options.force, never_forced=NEVER_FORCED),
            *([_NOTHING_CHANGES] if idle and not options.force else []),
        ],
        next_step=target.named(next_step_for(report.differences, verdicts, NEVER_FORCED) or (_FORCE_IDLE if idle else None)),
        gpus=found.gpus,
        reason=options.reason,
    )


def changes_nothing(found: wire.SurveyReport, report: wire.PreflightReport) -> bool:
    """Whether a healthy server would be replaced by its equal. One that does not serve well may need no more than a new start."""
    if report.server is None or found.health != "serving":
        return False
    return all(difference.origin in {Origin.OURS, Origin.INHERITED} for difference in report.differences)


def _remarks(verb: str, target: Target, found: wire.SurveyReport, report: wire.PreflightReport, policy: wire.Policy) -> list[str]:
    if report.server is None:
        return [_NOTHING_SERVES] if verb == wire.OrderKind.RELAUNCH else []
    last = last_dark_seconds(target.host.name, target.service.name)
    known = f"the last one was dark for {last:.0f} s" if last is not None else "no earlier one is known here"
    stop = f"the stop (3 to 7 s when idle, at most {policy.drain + policy.grace:g} s)"
    dark = f"dark time: {stop} and the load; {known}. If the new server fails, the old one is started again: another load"
    remarks = [_NO_ROUTER, dark, *grace_remarks(policy)]
    return ["nothing would change: the same server would be started again", *remarks] if changes_nothing(found, report) else remarks
