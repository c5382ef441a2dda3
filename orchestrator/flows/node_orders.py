"""The orders of a service over several nodes: submitted all or none, watched as one, and taken up again together.

All parts' orders have one id. That of rank 0 is submitted last: no supervisor touches anything before it has met all the others, so
where one is not taken, the others end by themselves. What follows needs nobody here. Rank 0's order is what is watched, since its end
is everybody's.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.ranks import Point
from orchestrator.agent.wire_words import locked_by
from orchestrator.errors import ConnectionLostError, LockedError, OrchestratorError, RefusedError
from orchestrator.flows.afterwards import Arrangement
from orchestrator.flows.follow import AnyOrder, Follower
from orchestrator.flows.hooks import run_before, run_untaken
from orchestrator.flows.locks import lock_status
from orchestrator.flows.observer import Hiding, Observer
from orchestrator.flows.order import SUBMIT_SECONDS, Interruption, Options, cancel, make_order, submit, watch
from orchestrator.flows.plan import Plan
from orchestrator.flows.target import Agent, Connect, Target

if TYPE_CHECKING:
    from orchestrator.results.hook_run import HookRun

_AFTERWARDS_SECONDS = 90.0
"""For the orders of the other nodes to end once rank 0's has: they meet it at its last point."""
_FINAL_GOOD = frozenset({wire.State.DONE, wire.State.RESTORED})


@dataclass(frozen=True)
class Part:
    """One node's part of a change: where, what was planned there, and the launch with its secrets (None: nothing is started)."""

    target: Target
    agent: Agent
    found: wire.SurveyReport
    plan: Plan
    launch: wire.Launch | None = None

    @property
    def name(self) -> str:
        """What the screen calls it."""
        return f"rank {self.target.rank} in {self.target.place}"


def orders(parts: Sequence[Part], plan: Plan, options: Options) -> list[wire.Order]:
    """One order a part, all of one id.

    Only rank 0 times the server. None is staged, since two servers would meet on one address, and none comes back by itself, since a
    part that comes back alone serves nothing.
    """
    # HOST:PORT by the model's own check.
    address, _, port = str(parts[0].target.service.dist_init_addr).rpartition(":")
    token = secrets.token_hex(16)
    made = []
    for part in parts:
        order = make_order(part.target, part.plan, options, part.launch)
        rank = part.target.rank
        policy = order.policy if rank == 0 else dataclasses.replace(order.policy, measure=False)
        group = wire.RankGroup(rank, len(parts), address.strip("[]"), int(port) - 1, token)
        server = part.found.server
        old = None if server is None else server.main
        made.append(
            dataclasses.replace(
                order,
                order_id=plan.order_id,
                policy=policy,
                old=old,
                group=group,
                boot=False,
                staged=False,
                estimate=None,
                router=None if rank else order.router,
            )
        )
    return made


def carry_out(
    parts: Sequence[Part],
    plan: Plan,
    arrangement: Arrangement,
    options: Options,
    observer: Observer,
    connect: Connect,
    interruption: Interruption,
) -> wire.OrderResult:
    """Run the commands before the orders, submit them all, and follow them to their end. What is done around them goes with rank 0's.

    Raises:
        LockedError, RefusedError: a box won't, or a command before it failed; nothing was touched on any.
        ConnectionLostError, InterruptedByOperatorError: see :func:`orchestrator.flows.order.carry_out`.
    """
    head = parts[0]
    made = orders(parts, plan, options)
    made[0] = arrangement.laid_into(made[0], plan)
    begun = run_before(head.target, made[0], observer, force=options.force)
    try:
        _submit_all(parts, made, observer, connect)
    except ConnectionLostError:
        raise
    except OrchestratorError as error:
        if begun:
            run_untaken(head.target, made[0], observer, error.message, error.exit_code)
        raise
    taken = [_Taken(part.target, part.agent, order) for part, order in zip(parts, made, strict=True)]
    return _watch_all(taken, f"runs on {len(parts)} nodes on its own, each with a supervisor", observer, connect, interruption)


@dataclass(frozen=True)
class _Taken:
    """An order that a node has, whoever gave it."""

    target: Target
    agent: Agent
    order: AnyOrder


