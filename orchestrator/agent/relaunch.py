"""The state machine that changes a service: relaunch, launch and teardown are orders to the same machine.

::

    CHECKED -> LOCKED -> [BASELINE] -> [WARMING] -> [STAGING] -> [LEAVING] -> DRAINING -> STOPPING -> CLEAN -> STARTING -> LOADING
            -> ANSWERING -> VERIFIED -> [MEASURED] -> DONE
    ACTIVATING instead of STARTING where the new server was staged: started beside the old one, up to its gate (:mod:`staging`)
    any failure in STAGING -> REFUSED, with the old server as it was
    any failure after STOPPING -> ROLLING_BACK -> [STAGING] -> STARTING or ACTIVATING -> RESTORED | DOWN (:mod:`rolling_back`)

What it decides is here; what it does to the world is behind :class:`steps.Steps`, so that each path can be walked in a test
without a server. Before a step that can't be taken back, the journal says what is about to be done.
"""

import dataclasses
from typing import Any, Callable, Dict, Optional

from orchestrator.agent import relaunch_words as words
from orchestrator.agent import wire
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.history import BOOT, FAILURE, RESUMED, STOPPING, History
from orchestrator.agent.rank_waits import RankWaits
from orchestrator.agent.ranks import Group, Point
from orchestrator.agent.rolling_back import Rollback
from orchestrator.agent.router_steps import RouterSteps
from orchestrator.agent.sglang import node_count
from orchestrator.agent.staging import Staging
from orchestrator.agent.starting import start
from orchestrator.agent.steps import CAPACITY_CHECK, LaunchFailed, Observed, Previous, Ready, Recorder, Steps, Stopped
from orchestrator.agent.walk import MOST_RESUMES, Walk
from orchestrator.agent.wire import OrderKind, Outcome, State

__all__ = ["MOST_RESUMES", "Relaunch"]


_NOT_THE_LAUNCHS = (Category.CANCELLED, Category.REBOOTED, Category.SUPERVISOR_ENDED, Category.NOT_DRAINED)
"""Failures that say nothing of the launch that was staged."""


