"""Handing an order to the supervisor on the box and following it to its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.agent import wire
from orchestrator.errors import AgentError, ConnectionLostError, InterruptedByOperatorError, LockedError, RefusedError
from orchestrator.flows.follow import follow
from orchestrator.flows.look import new_id
from orchestrator.flows.observer import Observer
from orchestrator.flows.plan import Plan
from orchestrator.flows.target import Agent, Connect, Target
from orchestrator.results.runs import operator_name

SUBMIT_SECONDS = 60.0

Confirm = Callable[[Plan], bool]
"""Asks whether the plan may be carried out.

Raises:
    UsageError: there is nobody to ask and no ``--yes``.
"""


@dataclass(frozen=True)
class Options:
    """What an operator may say about a change.

    Attributes:
        plan_only: stop after the plan.
        grace: seconds from the end of the drain until SIGKILL, None for the service's own.
    """

    plan_only: bool = False
    accept_drift: bool = False
    force: bool = False
    grace: float | None = None
    measure: bool = True
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """A plan and, when it was carried out, how that ended."""

    plan: Plan
    result: wire.OrderResult | None = None


def policy_for(target: Target, options: Options) -> wire.Policy:
    """The service's policy with what the operator said."""
    from orchestrator.config import policy

    chosen = policy(target.service)
    if options.grace is not None:
        chosen = dataclasses.replace(chosen, grace=options.grace)
    return chosen if options.measure else dataclasses.replace(chosen, measure=False)


def settle(plan: Plan, options: Options, observer: Observer, confirm: Confirm) -> bool:
    """Show the plan and find out whether it is carried out.

    Raises:
        RefusedError: something speaks against it, or the operator said no.
    """
    observer.plan(plan)
    if plan.refusals:
        raise RefusedError("refused, nothing was touched", evidence=list(plan.refusals), next_step=plan.next_step)
    if options.plan_only:
        return False
    if not confirm(plan):
        raise RefusedError("not confirmed, nothing was touched")
    return True


def make_order(target: Target, plan: Plan, options: Options, launch: wire.Launch | None) -> wire.Order:
    """The order that carries out `plan`. `launch` is the plan's, with its secrets."""
    return wire.Order(
        order_id=new_id(),
        kind=plan.verb,
        service=target.service.name,
        state_root=target.state_root,
        port=target.service.port,
        policy=plan.policy,
        operator=operator_name(),
        reason=options.reason,
        old=plan.server.main if plan.server is not None else None,
        new=launch,
    )


def carry_out(agent: Agent, target: Target, order: wire.Order, observer: Observer, connect: Connect) -> wire.OrderResult:
    """Submit an order, follow it to its end.

    Raises:
        LockedError, RefusedError: the box won't; nothing was touched.
        ConnectionLostError: the box could not be reached (any more); if the order was taken, it goes on there.
        InterruptedByOperatorError: Ctrl-C; the order goes on there.
    """
    standing = f"whether {target.place} took the {order.kind} {order.order_id} is not known"
    try:
        holder = _submit(agent, target, order, standing)
        standing = f"the {order.kind} {order.order_id} goes on in {target.place} and needs nobody here"
        observer.note(f"{order.kind} {order.order_id} runs in {target.place} on its own ({holder}): this command only watches")
        result = follow(agent, target, order, observer, connect)
        result = dataclasses.replace(result, next_step=target.named(result.next_step))
        standing = f"the {order.kind} {order.order_id} has ended: {result.state}"
        observer.result(result)
    except KeyboardInterrupt:
        raise InterruptedByOperatorError(f"interrupted here; {standing}", next_step=target.command("status")) from None
    return result


def _submit(agent: Agent, target: Target, order: wire.Order, unknown: str) -> str:
    try:
        return agent.ask("submit", order, wire.Submitted, SUBMIT_SECONDS).holder
    except LockedError as error:
        raise LockedError(error.message, evidence=error.evidence, next_step=target.named(error.next_step)) from None
    except (ConnectionLostError, AgentError) as error:
        raise ConnectionLostError(unknown, evidence=[error.message, *error.evidence], next_step=target.command("status")) from error
