"""Rollback: relaunch what the box remembers, by default the launch that was verified last before the one that serves."""

from __future__ import annotations

import dataclasses

from orchestrator.agent import wire
from orchestrator.agent.wire_launches import KnownLaunch, LaunchesReport, LaunchesRequest
from orchestrator.errors import RefusedError, UsageError
from orchestrator.flows import look
from orchestrator.flows.afterwards import Arrangement
from orchestrator.flows.attach import survey_with_clear_way
from orchestrator.flows.doctor import host_beside
from orchestrator.flows.locks import Patience, persistently
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Confirm, Interruption, Options, Outcome, carry_out, leave_running, make_order, policy_for, settle
from orchestrator.flows.plan import Plan
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.relaunch import checked, plan_change
from orchestrator.flows.target import Agent, Connect, Target, connect

ROLLBACK = "rollback"
"""What the plan and the screen call it; to the box it is a relaunch."""
LAUNCHES_SECONDS = 60.0


def launches(target: Target, connect: Connect = connect) -> LaunchesReport:
    """The launches that the box remembers, what serves, and which one a rollback would start.

    Raises:
        UnreachableError: the place can't be reached, trusted or used.
    """
    with connect(target) as agent:
        return _ask(agent, target)


def rollback(
    target: Target,
    to: str | None,
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect = connect,
    open: Open = open_agent,  # noqa: A002
    interruption: Interruption = leave_running,
) -> Outcome:
    """Replace what serves by a launch of the box's own records, checked and proven like any candidate.

    The record may hold secrets, which never leave the box: the order only names it.

    Raises:
        UsageError: there is no launch `to` on the box.
        RefusedError: there is nothing to go back to, or something speaks against it; nothing was touched.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`order.carry_out`.
    """
    return persistently(
        options.wait, observer, lambda patience: _rollback(target, to, options, observer, confirm, connect, open, interruption, patience)
    )


def _rollback(
    target: Target,
    to: str | None,
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect,
    open: Open,  # noqa: A002
    interruption: Interruption,
    patience: Patience,
) -> Outcome:
    if target.service.nodes:
        raise RefusedError(
            f"{target.service.name} goes over {len(target.parts())} nodes: a launch of one node's records is not the whole of it",
            next_step=target.parts()[0].command("relaunch", "--backend NAME"),
        )
    asked_host = host_beside(target.inventory, target.host, open) if target.service.in_container else None
    with connect(target) as agent:
        observer.note(f"looking at {target.place}: what runs, and what ran before")
        found = survey_with_clear_way(agent, target, ROLLBACK, options, observer, confirm, interruption, connect, patience)
        if isinstance(found, Outcome):
            return found
        arrangement = Arrangement(agent, target, observer)
        chosen = choose_launch(target, _ask(agent, target), to)
        new = dataclasses.replace(chosen.launch, launch_id=look.new_id())
        observer.note(f"checking launch {chosen.launch.launch_id} ({new.backend}) against {target.place} while nothing changes")
        report = checked(agent, target, new, lambda: _preflight(agent, target, chosen, new, options), asked_host)
        plan = arrangement.shown_in(plan_rollback(target, chosen, new, found, report, options), force=options.force)
        if not settle(plan, options, observer, confirm):
            return Outcome(plan, lock=found.lock)
        order = arrangement.laid_into(order_for(target, plan, chosen, new, options), plan)
        return Outcome(plan, carry_out(agent, target, order, observer, connect, interruption, force=options.force))


def _preflight(agent: Agent, target: Target, chosen: KnownLaunch, new: wire.Launch, options: Options) -> wire.PreflightReport:
    request = wire.PreflightRequest(
        new,
        target.state_root,
        [],
        target.expected_gpus,
        copy_of=chosen.launch.launch_id,
        policy=policy_for(target, options),
        sequential=options.sequential,
    )
    return agent.ask("preflight", request, wire.PreflightReport, look.PREFLIGHT_SECONDS)


def order_for(target: Target, plan: Plan, chosen: KnownLaunch, new: wire.Launch, options: Options) -> wire.Order:
    """The order that starts the record of `chosen` again, as `new`."""
    order = make_order(target, plan, options, None)
    return dataclasses.replace(order, kind=wire.OrderKind.RELAUNCH, copy_of=chosen.launch.launch_id)


def choose_launch(target: Target, report: LaunchesReport, to: str | None) -> KnownLaunch:
    """The launch that is meant.

    Raises:
        UsageError: there is none of that name.
        RefusedError: it serves already, or there is none to go back to.
    """
    step = target.command(ROLLBACK, "--list")
    if to is None:
        known = next((item for item in report.launches if item.launch.launch_id == report.previous), None)
        if known is None:
            raise RefusedError(f"there is nothing to go back to: {report.why}", next_step=step)
        return known
    known = next((item for item in report.launches if item.launch.launch_id == to), None)
    if known is None:
        newest = [f"{item.launch.launch_id} ({item.launch.backend})" for item in report.launches[-5:]]
        raise UsageError(f"{target.place} remembers no launch {to!r} of {target.service.name}", evidence=newest, next_step=step)
    if known.serves:
        raise RefusedError(f"launch {to} is what serves now", next_step=step)
    return known


def plan_rollback(
    target: Target, chosen: KnownLaunch, new: wire.Launch, found: wire.SurveyReport, report: wire.PreflightReport, options: Options
) -> Plan:
    """Put together what the operator sees before the question. Whatever differs is wanted: the launch is taken as it was."""
    wanted = dataclasses.replace(options, accept_drift=True)
    plan = plan_change(wire.OrderKind.RELAUNCH, target, new, found, report, wanted)
    origin = f"this is launch {chosen.launch.launch_id} again, from the box's own record, secrets included"
    remarks = [origin, *plan.remarks]
    if chosen.verified is None:
        remarks.append(f"launch {chosen.launch.launch_id} was never verified")
    if chosen.launch.service != target.service.name:
        raise RefusedError(f"the record of {chosen.launch.launch_id} is of service {chosen.launch.service}")
    if new.port != target.service.port:
        plan = dataclasses.replace(
            plan, refusals=[*plan.refusals, f"it was on port {new.port}; the service's file says {target.service.port} now"]
        )
    return dataclasses.replace(plan, verb=ROLLBACK, remarks=remarks, order_id=new.launch_id)


def _ask(agent: Agent, target: Target) -> LaunchesReport:
    request = LaunchesRequest(target.service.name, target.state_root, target.service.port)
    return agent.ask("launches", request, LaunchesReport, LAUNCHES_SECONDS)
