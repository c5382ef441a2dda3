"""A service over several nodes: one order on each of them, all or none, and one story told of it.

Each node's part is looked at and checked as a service on one node is; the plans become one. Then each part's order, all of one id, is
submitted, that of rank 0 last: no supervisor touches anything before it has met all the others, so where one is not taken, the others
end by themselves. What follows needs nobody here. Rank 0's order is what is watched, since its end is everybody's.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.errors import OrchestratorError, RefusedError
from orchestrator.flows import look
from orchestrator.flows.doctor import host_beside
from orchestrator.flows.follow import Follower
from orchestrator.flows.locks import Patience, survey_when_free
from orchestrator.flows.observer import Hiding, Observer
from orchestrator.flows.order import Confirm, Interruption, Options, Outcome, cancel, make_order, policy_for, settle, submit, watch
from orchestrator.flows.plan import Plan
from orchestrator.flows.relaunch import checked, plan_change, refuse_when_serving
from orchestrator.flows.target import Agent, Connect, Target
from orchestrator.flows.teardown import plan_teardown

if TYPE_CHECKING:
    from orchestrator.config import Backend
    from orchestrator.flows.prep import Open
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
        policy = policy_for(part, options) if verb == wire.OrderKind.RELAUNCH else None
        version = str(found.sglang_version)
        ask = functools.partial(look.preflight, agent, part, new, backends, version, signs, policy, sequential=options.sequential)
        report = checked(agent, part, new, ask, asked_host)
        # Where the whole would stay as it is, rank 0's part says so.
        chosen = options if part.rank == 0 else dataclasses.replace(options, again=True)
        return Part(part, agent, found, plan_change(verb, part, new, found, report, chosen), new)

    with _looked_at(target, connect, options, observer, patience, plan_part) as parts:
        plan = whole_plan(parts)
        if not settle(plan, options, observer, confirm):
            return Outcome(plan)
        return Outcome(plan, _carry_out(parts, plan, options, observer, connect, interruption))


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
        if not settle(plan, options, observer, confirm):
            return Outcome(plan)
        return Outcome(plan, _carry_out(parts, plan, options, observer, connect, interruption))


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
        raise RefusedError(
            f"the {order.kind} {order.order_id} of rank {part.rank} in {part.place} reads {order.state}: it comes to its end first",
            next_step=part.command("resume"),
        )


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
            dataclasses.replace(order, order_id=plan.order_id, policy=policy, old=old, group=group, boot=False, staged=False, estimate=None)
        )
    return made


def _carry_out(
    parts: Sequence[Part], plan: Plan, options: Options, observer: Observer, connect: Connect, interruption: Interruption
) -> wire.OrderResult:
    made = orders(parts, plan, options)
    _submit_all(parts, made, observer, connect)
    head = parts[0]
    withheld = _Withheld(observer)
    begun = f"runs on {len(parts)} nodes on its own, each with a supervisor"
    result = watch(head.agent, head.target, made[0], withheld, connect, interruption, begun)
    ends = [(part, _end_of(part, order, observer, connect)) for part, order in zip(parts[1:], made[1:], strict=True)]
    whole = whole_result(result, ends)
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


def _end_of(part: Part, order: wire.Order, observer: Observer, connect: Connect) -> wire.OrderResult | OrchestratorError:
    """How another node's order ended; why that is not known, where it can't be read."""
    try:
        return Follower(part.agent, part.target, order, _Hushed(observer), connect).to_end(_AFTERWARDS_SECONDS)
    except OrchestratorError as error:
        return error


def whole_result(head: wire.OrderResult, ends: Sequence[tuple[Part, wire.OrderResult | OrchestratorError]]) -> wire.OrderResult:
    """Rank 0's result with a verdict for each other node; what went worse there than with rank 0 is the whole's exit code."""
    verdicts, code, step = list(head.verdicts), head.exit_code, head.next_step
    for part, end in ends:
        check = f"rank {part.target.rank}"
        if isinstance(end, OrchestratorError):
            warning = f"{part.target.place}: how it ended is not known: {end.message}"
            verdicts.append(wire.Verdict(check, wire.Outcome.UNKNOWN, warning, next_step=part.target.command("attach")))
            continue
        good = end.state == head.state and end.state in _FINAL_GOOD | {wire.State.REFUSED}
        outcome = wire.Outcome.PASS if good else wire.Outcome.WARN
        told = None if good else part.target.command("status")
        verdicts.append(wire.Verdict(check, outcome, f"{part.target.place}: {end.state}: {end.summary}", next_step=told))
        verdicts += [
            dataclasses.replace(verdict, detail=f"{part.target.place}: {verdict.detail}", next_step=part.target.named(verdict.next_step))
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
