"""A service over several nodes: one order on each of them, all or none, and one story told of it.

Each node's part is looked at and checked as a service on one node is; the plans become one. What is made of it is :mod:`node_orders`'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.errors import UnfinishedOrderError
from orchestrator.flows import look
from orchestrator.flows.afterwards import Arrangement
from orchestrator.flows.doctor import host_beside
from orchestrator.flows.locks import Patience, survey_when_free
from orchestrator.flows.node_orders import Part, carry_out
from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Confirm, Interruption, Options, Outcome, settle
from orchestrator.flows.plan import Plan
from orchestrator.flows.relaunch import checked_candidate, plan_change, refuse_when_serving
from orchestrator.flows.target import Agent, Connect, Target
from orchestrator.flows.teardown import plan_teardown

if TYPE_CHECKING:
    from orchestrator.config import Backend
    from orchestrator.flows.prep import Open


def change(
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
    """Relaunch or launch a service on all of its nodes.

    Raises:
        RefusedError: something speaks against it on one of them; nothing was touched on any.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`orchestrator.flows.order.carry_out`.
    """
    stem = look.new_id()

    def plan_part(part: Target, agent: Agent, found: wire.SurveyReport) -> Part:
        if verb == wire.OrderKind.LAUNCH:
            refuse_when_serving(part, found)
        asked_host = host_beside(part.inventory, part.host, open) if part.service.in_container else None
        signs = look.signs(agent, part, backends)
        new = look.candidate(part, backends, found, observer, signs, options.overlay)
        # A launch's processes are known by its id, and two hosts of an inventory may be one machine.
        new = dataclasses.replace(new, launch_id=f"{stem}-rank{part.rank}" if part.rank else stem)
        observer.note(f"checking rank {part.rank} of {new.backend} against {part.place} while nothing changes")
        report = checked_candidate(verb, part, agent, new, backends, signs, found, options, asked_host)
        # Where the whole would stay as it is, rank 0's part says so.
        chosen = options if part.rank == 0 else dataclasses.replace(options, again=True)
        return Part(part, agent, found, plan_change(verb, part, new, found, report, chosen), new)

    with _looked_at(target, connect, options, observer, patience, plan_part) as parts:
        arrangement = Arrangement(parts[0].agent, parts[0].target, observer)
        plan = arrangement.shown_in(whole_plan(parts), force=options.force)
        if not settle(plan, options, observer, confirm):
            return Outcome(plan, lock=_lock(parts))
        return Outcome(plan, carry_out(parts, plan, arrangement, options, observer, connect, interruption))


def teardown(
    target: Target, options: Options, observer: Observer, confirm: Confirm, connect: Connect, interruption: Interruption, patience: Patience
) -> Outcome:
    """Stop a service on all of its nodes; one whose part has gone already is looked at for what it left.

    Raises:
        RefusedError: something speaks against it on one of them; nothing was touched on any.
        UnreachableError, LockedError, InterruptedByOperatorError: see :func:`orchestrator.flows.order.carry_out`.
    """

    def plan_part(part: Target, agent: Agent, found: wire.SurveyReport) -> Part:
        return Part(part, agent, found, plan_teardown(part, found, options))

    with _looked_at(target, connect, options, observer, patience, plan_part) as parts:
        plan = whole_plan(parts)
        if all(part.found.server is None for part in parts):
            observer.plan(plan)
            return Outcome(plan)
        arrangement = Arrangement(parts[0].agent, parts[0].target, observer)
        plan = arrangement.shown_in(plan)
        if not settle(plan, options, observer, confirm):
            return Outcome(plan, lock=_lock(parts))
        return Outcome(plan, carry_out(parts, plan, arrangement, options, observer, connect, interruption))


@contextmanager
def _looked_at(
    target: Target,
    connect: Connect,
    options: Options,
    observer: Observer,
    patience: Patience,
    plan_part: Callable[[Target, Agent, wire.SurveyReport], Part],
) -> Iterator[list[Part]]:
    """Every node's part with its plan, their connections open."""
    with ExitStack() as stack:
        parts = []
        for each in target.parts():
            agent = stack.enter_context(connect(each))
            observer.note(f"looking at rank {each.rank} in {each.place}: what runs, what is installed")
            found = survey_when_free(agent, each, observer, patience, looks_only=options.plan_only)
            _refuse_half_done(each, found)
            parts.append(plan_part(each, agent, found))
        yield parts


def _refuse_half_done(part: Target, found: wire.SurveyReport) -> None:
    order = found.order
    if order is not None and order.half_done:
        raise UnfinishedOrderError(
            f"the {order.kind} {order.order_id} of rank {part.rank} in {part.place} reads {order.state}: it comes to its end first",
            next_step=part.command("resume"),
        )


def _lock(parts: Sequence[Part]) -> wire.PersonLock | None:
    """A person's lock on any of the nodes: it keeps the change away from all."""
    return next((part.found.lock for part in parts if part.found.lock is not None), None)


def whole_plan(parts: Sequence[Part]) -> Plan:
    """Rank 0's plan with what the other nodes add to it: what speaks against them, what would be typed there."""
    head, others = parts[0], parts[1:]
    where = ", ".join(part.name for part in parts)
    verdicts, refusals = list(head.plan.verdicts), list(head.plan.refusals)
    overruled, by_hand = list(head.plan.overruled), list(head.plan.by_hand)
    for part in others:
        notable = [verdict for verdict in part.plan.verdicts if verdict.outcome != wire.Outcome.PASS]
        verdicts += [dataclasses.replace(verdict, detail=f"{part.name}: {verdict.detail}") for verdict in notable]
        refusals += [f"{part.name}: {refusal}" for refusal in part.plan.refusals]
        overruled += [f"{part.name}: {text}" for text in part.plan.overruled]
        by_hand += [f"# {part.name}", *part.plan.by_hand]
    remarks = [f"over {len(parts)} nodes, all or none: {where}", *head.plan.remarks]
    if head.plan.verb != wire.OrderKind.TEARDOWN:
        remarks.append(
            "it does not come back by itself after a crash or a restart of a machine: a part that came back alone would serve nothing"
        )
    gone = [part.name for part in parts if part.found.server is None]
    if head.plan.verb != wire.OrderKind.LAUNCH and 0 < len(gone) < len(parts):
        remarks.append(f"nothing runs as {', '.join(gone)}, so there is nothing whole to go back to")
    next_step = head.plan.next_step or next((part.plan.next_step for part in others if part.plan.next_step), None)
    return dataclasses.replace(
        head.plan,
        server=head.plan.server or next((part.plan.server for part in others if part.plan.server), None),
        verdicts=verdicts,
        refusals=refusals,
        overruled=overruled,
        by_hand=by_hand,
        remarks=remarks,
        next_step=next_step,
        order_id=head.plan.order_id or look.new_id(),
    )
