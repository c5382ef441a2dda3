"""Roll: relaunch the replicas behind a router one after the other, each out of the router while it changes.

Each relaunch is one order, with all its checks and its way back. The next replica is begun only when all serve again by the router's own
count and requests have reached the one before; the first that fails ends the roll, itself restored and back in. The journal
(:mod:`orchestrator.results.roll_journal`) has a line before each thing that is done to the router or the box and one as it has ended, so
that a roll whose operator was killed goes on from what is known, and asks the box and the router for the rest.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.errors import (
    InterruptedByOperatorError,
    OrchestratorError,
    RefusedError,
    UnfinishedOrderError,
)
from orchestrator.flows.attach import attach, resume
from orchestrator.flows.locks import lock_status
from orchestrator.flows.observer import Observer, Observers
from orchestrator.flows.order import Confirm, Interruption
from orchestrator.flows.plan import Plan
from orchestrator.flows.quietly import Quietly
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.roll_lock import RouterLock
from orchestrator.flows.roll_plan import Fleet, RollPlan, options_for
from orchestrator.flows.roll_router import RollRouter, ended_words, quiet_words
from orchestrator.flows.sweep import SweepObserver, TakeUp
from orchestrator.flows.sweep_words import change_words
from orchestrator.results.roll import Finish, Look, PutIn, Return, Standing, Take, counted, ids_of, next_action, was_restarted
from orchestrator.results.roll_journal import RollJournal
from orchestrator.results.roll_records import (
    Begun,
    By,
    Changed,
    Counted,
    Dropped,
    Finished,
    Ordered,
    PutBack,
    Refused,
    Removing,
    Resumed,
    Returned,
    Skipped,
)
from orchestrator.results.runs import RunFolder, RunFolders, operator_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.config import Backend
    from orchestrator.results.sweep_records import Allowed

Folders = Callable[[str], RunFolders]
"""The run folders of a replica's relaunches, by its service."""


def begin(journal: RollJournal, plan: RollPlan, allowed: Allowed) -> None:
    """Write down what a new roll does, or that one is taken up again."""
    if plan.standing is not None:
        journal.append(Resumed(operator_name()))
        return
    replicas = [item.replica for item in plan.replicas]
    ids = ids_of(plan.view, list(plan.workers))
    journal.append(Begun(plan.router, plan.backend, replicas, operator_name(), plan.before, ids, allowed, secrets.token_hex(8)))
    for item in plan.replicas:
        if item.already:
            journal.append(Skipped(item.replica.service))


def never(what: str) -> bool:
    """What is said where nobody can be asked whether an order that was cut off is started again."""
    return False


