"""Watching an order that somebody has begun, here or elsewhere, and taking one up again that was cut off."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.agent import wire
from orchestrator.errors import LockedError, RefusedError
from orchestrator.flows.locks import Patience, lock_status, survey_when_free
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import SUBMIT_SECONDS, Confirm, Interruption, Options, Outcome, leave_running, policy_for, watch
from orchestrator.flows.plan import Plan
from orchestrator.flows.target import Agent, Connect, Target, connect

Found = Callable[[wire.OrderStatus], None]
"""Hears which order it is, before anything is told of it."""


def attach(
    target: Target,
    order_id: str | None,
    observer: Observer,
    found: Found = lambda order: None,
    interruption: Interruption = leave_running,
    connect: Connect = connect,
) -> wire.OrderResult:
    """Tell an order from its beginning to its end: the named one, the one at work, or the newest. Changes nothing.

    Raises:
        RefusedError: there is no such order.
        ConnectionLostError, InterruptedByOperatorError: see :func:`orchestrator.flows.order.watch`.
    """
    with connect(target) as agent:
        order = _find(agent, target, order_id)
        found(order)
        how = f"is at work in {target.place}, in {order.state}" if order.live else f"has ended in {target.place}: {order.state}"
        if order.half_done:
            how = f"was cut off in {target.place}: {order.state}"
        return watch(agent, target, order, observer, connect, interruption if order.live else leave_running, how)


def resume(
    target: Target,
    order_id: str | None,
    observer: Observer,
    found: Found = lambda order: None,
    interruption: Interruption = leave_running,
    connect: Connect = connect,
) -> wire.OrderResult:
    """Take up an order that was cut off and follow it to its end: it finishes or rolls back, by the code that began it.

    Raises:
        RefusedError: there is no such order, or it has ended.
        LockedError: it is at work, or a person has locked the service.
        ConnectionLostError, InterruptedByOperatorError: see :func:`orchestrator.flows.order.watch`.
    """
    if target.service.nodes:
        from orchestrator.flows import node_orders

        return node_orders.resume(target, order_id, observer, found, interruption, connect)
    with connect(target) as agent:
        order = _find(agent, target, order_id)
        if order.live:
            step = target.command("attach", f"--order {order.order_id}")
            raise LockedError(f"the {order.kind} {order.order_id} is at work, in {order.state}: nothing to resume", next_step=step)
        if not order.state.startswith("INTERRUPTED"):
            step = target.command("attach", f"--order {order.order_id}")
            raise RefusedError(f"nothing to resume: the {order.kind} {order.order_id} has ended: {order.state}", next_step=step)
        found(order)
        return _take_up(agent, target, order, observer, interruption, connect)


def _find(agent: Agent, target: Target, order_id: str | None) -> wire.OrderStatus:
    order = lock_status(agent, target, order_id).order
    if order is None:
        name = target.service.name
        what = f"there is no order {order_id} of {name}" if order_id else f"there was no order of {name} yet"
        raise RefusedError(f"{what} in {target.place}", next_step=target.command("status"))
    return order


def _take_up(
    agent: Agent, target: Target, order: wire.OrderStatus, observer: Observer, interruption: Interruption, connect: Connect
) -> wire.OrderResult:
    reference = wire.OrderReference(target.service.name, target.state_root, order.order_id)
    holder = agent.ask("resume", reference, wire.Submitted, SUBMIT_SECONDS).holder
    how = f"by {order.operator} was cut off and goes on in {target.place} on its own ({holder})"
    return watch(agent, target, order, observer, connect, interruption, how)


def survey_with_clear_way(
    agent: Agent,
    target: Target,
    verb: str,
    options: Options,
    observer: Observer,
    confirm: Confirm,
    interruption: Interruption,
    connect: Connect,
    patience: Patience | None = None,
) -> wire.SurveyReport | Outcome:
    """Survey the service's place once nobody keeps `verb` away and no order is left half-done.

    An order that was cut off half-way is brought to its end first, and then everything is looked at afresh.

    Returns:
        An outcome where it goes no further: only a plan was asked for, or the order was cut off again.

    Raises:
        RefusedError: the operator said no.
        LockedError: an order is at work for longer than was to be waited, or a person has locked the service.
    """
    patience = patience or Patience(options.wait)
    found = survey_when_free(agent, target, observer, patience, looks_only=options.plan_only)
    order = found.order
    if order is None or not order.half_done:
        return found
    plan = _plan(target, verb, found, order, options)
    observer.plan(plan)
    if options.plan_only:
        return Outcome(plan, lock=found.lock)
    if not confirm(plan):
        raise RefusedError(f"not confirmed; the {order.kind} {order.order_id} is still half-done", next_step=target.command("resume"))
    result = _take_up(agent, target, order, observer, interruption, connect)
    if result.state not in wire.State.FINAL:
        return Outcome(plan, result)
    observer.note(f"the {order.kind} {order.order_id} has come to its end: {result.state}; looking afresh for the {verb}")
    return survey_when_free(agent, target, observer, patience)


def _plan(target: Target, verb: str, found: wire.SurveyReport, order: wire.OrderStatus, options: Options) -> Plan:
    """What is known before the order has ended. What serves then is not."""
    return Plan(
        verb=verb,
        host=target.host.name,
        place=target.place,
        service=target.service.name,
        policy=policy_for(target, options),
        server=found.server,
        sglang_version=found.sglang_version,
        by_hand=[target.command("resume")],
        remarks=[
            f"first the {order.kind} {order.order_id} by {order.operator}, which reads {order.state}, is brought to its end by its journal",
            f"what serves is looked at afresh after that, and only then the {verb} is planned and asked for",
        ],
        gpus=found.gpus,
        reason=options.reason,
    )