def _watch_all(taken: Sequence[_Taken], begun: str, observer: Observer, connect: Connect, interruption: Interruption) -> wire.OrderResult:
    """Tell the first one's story, then what became of the others."""
    head, others = taken[0], taken[1:]
    result = watch(head.agent, head.target, head.order, _Withheld(observer), connect, interruption, begun)
    whole = whole_result(result, [(other.target, _end_of(other, observer, connect)) for other in others])
    observer.result(whole)
    return whole


def _submit_all(parts: Sequence[Part], made: Sequence[wire.Order], observer: Observer, connect: Connect) -> None:
    """Submit every part's order, that of rank 0 last; where one is not taken, those that were are taken back.

    Raises:
        LockedError, RefusedError, ConnectionLostError: one was not taken. Nothing is touched before all have met.
    """
    taken: list[tuple[Part, wire.Order]] = []
    for part, order in reversed(list(zip(parts, made, strict=True))):
        unknown = (
            f"whether {part.target.place} took the {order.kind} {order.order_id} is not known; without it none of them touches anything"
        )
        try:
            holder = submit(part.agent, part.target, order, unknown)
        except (OrchestratorError, KeyboardInterrupt):
            for other, theirs in taken:
                cancel(other.target, theirs, observer, connect)
            raise
        taken.append((part, order))
        observer.note(f"{part.name}: {order.kind} {order.order_id} is taken ({holder})")


def resume(
    target: Target,
    order_id: str | None,
    observer: Observer,
    found: Callable[[wire.OrderStatus], None],
    interruption: Interruption,
    connect: Connect,
) -> wire.OrderResult:
    """Take an order up again on all nodes on which it was cut off, and follow it: together they finish or roll back.

    Where it has ended on a node, its supervisor says nothing any more: how it ended is told to those that go on.

    Raises:
        RefusedError: there is no such order, or it has ended everywhere.
        LockedError: it is at work, or a person has locked the service on one of the nodes.
        ConnectionLostError, InterruptedByOperatorError: see :func:`orchestrator.flows.order.watch`.
    """
    with ExitStack() as stack:
        parts = [(part, stack.enter_context(connect(part))) for part in target.parts()]
        chosen = order_id or _cut_off(parts)
        stands = [(part, agent, lock_status(agent, part, chosen)) for part, agent in parts]
        taken = [_Taken(part, agent, stand.order) for part, agent, stand in stands if stand.order is not None]
        _refuse_to_resume(target, chosen, stands)
        orders_by_rank = [(part.rank, stand.order) for part, _, stand in stands]
        found(next(order for _, order in orders_by_rank if order is not None))
        ended = [standing for rank, order in orders_by_rank if (standing := ended_standing(rank, order)) is not None]
        for part, agent, stand in stands:
            if stand.order is None or not _is_cut_off(stand.order):
                continue
            reference = wire.OrderReference(part.service.name, part.state_root, stand.order.order_id, ranks=wire.KnownRanks(ended))
            holder = agent.ask("resume", reference, wire.Submitted, SUBMIT_SECONDS).holder
            observer.note(f"rank {part.rank} in {part.place}: cut off as {stand.order.state}, goes on ({holder})")
        return _watch_all(taken, f"goes on on the {len(taken)} nodes that have it", observer, connect, interruption)


def _cut_off(parts: Sequence[tuple[Target, Agent]]) -> str | None:
    """The newest order that was cut off, by any node's word; None where none was."""
    newest = [lock_status(agent, part).order for part, agent in parts]
    return next((order.order_id for order in newest if order is not None and _is_cut_off(order)), None)


def _is_cut_off(order: wire.OrderStatus) -> bool:
    return order.state.startswith("INTERRUPTED")


