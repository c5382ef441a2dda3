"""Sweep: relaunch a service at one point after another, time each, and end on the best or where it began.

Each relaunch is one order, with all its checks and its way back, and each timing one run; both keep run folders of their own. The
journal (:mod:`orchestrator.results.sweep_journal`) has a line before each order and one after each end, so that a sweep whose operator was
killed goes on from what is known, and asks the box for the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from orchestrator.agent import wire
from orchestrator.errors import (
    InterruptedByOperatorError,
    LockedError,
    OrchestratorError,
    RefusedError,
    ServiceDownError,
    UnfinishedOrderError,
)
from orchestrator.flows.attach import attach, resume
from orchestrator.flows.locks import lock_status
from orchestrator.flows.measure import MeasureOptions, measure, reasons
from orchestrator.flows.observer import Observer, Observers
from orchestrator.flows.order import Confirm, Interruption, Outcome
from orchestrator.flows.plan import Plan
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.rollback import rollback
from orchestrator.flows.sweep_plan import SweepPlan, options_for, overlay, seen
from orchestrator.flows.sweep_words import change_words, timing_words, told
from orchestrator.flows.swept import Swept, choose, load_sides, swept
from orchestrator.flows.target import Connect, Target, connect
from orchestrator.results import measurements
from orchestrator.results.floor import Given
from orchestrator.results.runs import RunFolder, RunFolders, operator_name
from orchestrator.results.sweep import Close, Finish, Launch, Look, Standing, Time, next_action
from orchestrator.results.sweep_journal import SweepJournal
from orchestrator.results.sweep_records import Allowed, Begun, Changed, Dropped, Finished, Ordered, Resumed, Seen, Skipped, Timed

TakeUp = Callable[[str], bool]
"""Asked before an order that was cut off is started again, with what there is to say of it."""


class SweepObserver(Protocol):
    """Hears of a sweep's steps."""

    def begins(self, step: str, doing: str) -> Observer:
        """A step begins; whoever is returned hears what goes on in it."""

    def ends(self, step: str, said: str, *, good: bool) -> None:
        """How it ended, or how a part of it did."""


@dataclasses.dataclass(frozen=True)
class Place:
    """What a sweep works on, and how it is reached."""

    target: Target
    connect: Connect = connect
    open: Open = open_agent


def begin(journal: SweepJournal, plan: SweepPlan, allowed: Allowed) -> None:
    """Write down what a new sweep tries, or that one is taken up again with what serves now."""
    if plan.standing is not None:
        journal.append(Resumed(operator_name(), plan.seen))
        return
    design = wire.to_json(plan.design)
    journal.append(Begun(design, plan.host, plan.place, plan.service, operator_name(), plan.seen, plan.start_launch, allowed))


def find_end(
    place: Place, journal: SweepJournal, observer: SweepObserver, folders: RunFolders, interruption: Interruption, take_up: TakeUp
) -> None:
    """Find the end of the order that a sweep was at when it was cut off, if there is one; it is waited for where it is at work.

    Raises:
        UnfinishedOrderError: that was cut off too, and `take_up` says no to bringing it to its end.
        ServiceDownError, UnreachableError, InterruptedByOperatorError: see :func:`carry_on`.
    """
    order = journal.standing.order
    if order is not None:
        with _resumable(place.target, journal.path.parent):
            _Runner(place, journal, observer, folders, interruption).look(order, take_up)


def carry_on(place: Place, journal: SweepJournal, observer: SweepObserver, folders: RunFolders, interruption: Interruption) -> Swept:
    """Try what is left, and end it.

    Raises:
        ServiceDownError: nothing serves any more.
        LockedError: somebody else is changing the service, or has changed it meanwhile.
        UnreachableError: the place can't be reached any more; an order that it was given goes on there.
        InterruptedByOperatorError: Ctrl-C. Each of these leaves a sweep that can be taken up again.
    """
    runner = _Runner(place, journal, observer, folders, interruption)
    with _resumable(place.target, journal.path.parent):
        while not isinstance(action := next_action(runner.standing), Finish | None):
            if isinstance(action, Look):
                runner.look(action.order, lambda what: False)
            elif isinstance(action, Time):
                runner.time(action.step)
            elif isinstance(action, Launch):
                runner.launch(action.step, action.point)
            elif not runner.close(action):
                break
        return runner.finish()