class Relaunch:
    """One order from CHECKED to a final state, or from where it was cut off. For the arguments see :class:`walk.Walk`."""

    def __init__(
        self,
        order: wire.Order,
        steps: Steps,
        journal: Recorder,
        boot: str = "",
        cancelled: Callable[[], Optional[str]] = lambda: None,
        router: Optional[RouterSteps] = None,
        group: Optional[Group] = None,
    ) -> None:
        self._order = order
        self._steps = steps
        self._journal = journal
        self._walk = Walk(order, steps, journal, boot, cancelled, router, group)
        self._ranks = RankWaits(self._walk)
        self._staging = Staging(self._walk)
        self._rollback = Rollback(self._walk, self._staging)
        self._announced = False

    @property
    def touched(self) -> bool:
        """Whether the service itself may have been touched: an error before that has refused the order."""
        return self._walk.touched

    def run(self) -> wire.OrderResult:
        """Carry the order out; returns when it has come to a final state, whatever happens on the way.

        Raises:
            AgentRefusal, OSError: before anything was touched.
        """
        refusal = self._check()
        if refusal is not None:
            return self._walk.finish(State.REFUSED, 3, refusal, "unchanged")
        self._journal.reserve()
        self._walk.say(State.LOCKED, f"held for {self._order.operator}" + (f": {self._order.reason}" if self._order.reason else ""))
        if self._walk.previous is not None and self._order.kind != OrderKind.TEARDOWN:
            self._look_at_old(self._walk.previous)
            self._staging.warm()
        return self._stage()

    def resume(self, history: History) -> wire.OrderResult:
        """Go on where a supervisor was ended: finish or roll back, from what the journal and the box show.

        Raises:
            AgentRefusal, OSError: before anything was touched.
        """
        walk = self._walk
        walk.left_router = walk.has_left = history.left_router
        rebooted = history.boot is not None and history.boot != walk.boot
        if not history.touched:
            if rebooted:
                if walk.left_router:
                    walk.recall(history)  # what comes back by itself is in no router
                return walk.finish(State.REFUSED, 3, "the machine was restarted before this order had touched anything", "unchanged")
            return self.run()
        if history.only_staged:
            return self._resume_staging(history, rebooted=rebooted)
        walk.touched = True
        self._ranks.regain(history)
        count = self._take_up(history, rebooted=rebooted)
        if not rebooted:
            self._staging.take_over(history)
        if history.failure is not None:
            return self._rollback.resume(history, history.failure, rebooted=rebooted)
        if rebooted or count > MOST_RESUMES:
            return self._turn_back(history, rebooted=rebooted)
        if history.state in STOPPING:
            return self._clear_the_way(stopping=history.state == State.STOPPING)
        if history.state == State.CLEAN:
            return self._replace(walk.judge(self._steps.clean(self._journal.progress)))
        return self._serve(self._new_launch(), history)

    def _take_up(self, history: History, *, rebooted: bool) -> int:
        """Know again what is known, and say in the journal that it goes on; how often it has been taken up now."""
        self._walk.recall(history)
        count = history.resumed + 1
        what = "the machine was restarted" if rebooted else "its supervisor was ended"
        line = f"{what} in {history.state}; going on from the journal"
        self._walk.tell(history.state, line, {RESUMED: count, BOOT: self._walk.boot})
        return count

    def _resume_staging(self, history: History, *, rebooted: bool) -> wire.OrderResult:
        """Go on with a launch beside an old server that was left alone so far."""
        self._staging.take_over(history)
        try:
            count = self._take_up(history, rebooted=rebooted)
        except Exception:
            self._staging.end()
            raise
        if rebooted:
            return self._refuse_staged(wire.Failure(Category.REBOOTED, "the machine was restarted while the new server was being staged"))
        if self._walk.previous is None:
            return self._refuse_staged(
                wire.Failure(Category.UNEXPECTED, "what was kept of the old server, to bring it back, can't be read any more")
            )
        if count > MOST_RESUMES:
            summary = f"the supervisor was ended {count} times, the last time in {State.STAGING}"
            return self._without_staged(wire.Failure(Category.SUPERVISOR_ENDED, summary, advice=words.WHAT_ENDED_IT))
        return self._stage()

    def _turn_back(self, history: History, *, rebooted: bool) -> wire.OrderResult:
        """What can't go forward any more goes back; only what was proven to serve before a restart of the machine is started again."""
        if self._order.kind == OrderKind.TEARDOWN:
            return self._replace(self._walk.judge(self._steps.clean(self._journal.progress)))
        launch = None if history.state in STOPPING or history.state == State.CLEAN else self._order.new
        if rebooted and launch is not None and history.state in (State.VERIFIED, State.MEASURED):
            return self._serve(launch, None)
        if rebooted:
            failure = wire.Failure(Category.REBOOTED, f"the machine was restarted in {history.state}")
            return self._rollback.begin(launch, failure, rebooted=True)
        summary = f"the supervisor was ended {history.resumed + 1} times, the last time in {history.state}"
        return self._rollback.begin(launch, wire.Failure(Category.SUPERVISOR_ENDED, summary, advice=words.WHAT_ENDED_IT), staged=False)

    def _check(self) -> Optional[str]:
        server = self._steps.find()
        wanted = self._order.old
        elsewhere = _over_other_nodes(self._order, server)
        if elsewhere is not None:
            return elsewhere
        if server is not None and wanted is None:
            if self._order.kind == OrderKind.TEARDOWN:
                return f"process {server.main.pid} serves port {server.port} now, but the plan showed none"
            return f"process {server.main.pid} already serves port {server.port}: use relaunch to replace it"
        if wanted is not None and server is None:
            return f"the server that the plan showed (process {wanted.pid}) has ended meanwhile; look again"
        if server is not None and server.main != wanted:
            return f"another server (process {server.main.pid}) is there now than the plan showed; look again"
        if server is not None:
            self._walk.previous = self._steps.capture()
        checked: Dict[str, Any] = {"server": server, "order": self._order.kind, BOOT: self._walk.boot}
        if self._order.overruled:
            checked["overruled"] = {"by": self._order.operator, "checks": self._order.overruled}
        self._walk.say(State.CHECKED, words.describe(server), checked)
        return None

    def _look_at_old(self, previous: Previous) -> None:
        walk = self._walk
        walk.say(State.BASELINE, "the old server is looked at while it serves")
        try:
            walk.observed = self._steps.observe(previous)
        except Exception as error:  # noqa: BLE001 - nothing was touched yet, and less is compared afterwards: verify says so
            walk.observed = Observed(remark=f"an unexpected error: {error!r}")
        if self._order.policy.measure:
            walk.baseline = walk.measure(previous.launch)

    def _stage(self) -> wire.OrderResult:
        """Have the new server wait at its gate, where the plan said so, and then make way for it."""
        why = self._walk.cancelled()
        if why is not None and not self._staging.begun:
            return self._walk.finish(State.REFUSED, 3, f"stopped before anything was touched: {why}", "unchanged")
        try:
            if why is not None:
                self._walk.pulse()
            self._staging.bring_to_gate()
        except Exception as error:
            if not self._staging.begun:
                raise
            return self._without_staged(words.failure_of(error))
        try:
            self._walk.leave_router()
        except LaunchFailed as error:
            return self._without_staged(error.failure)
        if self._walk.group.rank and self._walk.previous is not None:
            # Once all are there rank 0 ends this node's part too: a supervisor that is ended meanwhile has to know that it was to go.
            self._announce_stop()
        try:
            self._ranks.gather()
        except LaunchFailed as error:
            summary = f"{error.failure.summary}; nothing was touched"
            return self._walk.finish(State.REFUSED, 3, summary, "unchanged", error.failure)
        return self._clear_the_way()

    def _without_staged(self, failure: wire.Failure) -> wire.OrderResult:
        """The new server does not wait at its gate: nothing has happened to the old one, or it has died and comes back as by a rollback."""
        if self._staging.look_at_old():
            return self._refuse_staged(failure)
        self._staging.end()
        self._staging.failure = failure
        return self._clear_the_way()

    def _refuse_staged(self, failure: wire.Failure) -> wire.OrderResult:
        self._staging.end()
        if self._staging.started and failure.category not in _NOT_THE_LAUNCHS:
            self._walk.failed_launch = self._new_launch().launch_id
        exit_code = 4 if failure.category == "rights" else 3
        return self._walk.finish(State.REFUSED, exit_code, f"{failure.summary}; the old server was left alone", "unchanged", failure)

    def _clear_the_way(self, *, stopping: bool = False) -> wire.OrderResult:
        """Stop what is there, then bring the new server up. `stopping`: a supervisor was ended while it did."""
        previous = self._walk.previous
        try:
            if previous is not None:
                self._announce_stop()
                failure = None if stopping else self._why_not_stop()
                if failure is not None:
                    summary = f"{failure.summary}; this node's part of the old server was left alone"
                    return self._walk.finish(State.REFUSED, 3, summary, "unchanged", failure)
            remains = self._stop_old() if previous is not None else self._end_leftovers()
        except Exception as error:
            if previous is None or not (self.touched or self._staging.old_died):
                self._staging.end()
                self._walk.rejoin_router()
                raise
            # A stop that broke off half-way must not leave the service without a server.
            return self._rollback.begin(None, words.unexpected(error))
        return self._replace(remains)

    def _why_not_stop(self) -> Optional[wire.Failure]:
        """Of a server over several nodes rank 0 stops first. Where it does not, and this node's part lives, the old one may go on whole."""
        try:
            self._ranks.wait_for_stop_of_head()
        except LaunchFailed as error:
            return error.failure if self._steps.find() is not None else None
        return None

    def _announce_stop(self) -> None:
        """Keep what the old server is compared by, and journal that it will be signalled."""
        walk, staging = self._walk, self._staging
        if self.touched or self._announced:
            return
        self._announced = True
        if not staging.begun:
            self._steps.remember(walk.observed, walk.baseline)
        reason = "it has died by itself; ending what is left of it" if staging.old_died else words.stopping(walk.order.policy)
        reason = f"once rank 0 has stopped: {reason}" if walk.group.rank else reason
        walk.say(State.DRAINING, reason, None if staging.failure is None else {FAILURE: staging.failure})

    def _stop_old(self) -> Optional[wire.Verdict]:
        """Stop it and wait until nothing of it is left; the verdict that forbids a start, if there is one."""
        walk, staging = self._walk, self._staging
        stopped = staging.dated(self._steps.stop(walk.report_touch, walk.tell))
        walk.touched = True
        walk.group.reach(Point.STOPPED)
        walk.stopped = dataclasses.replace(stopped, boot=walk.boot)
        crash_point("stopped")
        remains = walk.judge(self._steps.clean(self._journal.progress))
        if remains is None:
            walk.tell(State.CLEAN, stopped.summary, {"verdicts": walk.verdicts, "stopped": walk.stopped})
        return remains

    def _end_leftovers(self) -> Optional[wire.Verdict]:
        """End what is left of earlier launches; the verdict that forbids a start, if there is one."""
        walk = self._walk
        left = self._steps.leftovers()
        if not left:
            return None
        walk.say(State.STOPPING, f"{len(left)} processes are left of an earlier launch", {"processes": left})
        walk.touched = True
        remains = walk.judge(self._steps.end_leftovers(self._journal.progress))
        if remains is None:
            walk.stopped = Stopped(f"nothing was running; {len(left)} processes left of an earlier launch were ended", evidence=left)
            walk.tell(State.CLEAN, walk.stopped.summary, {"verdicts": walk.verdicts})
        return remains

    def _replace(self, remains: Optional[wire.Verdict]) -> wire.OrderResult:
        """What follows a stop. `remains` is what forbids a start."""
        if remains is not None:
            self._staging.end()
            return self._walk.down(f"nothing was started: {remains.detail}", next_step=remains.next_step)
        if self._order.kind == OrderKind.TEARDOWN or self._order.new is None:
            self._walk.group.reach(Point.CLEAN)
            stopped = self._walk.stopped
            return self._walk.finish(State.DONE, 0, stopped.summary if stopped else "nothing was running", "down, as asked")
        try:
            self._ranks.meet_clean()
        except LaunchFailed as error:
            return self._rollback.begin(None, error.failure)
        return self._serve(self._order.new, None)

    def _new_launch(self) -> wire.Launch:
        assert self._order.new is not None, "only an order with a new launch gets beyond CLEAN"
        return self._order.new

    def _serve(self, launch: wire.Launch, history: Optional[History]) -> wire.OrderResult:
        """Bring the new server up, or go on with it where `history` was cut off."""
        try:
            if history is not None and history.state in (State.VERIFIED, State.MEASURED):
                self._walk.require_serving(launch)
                answered, loaded = history.answered, []
            else:
                ready = self._bring_up(launch, history)
                answered, loaded = ready.first_answer, ready.observed.facts
            self._walk.rejoin_router(launch)  # clients wait for it, and a timing would keep them waiting
            measured = self._measure_new(launch)
            self._ranks.conclude(launch)
        except Exception as error:
            # Whatever breaks between stop and ready, the service must come back.
            if not self.touched and not isinstance(error, LaunchFailed):
                raise
            return self._rollback.begin(launch, words.failure_of(error))
        return self._walk.finish(
            State.DONE,
            0,
            f"{launch.backend} serves",
            "serving",
            dark_until=answered,
            launch=launch,
            measured=measured,
            staged=self._staging.begun,
            saved_seconds=None if self._staging.old_died else self._staging.gate_seconds,
            loaded=loaded,
        )

    def _bring_up(self, launch: wire.Launch, history: Optional[History]) -> Ready:
        walk = self._walk
        ready = self._staging.go_on(history) if self._staging.begun else start(walk, Previous(launch), history, self._ranks.pulse)
        self._ranks.meet_ready(launch)
        verdicts = self._steps.verify(launch, walk.observed, ready.observed, self._journal.progress)
        walk.verdicts += verdicts
        wrong = [verdict for verdict in verdicts if verdict.outcome == Outcome.REFUSE]
        if wrong:
            category = Category.KV_CAPACITY if wrong[0].check == CAPACITY_CHECK else Category.WRONG_ANSWERS
            raise LaunchFailed(wire.Failure(category, wrong[0].detail, wrong[0].evidence, wrong[0].next_step or ""))
        self._ranks.meet_verified(launch)
        walk.mark_verified(launch, ready)
        walk.tell(State.VERIFIED, words.verified(verdicts), {"verdicts": verdicts})
        return ready

    def _measure_new(self, launch: wire.Launch) -> Optional[wire.DecodeTiming]:
        if not self._order.policy.measure:
            return None
        measured = self._walk.measure(launch)
        if measured.skipped is not None:
            self._walk.require_serving(launch)
        self._walk.tell(State.MEASURED, measured.skipped or f"{measured.tokens_per_second:.2f} tok/s", {"timing": measured})
        return measured


def _over_other_nodes(order: wire.Order, server: Optional[wire.ServerInfo]) -> Optional[str]:
    """Why the order does not fit: what it would stop or start goes over another number of nodes than it has parts."""
    parts = 1 if order.group is None else order.group.count
    for what, arguments in (
        ("the server that runs", None if server is None else server.arguments),
        ("the new server", None if order.new is None else order.new.arguments),
    ):
        if arguments is not None and node_count(arguments) != parts:
            return f"{what} goes over {node_count(arguments)} nodes, and this order is for {parts}"
    return None