class Roll:
    """Takes one action after another. All that is decided is decided from the journal."""

    def __init__(
        self,
        fleet: Fleet,
        profiles: Sequence[Backend],
        journal: RollJournal,
        observer: SweepObserver,
        folders: Folders,
        interruption: Interruption,
        take_up: TakeUp = never,
    ) -> None:
        self._fleet = fleet
        self._profiles = profiles
        self._journal = journal
        self._observer = observer
        self._folders = folders
        self._ask = interruption
        self._take_up = take_up
        self._router = RollRouter(fleet)
        self._lock = RouterLock(fleet)
        self._stopping = False

    @property
    def standing(self) -> Standing:
        return self._journal.standing

    def finish_turn(self) -> None:
        """Bring the replica to its end that a roll was cut off at: its order is waited for, and it is in the router again.

        Raises:
            UnfinishedOrderError: its order was cut off too, and `take_up` says no to bringing that to its end.
            LockedError: another roll goes on behind that router.
            RouterError, ServiceDownError, UnreachableError, InterruptedByOperatorError: see :meth:`carry_on`.
        """
        with self._resumable():
            self._take_lock()
            while isinstance(action := next_action(self.standing), Look | Return | PutIn):
                self._do(action)

    def carry_on(self) -> Standing:
        """Take the replicas that are left, and end it.

        Raises:
            RouterError: the router does not answer, or does not do what it has accepted; or it was restarted and has forgotten replicas.
            LockedError: another roll goes on behind that router, or somebody else changes a replica.
            ServiceDownError, UnreachableError: see :func:`orchestrator.flows.relaunch.relaunch`.
            InterruptedByOperatorError: Ctrl-C. Each of these leaves a roll that can be taken up again.
        """
        with self._resumable():
            self._take_lock()
            while (action := next_action(self.standing)) is not None:
                if isinstance(action, Take):
                    self._take(action.service)
                elif isinstance(action, Finish):
                    self._finish()
                else:
                    self._do(action)
        return self.standing

    def _take_lock(self) -> None:
        if self.standing.finished is None:
            self._lock.take(self._journal.path.parent.name, self.standing.begun.token)

    def _do(self, action: Look | Return | PutIn) -> None:
        if isinstance(action, Look):
            self._look(action.order)
        elif isinstance(action, Return):
            self._return(action.service)
        else:
            self._put_in(action.service)

    def _take(self, service: str) -> None:
        """Relaunch one replica. It leaves the router only when its relaunch was checked."""
        standing = self.standing
        target = self._fleet.target(service)
        view = self._observer.begins(standing.step(service), f"{service} to {standing.begun.backend}")
        quiet = Quietly(view)
        folder = self._folders(service).new("relaunch")
        observer = Observers([view, quiet, folder])
        options = options_for(standing.begun.allowed, self._reason(service))
        if standing.replica(service).by == By.SUPERVISOR:
            options = dataclasses.replace(options, router=self._router.seat(standing.replica(service)))
        self._router.require(self._fleet.workers, standing)
        self._router.require_servers([item.service for item in self._fleet.router.replicas if item.service != service])
        try:
            outcome = relaunch(
                target,
                self._profiles,
                options,
                observer,
                self._confirm(service, folder, view),
                self._fleet.connect,
                self._fleet.open,
                self._interruption,
            )
        except RefusedError as error:
            self._refused(service, folder, quiet.seen, error)
            return
        assert outcome.result is not None, "it was confirmed"
        self._ended(service, outcome.result, folder.path.name)

    def _refused(self, service: str, folder: RunFolder, plan: Plan | None, error: RefusedError) -> None:
        turn = self.standing.turn
        if plan is not None and plan.changes_nothing and turn is None:
            self._journal.append(Skipped(service))
            self._observer.ends(self.standing.step(service), f"{service} serves as wanted already", good=True)
            return
        folder.begin()
        kept = {"category": error.category, "message": error.message, "evidence": error.evidence, "next_step": error.next_step}
        folder.keep("error.json", {**kept, "exit_code": error.exit_code})
        why = "; ".join(error.evidence) or error.message
        self._journal.append(Refused(service, error.message, error.evidence))
        self._observer.ends(self.standing.step(service), f"refused: {why}", good=False)

    def _confirm(self, service: str, folder: RunFolder, view: Observer) -> Confirm:
        """The roll was said yes to as a whole. What is left to an order is to have its replica out of the router first."""

        def confirm(plan: Plan) -> bool:
            target = self._fleet.target(service)
            if plan.launch is None:
                raise UnfinishedOrderError("somebody else's order was left half-done", next_step=target.command("resume"))
            if plan.server is None:
                raise RefusedError("nothing serves there any more", next_step=target.command("doctor"))
            folder.begin()
            if self.standing.replica(service).by == By.OPERATOR:
                self._take_out(service, view)
            self._journal.append(Ordered(service, plan.order_id, folder.path.name))
            return True

        return confirm

    def _take_out(self, service: str, view: Observer) -> None:
        """Have the router send the replica no more, and wait until it has no request left.

        Raises:
            RefusedError: it still has some when the time is over, or too few others serve; it is put back then, by what comes next.
        """
        replica, target = self.standing.replica(service), self._fleet.target(service)
        others = [url for url in self._fleet.workers if url != replica.worker]
        self._router.require(others, self.standing)
        self._journal.append(Removing(service))
        view.note(f"taking {service} out of router {self._fleet.router.name}")
        self._fleet.asked.remove(replica.worker)
        self._router.require(others, self.standing)
        try:
            report = self._router.wait_quiet(target, view)
        except KeyboardInterrupt:
            self._put_in(service)
            raise
        self._observer.ends(self.standing.step(service), quiet_words(report), good=report.quiet)
        if not report.quiet:
            raise RefusedError(
                f"{service} still has requests {self._fleet.router.drain:g} s after the router sends it no more",
                evidence=[quiet_words(report)],
                next_step=f"drain: in the file of router {self._fleet.router.name} is to be as long as the longest request",
            )

    def _interruption(self, order: str) -> bool:
        self._stopping = self._ask(order)
        return self._stopping

    def _ended(self, service: str, result: wire.OrderResult, run: str) -> None:
        """Write down how an order ended."""
        if result.state not in wire.State.FINAL:
            raise UnfinishedOrderError(f"the order was cut off: {result.state}: {result.summary}", next_step=result.next_step)
        category = result.failure.category if result.failure is not None else None
        end = Changed(service, result.state, result.summary, category, result.launch_id, result.dark_seconds, result.lost_requests, run)
        self._journal.append(end)
        self._observer.ends(self.standing.step(service), change_words(result), good=result.state == wire.State.DONE)

    def _look(self, order: Ordered) -> None:
        """Ask the box for the end of an order that was handed in, waiting for it where it is at work."""
        target, step = self._fleet.target(order.service), self.standing.step(order.service)
        view = self._observer.begins(step, f"looking for the end of order {order.order_id} of {order.service}")
        observer = Observers([view, self._folders(order.service).again(self._root / order.run)])
        with self._fleet.connect(target) as agent:
            status = lock_status(agent, target, order.order_id).order
        if status is None or status.order_id != order.order_id:
            self._journal.append(Dropped(order.service))
            self._observer.ends(step, "the box never took that order", good=False)
            return
        if status.half_done and not self._take_up(f"the {status.kind} {status.order_id} was cut off: {status.state}"):
            what = f"the {status.kind} {status.order_id} was cut off half-way: {status.state}"
            raise UnfinishedOrderError(what, next_step=target.command("resume"))
        follow = resume if status.half_done else attach
        result = follow(target, order.order_id, observer, interruption=self._interruption, connect=self._fleet.connect)
        if result.failure is None and result.exit_code == RefusedError.exit_code:
            self._journal.append(Dropped(order.service))
            self._observer.ends(step, f"nothing was touched: {result.summary}", good=False)
            return
        self._ended(order.service, result, order.run)

    def _put_in(self, service: str) -> None:
        """Have a replica in the router again that was taken out and not changed."""
        view = self._observer.begins(self.standing.step(service), f"{service} back into router {self._fleet.router.name}, unchanged")
        url = self.standing.replica(service).worker
        joined = self._fleet.asked.add(url, self._fleet.worker_key(service, view), self._fleet.router.join)
        self._journal.append(PutBack(service, ids_of(joined, [url]).get(url)))
        self._observer.ends(self.standing.step(service), f"{service} is in the router again, as it was", good=True)

    def _return(self, service: str) -> None:
        """Have a replica in the router again that was changed, and see requests reach it."""
        replica = self.standing.replica(service)
        view = self._observer.begins(self.standing.step(service), f"{service} back into router {self._fleet.router.name}")
        returned = self._router.bring_in(replica, self._fleet.worker_key(service, view), view)
        self._journal.append(returned)
        self._observer.ends(self.standing.step(service), ended_words(returned), good=returned.requests != 0)

    def _finish(self) -> None:
        standing = self.standing
        after: Counted | None = None
        restarted = False
        said = _said(standing)
        try:
            view = self._fleet.asked.look()
            after = counted(view.counters)
            restarted = was_restarted(standing, view, after)
        except OrchestratorError as error:
            said += f"; the router can't be asked for its counters: {error.message}"
        try:
            self._lock.release(standing.begun.token)
        except OrchestratorError as error:
            said += f"; its lock could not be released: {error.message}"
        self._journal.append(Finished(standing.exit_code, said, after, restarted))

    @contextmanager
    def _resumable(self) -> Iterator[None]:
        """What stops a roll tells how it is taken up again, after what there is to do first."""
        step = self._fleet.command(f"--resume {self._journal.path.parent.name}")
        try:
            yield
        except KeyboardInterrupt:
            raise InterruptedByOperatorError(f"interrupted here; {self._where()}", next_step=step) from None
        except InterruptedByOperatorError as error:
            error.evidence += [f"to do no more than watch: {error.next_step}"] if error.next_step else []
            error.next_step = step
            raise
        except OrchestratorError as error:
            error.evidence.append(self._where())
            if error.next_step:
                error.evidence.append(f"the roll goes on after that: {step}")
            error.next_step = error.next_step or step
            raise

    def _where(self) -> str:
        """How the replica that is under way is left."""
        turn = self.standing.turn
        if turn is None:
            return "no replica is under way; what the router has was left as it is"
        if turn.order is not None:
            return f"the order of {turn.service} goes on on its box; whether it is in the router is looked up when the roll is taken up"
        if turn.changed is not None:
            return f"{turn.service} serves ({turn.changed.state}) and may not be in the router yet"
        return f"{turn.service} serves and is out of the router"

    @property
    def _root(self) -> Path:
        """Where the run folders lie."""
        return self._journal.path.parent.parent

    def _reason(self, service: str) -> str:
        own = self.standing.begun.allowed.reason
        return f"{self._journal.path.parent.name}, {self.standing.step(service)}" + (f" ({own})" if own else "")


def _said(standing: Standing) -> str:
    rolled = sum(1 for end in standing.done.values() if isinstance(end, Returned))
    total = len(standing.begun.replicas)
    if standing.stop is not None:
        how = {6: "it was put back and is in the router again", 7: "nothing serves there now"}
        left = how.get(standing.stop.exit_code, "it was left as it was and is in the router")
        return f"stopped at {standing.stop.service}: {standing.stop.why}; {left}; {rolled} of {total} replicas were changed"
    passed = total - rolled
    return f"{rolled} of {total} replicas were changed" + (f", {passed} served so already" if passed else "")