@contextmanager
def _resumable(target: Target, folder: Path) -> Iterator[None]:
    """What stops a sweep tells how it is taken up again, after what there is to do first."""
    step = target.command("sweep", f"--resume {folder.name}")
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedByOperatorError("interrupted here; no order is at work, and nothing more is begun", next_step=step) from None
    except InterruptedByOperatorError as error:
        error.evidence += [f"to do no more than watch: {error.next_step}"] if error.next_step else []
        error.next_step = step
        raise
    except OrchestratorError as error:
        if error.next_step:
            error.evidence.append(f"the sweep goes on after that: {step}")
        error.next_step = error.next_step or step
        raise


class _Runner:
    """Takes one action after another. All that is decided is decided from the journal."""

    def __init__(
        self, place: Place, journal: SweepJournal, observer: SweepObserver, folders: RunFolders, interruption: Interruption
    ) -> None:
        self._place = place
        self._target = place.target
        self._journal = journal
        self._observer = observer
        self._folders = folders
        self._ask = interruption
        self._stopping = False

    @property
    def standing(self) -> Standing:
        return self._journal.standing

    def launch(self, step: int, point: int) -> None:
        """Relaunch the service at a point."""
        design = self.standing.design
        wanted = design.points[point]
        profiles = self._target.inventory.backends_named(wanted.backend)
        options = options_for(self.standing.begun.allowed, first=self.standing.at_start, reason=self._reason(step, wanted.label))
        options = dataclasses.replace(options, overlay=overlay(design, wanted))

        def change(observer: Observer, confirm: Confirm) -> Outcome:
            return relaunch(self._target, profiles, options, observer, confirm, self._place.connect, self._place.open, self._interruption)

        self._change(step, point, wanted.label if step < self.standing.last_step else f"to the best point: {wanted.label}", change)

    def _go_back(self) -> None:
        """Bring back what served at the beginning, by the box's own record of it."""
        standing = self.standing
        step = standing.last_step
        options = options_for(standing.begun.allowed, first=False, reason=self._reason(step, "back to where it began"))

        def change(observer: Observer, confirm: Confirm) -> Outcome:
            return rollback(
                self._target,
                standing.start_launch,
                options,
                observer,
                confirm,
                self._place.connect,
                self._place.open,
                self._interruption,
            )

        self._change(step, None, "back to where it began", change)

    def _change(self, step: int, point: int | None, doing: str, change: Callable[[Observer, Confirm], Outcome]) -> None:
        folder = self._folders.new("relaunch")
        observer = Observers([self._observer.begins(self._named(step), doing), folder])
        try:
            outcome = change(observer, self._confirm(step, point, folder))
        except RefusedError as error:
            folder.begin()
            kept = {"category": error.category, "message": error.message, "evidence": error.evidence, "next_step": error.next_step}
            folder.keep("error.json", {**kept, "exit_code": error.exit_code})
            why = "; ".join(error.evidence) or error.message
            self._append(Skipped(step, error.message, error.evidence, _name(folder)), f"refused: {why}")
            return
        assert outcome.result is not None, "it was confirmed"
        self._ended(step, outcome.result, _name(folder))

    def _confirm(self, step: int, point: int | None, folder: RunFolder) -> Confirm:
        """The sweep was said yes to as a whole. An order's own question is whether what serves is what the sweep has left there."""

        def confirm(plan: Plan) -> bool:
            if plan.launch is None:
                raise UnfinishedOrderError("somebody else's order was left half-done", next_step=self._target.command("resume"))
            self._require_ours(plan.server)
            folder.begin()
            self._journal.append(Ordered(step, point, plan.order_id, _name(folder)))
            return True

        return confirm

    def _require_ours(self, server: wire.ServerInfo | None) -> None:
        expected = self.standing.seen
        if server is None:
            raise ServiceDownError("nothing serves any more", next_step=self._target.command("doctor"))
        found = seen(server)
        if expected.is_known and not expected.is_same(found):
            raise LockedError(
                f"somebody else has changed what serves: {told(found)}, and the sweep had left {told(expected)}",
                next_step=self._target.command("status"),
            )

    def _interruption(self, order: str) -> bool:
        self._stopping = self._ask(order)
        return self._stopping

    def _ended(self, step: int, result: wire.OrderResult, run: str) -> None:
        """Write down how an order ended.

        Raises:
            ServiceDownError, UnfinishedOrderError, InterruptedByOperatorError: the sweep can't, or is not to, go on.
        """
        if result.state not in wire.State.FINAL:
            raise UnfinishedOrderError(f"the order was cut off: {result.state}: {result.summary}", next_step=result.next_step)
        touched = result.state != wire.State.REFUSED or result.failure is not None
        if self._stopping and not touched:
            self._journal.append(Dropped(step))
        else:
            category = result.failure.category if result.failure is not None else None
            lost, dark = result.lost_requests, result.dark_seconds
            end = Changed(step, result.state, result.summary, category, result.launch_id, dark, lost, run)
            self._append(end, change_words(result), good=result.state == wire.State.DONE)
        if result.state == wire.State.DOWN:
            raise ServiceDownError(f"the service is down: {result.summary}", evidence=[result.service], next_step=result.next_step)
        if self._stopping:
            raise InterruptedByOperatorError("stopped as you asked; what serves is as the last line says")

    def look(self, order: Ordered, take_up: TakeUp) -> None:
        """Ask the box for the end of an order that was handed in, waiting for it where it is at work."""
        view = self._observer.begins(self._named(order.step), f"looking for the end of order {order.order_id}")
        observer = Observers([view, self._folders.again(self._root / order.run)])
        with self._place.connect(self._target) as agent:
            status = lock_status(agent, self._target, order.order_id).order
        if status is None or status.order_id != order.order_id:
            self._append(Dropped(order.step), "the box never took that order")
            return
        if status.half_done and not take_up(f"the {status.kind} {status.order_id} was cut off: {status.state}"):
            what = f"the {status.kind} {status.order_id} was cut off half-way: {status.state}"
            raise UnfinishedOrderError(what, next_step=self._target.command("resume"))
        follow = resume if status.half_done else attach
        result = follow(self._target, order.order_id, observer, interruption=self._interruption, connect=self._place.connect)
        if result.failure is None and result.exit_code == RefusedError.exit_code:
            self._append(Dropped(order.step), f"nothing was touched: {result.summary}")
            return
        self._ended(order.step, result, order.run)

    def time(self, step: int) -> None:
        """Time the launch that serves."""
        standing = self.standing
        options = MeasureOptions(**dataclasses.asdict(standing.design.timing))
        observer = self._observer.begins(self._named(step), f"timing {self._label(step)}")
        folder = self._folders.new("measure")
        try:
            measured = measure(self._target, options, observer, self._place.connect, self._place.open)
        except RefusedError as error:
            self._append(Timed(step, "", [error.message]), f"not timed: {error.message}")
            return
        report = measured.report
        found = report.covariates
        if found.launch_id != standing.seen.launch_id:
            timed = told(Seen(found.launch_id, found.main_pid))
            raise LockedError(f"somebody else has changed what serves: {timed} was timed, not {told(standing.seen)}")
        folder.begin()
        place = (self._target.host.name, self._target.place, self._target.service.name)
        measurements.keep(folder, *place, report, Given.of(self._target.service))
        against = reasons(report.invalid)
        words = f"not to be believed: {'; '.join(against)}" if against else timing_words(report.batches)
        self._append(Timed(step, _name(folder), against), words, good=not against)

    def close(self, action: Close) -> bool:
        """Go to where it is to end; whether that took a relaunch."""
        standing = self.standing
        choice = choose(self._journal.records, standing, load_sides(standing, self._root))
        if standing.design.restore or choice.best is None:
            if standing.at_start or standing.start_launch is None:
                return False
            self._go_back()
            return True
        if choice.best == standing.point:
            return False
        self.launch(standing.last_step, choice.best)
        return True

    def finish(self) -> Swept:
        """Say what was found, and write it down."""
        found = swept(self._journal.records, self._root)
        if found.standing.finished is not None:
            return found
        self._journal.append(Finished(found.exit_code, found.choice.best, found.said))
        return dataclasses.replace(found, standing=self.standing)

    @property
    def _root(self) -> Path:
        """Where the run folders lie."""
        return self._journal.path.parent.parent

    def _append(self, record: Changed | Dropped | Skipped | Timed, said: str, *, good: bool = False) -> None:
        self._journal.append(record)
        self._observer.ends(self._named(record.step), said, good=good)

    def _named(self, step: int) -> str:
        total = self.standing.last_step
        return f"{step + 1}/{total}" if step < total else "end"

    def _label(self, step: int) -> str:
        design = self.standing.design
        return design.points[design.steps[step]].label

    def _reason(self, step: int, what: str) -> str:
        own = self.standing.begun.allowed.reason
        return f"{self._journal.path.parent.name}, {self._named(step)}: {what}" + (f" ({own})" if own else "")


def _name(folder: RunFolder) -> str:
    return folder.path.name
