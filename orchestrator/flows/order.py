"""Handing an order to the supervisor on the box and following it to its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.errors import (
    AgentError,
    ConnectionLostError,
    InterruptedByOperatorError,
    LockedError,
    OrchestratorError,
    RefusedError,
    TurnedAwayError,
)
from orchestrator.flows.afterwards import conclude
from orchestrator.flows.follow import AnyOrder, Follower
from orchestrator.flows.hooks import run_before, run_untaken
from orchestrator.flows.look import new_id
from orchestrator.flows.observer import Observer
from orchestrator.flows.plan import Plan
from orchestrator.flows.target import Agent, Connect, Target
from orchestrator.results.runs import operator_name

if TYPE_CHECKING:
    from orchestrator.agent.wire_router import RouterSeat
    from orchestrator.config import Overlay
    from orchestrator.results.roll import Growth

SUBMIT_SECONDS = 60.0
CANCEL_SECONDS = 30.0
_SAFELY = {
    wire.OrderKind.RELAUNCH: "the old server is put back if it was touched, unless the new one is proven by then",
    wire.OrderKind.LAUNCH: "what was started is ended, unless it is proven by then",
    wire.OrderKind.TEARDOWN: "nothing is changed where nothing was touched yet; a stop that has begun is finished",
}

Confirm = Callable[[Plan], bool]
"""Asks whether the plan may be carried out.

Raises:
    UsageError: there is nobody to ask and no ``--yes``.
"""


Interruption = Callable[[str], bool]
"""Asked after a Ctrl-C, with the order's name: whether it is to be stopped safely. False leaves it running."""


def leave_running(order: str) -> bool:
    """What a Ctrl-C means where nobody can be asked."""
    return False


@dataclass(frozen=True)
class Options:
    """What an operator may say about a change.

    Attributes:
        plan_only: stop after the plan.
        grace: seconds from the end of the drain until SIGKILL, None for the service's own.
        wait: seconds for which orders at work are waited for.
        sequential: the new server is started after the old one's stop, also where it could be staged.
        again: the same server is started once more where nothing would change; unlike `force` this overrules no check.
        overlay: what a sweep lays over the service's arguments.
        rolled: a roll has the server out of its router meanwhile.
        router: where the box itself takes the server out of a router and has it in again; None: it doesn't.
    """

    plan_only: bool = False
    accept_drift: bool = False
    force: bool = False
    grace: float | None = None
    measure: bool = True
    reason: str = ""
    wait: float = 0.0
    sequential: bool = False
    again: bool = False
    overlay: Overlay | None = None
    rolled: bool = False
    router: RouterSeat | None = None


@dataclass(frozen=True)
class Outcome:
    """A plan and, when it was carried out, how that ended.

    `lock`: the person's that would have kept it away, where it was only planned. `clients`: what a router counted from the plan to the end.
    """

    plan: Plan
    result: wire.OrderResult | None = None
    lock: wire.PersonLock | None = None
    clients: Growth | None = None


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
        more = f", and {len(plan.refusals) - 1} more" if len(plan.refusals) > 1 else ""
        said = f"would be refused: {plan.refusals[0]}{more}" if options.plan_only else "refused, nothing was touched"
        raise RefusedError(said, evidence=list(plan.refusals), next_step=plan.next_step)
    if options.plan_only:
        return False
    if not confirm(plan):
        raise RefusedError("not confirmed, nothing was touched")
    return True


def make_order(target: Target, plan: Plan, options: Options, launch: wire.Launch | None) -> wire.Order:
    """The order that carries out `plan`. `launch` is the plan's, with its secrets."""
    from orchestrator.config import expectations

    return wire.Order(
        order_id=plan.order_id or new_id(),
        kind=plan.verb,
        service=target.service.name,
        state_root=target.state_root,
        port=target.service.port,
        policy=plan.policy,
        expectations=expectations(target.service),
        operator=operator_name(),
        reason=options.reason,
        old=plan.server.main if plan.server is not None else None,
        new=launch,
        overruled=list(plan.overruled),
        boot=target.service.boot,
        staged=plan.staging is not None and plan.staging.staged,
        estimate=None if plan.staging is None else plan.staging.estimate,
        router=options.router,
    )