def _refuse_to_resume(target: Target, order_id: str | None, stands: Sequence[tuple[Target, Agent, wire.LockStatus]]) -> None:
    known = [(part, stand.order) for part, _, stand in stands if stand.order is not None]
    if not known:
        what = f"there is no order {order_id}" if order_id else "there was no order yet"
        raise RefusedError(f"{what} of {target.service.name} on any of its nodes", next_step=target.command("status"))
    if any(_is_cut_off(order) for _, order in known):
        locked = next(((part, stand.person) for part, _, stand in stands if stand.person is not None), None)
        if locked is not None:
            part, person = locked
            raise LockedError(
                f"rank {part.rank} in {part.place}: {locked_by(part.service.name, person)}", next_step=part.command("lock.status")
            )
        return
    part, order = next(((part, order) for part, order in known if order.live), known[0])
    step = part.command("attach", f"--order {order.order_id}")
    if order.live:
        raise LockedError(f"the {order.kind} {order.order_id} is at work, in {order.state}: nothing to resume", next_step=step)
    raise RefusedError(f"nothing to resume: the {order.kind} {order.order_id} has ended: {order.state}", next_step=step)


def ended_standing(rank: int, order: wire.OrderStatus | None) -> wire.RankStanding | None:
    """Where a node's supervisor stood when it ended; None while it has not."""
    if order is None:
        return wire.RankStanding(rank, failure="it never had this order", down=True, left=True)
    if order.state == wire.State.DONE:
        return wire.RankStanding(rank, Point.DONE, left=True)
    if order.state == wire.State.RESTORED:
        return wire.RankStanding(rank, Point.BACK_READY, "it has gone back", left=True)
    if order.state in wire.State.FINAL:
        return wire.RankStanding(rank, failure=f"its order ended as {order.state}", down=True, left=True)
    return None


def _end_of(taken: _Taken, observer: Observer, connect: Connect) -> wire.OrderResult | OrchestratorError:
    """How another node's order ended; why that is not known, where it can't be read."""
    try:
        return Follower(taken.agent, taken.target, taken.order, _Hushed(observer), connect).to_end(_AFTERWARDS_SECONDS)
    except OrchestratorError as error:
        return error


def whole_result(head: wire.OrderResult, ends: Sequence[tuple[Target, wire.OrderResult | OrchestratorError]]) -> wire.OrderResult:
    """Rank 0's result with a verdict for each other node; what went worse there than with rank 0 is the whole's exit code."""
    verdicts, code, step = list(head.verdicts), head.exit_code, head.next_step
    for part, end in ends:
        check = f"rank {part.rank}"
        if isinstance(end, OrchestratorError):
            warning = f"{part.place}: how it ended is not known: {end.message}"
            verdicts.append(wire.Verdict(check, wire.Outcome.UNKNOWN, warning, next_step=part.command("attach")))
            continue
        good = end.state == head.state and end.state in _FINAL_GOOD | {wire.State.REFUSED}
        told = None if good else part.command("status" if end.state in wire.State.FINAL else "resume")
        outcome = wire.Outcome.PASS if good else wire.Outcome.WARN
        verdicts.append(wire.Verdict(check, outcome, f"{part.place}: {end.state}: {end.summary}", next_step=told))
        verdicts += [
            dataclasses.replace(verdict, detail=f"{part.place}: {verdict.detail}", next_step=part.named(verdict.next_step))
            for verdict in end.verdicts
            if verdict.outcome != wire.Outcome.PASS
        ]
        if end.state != head.state and end.exit_code > code:
            code, step = end.exit_code, told
    return dataclasses.replace(head, verdicts=verdicts, exit_code=code, next_step=step)


class _Hushed(Hiding):
    """Hears of another node's order what an observer need not: rank 0's tells the story, and a warning is one wherever it comes from."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer.hide)
        self._observer = observer

    def warn(self, text: str) -> None:
        self._observer.warn(text)


class _Withheld(_Hushed):
    """Tells all of rank 0's order but its result, which is to be the whole's, and the plan, which was told."""

    @property
    def kept_in(self) -> str | None:
        return self._observer.kept_in

    def note(self, text: str) -> None:
        self._observer.note(text)

    def state(self, entry: wire.StateEntry) -> None:
        self._observer.state(entry)

    def progress(self, progress: wire.Progress) -> None:
        self._observer.progress(progress)

    def log(self, text: str) -> None:
        self._observer.log(text)

    def collected(self, collected: wire.Collected) -> None:
        self._observer.collected(collected)

    def hook(self, run: HookRun) -> None:
        self._observer.hook(run)

    def notice(self, fate: wire.Fate) -> None:
        self._observer.notice(fate)
