"""Teardown: stop the service's server and leave nothing behind."""

from __future__ import annotations

from orchestrator.agent import wire
from orchestrator.flows.afterwards import Arrangement
from orchestrator.flows.attach import survey_with_clear_way
from orchestrator.flows.hooks import UNLESS_HOOKED, hooks_of
from orchestrator.flows.locks import Patience, persistently
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Confirm, Interruption, Options, Outcome, carry_out, leave_running, make_order, policy_for, settle
from orchestrator.flows.plan import Plan, grace_remarks, stop_commands
from orchestrator.flows.target import Connect, Target, connect


def teardown(
    target: Target,
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect = connect,
    interruption: Interruption = leave_running,
) -> Outcome:
    """Stop the server and check that it is gone: processes, port, shared memory, GPU memory.

    Raises:
        RefusedError: its manager is not supported, or the operator said no; nothing was touched.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`carry_out`.
    """
    return persistently(
        options.wait, observer, lambda patience: _teardown(target, options, observer, confirm, connect, interruption, patience)
    )


def _teardown(
    target: Target,
    options: Options,
    observer: Observer,
    confirm: Confirm,
    connect: Connect,
    interruption: Interruption,
    patience: Patience,
) -> Outcome:
    if target.service.nodes:
        from orchestrator.flows import nodes

        return nodes.teardown(target, options, observer, confirm, connect, interruption, patience)
    with connect(target) as agent:
        observer.note(f"looking at {target.place}: what runs")
        found = survey_with_clear_way(agent, target, wire.OrderKind.TEARDOWN, options, observer, confirm, interruption, connect, patience)
        if isinstance(found, Outcome):
            return found
        arrangement = Arrangement(agent, target, observer)
        plan = plan_teardown(target, found, options)
        if found.server is None:
            observer.plan(plan)
            return Outcome(plan)
        plan = arrangement.shown_in(plan)
        if not settle(plan, options, observer, confirm):
            return Outcome(plan, lock=found.lock)
        order = arrangement.laid_into(make_order(target, plan, options, None), plan)
        return Outcome(plan, carry_out(agent, target, order, observer, connect, interruption))


def plan_teardown(target: Target, found: wire.SurveyReport, options: Options) -> Plan:
    """Put together what the operator sees before the question."""
    policy = policy_for(target, options)
    server = found.server
    if server is None:
        remarks = [f"nothing of {target.service.name} runs: there is nothing to stop"]
        if found.boot is not None and found.boot.armed:
            remarks.append(f"{found.boot.unit} may start it again: {target.command('boot', '--off')} removes that")
    else:
        unless = UNLESS_HOOKED if hooks_of(target).before else ""
        remarks = [f"nothing serves afterwards; {unless}no router or load balancer is told", *grace_remarks(policy)]
    refusals = []
    if server is not None and server.manager.kind == wire.ManagerKind.UNSUPPORTED:
        refusals.append(f"manager: {server.manager.name} runs this server and would not like it stopped from here: {server.manager.detail}")
    return Plan(
        verb=wire.OrderKind.TEARDOWN,
        host=target.host.name,
        place=target.place,
        service=target.service.name,
        policy=policy,
        server=server,
        sglang_version=found.sglang_version,
        verdicts=found.verdicts,
        by_hand=stop_commands(server, policy) if server is not None else [],
        remarks=remarks,
        refusals=refusals,
        gpus=found.gpus,
        reason=options.reason,
    )