def carry_out(
    agent: Agent,
    target: Target,
    order: wire.Order,
    observer: Observer,
    connect: Connect,
    interruption: Interruption = leave_running,
    *,
    force: bool = False,
) -> wire.OrderResult:
    """Run the commands before an order, submit it, follow it to its end.

    Args:
        force: a command before it that fails is told, and does not refuse it.

    Raises:
        LockedError, RefusedError: the box won't, or a command before it failed; nothing was touched.
        ConnectionLostError: the box could not be reached (any more); if the order was taken, it goes on there.
        InterruptedByOperatorError: Ctrl-C; the order goes on there.
    """
    unknown = f"whether {target.place} took the {order.kind} {order.order_id} is not known"
    begun = run_before(target, order, observer, force=force)
    try:
        holder = submit(agent, target, order, unknown)
    except KeyboardInterrupt:
        raise InterruptedByOperatorError(f"interrupted here; {unknown}", next_step=target.command("status")) from None
    except ConnectionLostError:
        raise
    except OrchestratorError as error:
        if begun:
            run_untaken(target, order, observer, error.message, error.exit_code)
        raise
    return watch(agent, target, order, observer, connect, interruption, f"runs in {target.place} on its own ({holder})")


def watch(
    agent: Agent, target: Target, order: AnyOrder, observer: Observer, connect: Connect, interruption: Interruption, begun: str
) -> wire.OrderResult:
    """Follow an order to its end and tell that. `begun` says how it runs, for a note about what this command does.

    Ctrl-C asks whether the order is to be stopped safely; if so it is followed to that end. Another one ends the watching alone.

    Raises:
        ConnectionLostError: the box could not be reached any more; the order goes on there.
        InterruptedByOperatorError: the order goes on there.
    """
    name = f"{order.kind} {order.order_id}"
    follower = Follower(agent, target, order, observer, connect)
    goes_on = f"the {name} goes on in {target.place} and needs nobody here"
    standing = goes_on
    may_ask = True
    try:
        observer.note(f"{name} {begun}: this command only watches")
        while True:
            try:
                result = follower.to_end()
                break
            except KeyboardInterrupt:
                if not may_ask or not interruption(f"the {name}"):
                    raise
                may_ask = False
            standing = f"whether the {name} was asked to stop is not known; it comes to a safe end in {target.place} either way"
            asked = cancel(target, order, observer, connect)
            standing = f"the {name} stops safely in {target.place} and needs nobody here" if asked else goes_on
        result = dataclasses.replace(result, next_step=target.named(result.next_step))
        standing = f"the {name} has ended: {result.state}"
        observer.result(result)
        conclude(agent, target, order.order_id, result, observer, connect)
    except KeyboardInterrupt:
        step = target.command("attach", f"--order {order.order_id}")
        raise InterruptedByOperatorError(f"interrupted here; {standing}", next_step=step) from None
    return result


def cancel(target: Target, order: AnyOrder, observer: Observer, connect: Connect) -> bool:
    """Ask the supervisor to stop safely; whether that could be asked. Following goes on either way."""
    request = wire.Cancel(target.service.name, target.state_root, order.order_id, operator_name())
    try:
        with connect(target) as agent:
            agent.ask("cancel", request, wire.OrderStatus, CANCEL_SECONDS)
    except OrchestratorError as error:
        observer.warn(f"the {order.kind} could not be asked to stop and goes on: {error.message}")
        return False
    observer.note(f"the {order.kind} stops safely: {_SAFELY[order.kind]}; Ctrl-C leaves it to that")
    return True


def submit(agent: Agent, target: Target, order: wire.Order, unknown: str) -> str:
    """Hand an order to the box; what carries it out there. `unknown` is said where nobody can tell whether it was taken.

    Raises:
        LockedError, RefusedError: the box won't; nothing was touched.
        ConnectionLostError: the box was lost sight of.
    """
    try:
        return agent.ask("submit", order, wire.Submitted, SUBMIT_SECONDS).holder
    except LockedError as error:
        kind = TurnedAwayError if type(error) is LockedError else type(error)
        raise kind(error.message, evidence=error.evidence, next_step=target.named(error.next_step)) from None
    except (ConnectionLostError, AgentError) as error:
        raise ConnectionLostError(unknown, evidence=[error.message, *error.evidence], next_step=target.command("status")) from error
