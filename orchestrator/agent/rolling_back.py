"""The way back: end what failed and bring the previous server up again. Part of the state machine (:mod:`relaunch`).

Where the order is a staged one, the previous launch comes to its gate while what failed is ended, and goes on from there. Nothing of
the way back hangs on that: whatever goes wrong with it, the previous launch is started plainly then.
"""

import dataclasses
from typing import Callable, Optional

from orchestrator.agent import relaunch_words as words
from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.history import FAILED_LAUNCH, FAILURE, History
from orchestrator.agent.rank_waits import RankWaits
from orchestrator.agent.staging import Staging
from orchestrator.agent.starting import Pulse, StagedStart, start
from orchestrator.agent.steps import LaunchFailed, Previous, Ready
from orchestrator.agent.walk import MOST_RESUMES, Walk
from orchestrator.agent.wire import OrderKind, Outcome, State, Verdict

_GATE_SECONDS = 120.0
"""For the previous launch to come to its gate, where nobody saw how long the new one took; it is dark meanwhile."""
_GATE_SECONDS_AT_LEAST = 30.0
_GATE_FACTOR = 2.0
"""How many times as long as the new one it may take."""


class Rollback:
    """Brings the previous server back, or says why nothing serves; always with a result."""

    def __init__(self, walk: Walk, staging: Staging) -> None:
        self._walk = walk
        self._staging = staging
        self._back: Optional[StagedStart] = None
        self._ranks = RankWaits(walk)

    def begin(
        self, launch: Optional[wire.Launch], failure: wire.Failure, *, rebooted: bool = False, staged: bool = True
    ) -> wire.OrderResult:
        """Turn back. `launch` is the one that failed, None when the stop of the old server broke off. `staged`: the way back may be."""
        walk = self._walk
        walk.group.turn_back(failure.summary)
        walk.failed_launch = None if launch is None else launch.launch_id
        walk.tell(State.ROLLING_BACK, failure.summary, {FAILURE: failure, FAILED_LAUNCH: walk.failed_launch})
        return self._guarded(failure, lambda: self._go_back(launch, failure, rebooted=rebooted, staged=staged and not rebooted))

    def resume(self, history: History, failure: wire.Failure, *, rebooted: bool) -> wire.OrderResult:
        """Go on with a way back that was cut off."""
        walk, intent = self._walk, history.starting
        walk.group.turn_back(failure.summary)
        launch = walk.order.new if history.failed_launch is not None else None
        if walk.previous is not None and intent is not None and intent.gate_port is not None and not rebooted:
            self._back = StagedStart(walk, walk.previous.launch)
            self._back.take_over(intent, history)
        if history.resumed > 2 * MOST_RESUMES:
            self._end_back(history)
            summary = f"{failure.summary}; then rolling back was cut off {history.resumed + 1} times"
            return walk.finish(State.DOWN, 7, summary, "not known to serve", failure)
        if intent is None or rebooted or walk.previous is None:
            return self.begin(launch, failure, rebooted=rebooted, staged=history.resumed < MOST_RESUMES)
        back = self._back
        if back is not None:
            return self._guarded(failure, lambda: self._go_on_with(back, launch, failure, history))
        target = Previous(dataclasses.replace(walk.previous.launch, launch_id=intent.launch_id), walk.previous.unit)
        return self._guarded(failure, lambda: self._put_back(target, failure, history))

    def _guarded(self, failure: wire.Failure, step: Callable[[], wire.OrderResult]) -> wire.OrderResult:
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - the operator must learn that the service may be down, and why
            self._end_back()
            summary = f"{failure.summary}; then rolling back failed: {words.unexpected(error).summary}"
            return self._walk.finish(State.DOWN, 7, summary, "not known to serve", failure)

    def _go_back(self, launch: Optional[wire.Launch], failure: wire.Failure, *, rebooted: bool, staged: bool) -> wire.OrderResult:
        walk = self._walk
        walk.leave_router_again()
        if launch is None:
            self._staging.end()
        elif staged:
            self._stage_previous()
        unit = None if walk.previous is None else walk.previous.unit
        if not (rebooted and unit):  # somebody's unit may have come up with the machine, and then holds its port rightly
            remains = self._clear_away(launch)
            if remains is not None:
                return self._nothing_put_back(remains, failure)
        if walk.previous is None:
            return walk.down(f"{failure.summary}; there was no server to put back", failure)
        if walk.order.kind == OrderKind.TEARDOWN:
            return walk.down(f"the teardown broke off: {failure.summary}; nothing of it is left", failure)
        try:
            self._ranks.meet_back_clean()
        except LaunchFailed as another:
            return walk.down(f"{failure.summary}; nothing was put back: {another.failure.summary}", failure)
        if self._back is not None:
            return self._put_back_staged(self._back, failure, None)
        return self._put_back(self._anew(walk.previous), failure, None)

    def _clear_away(self, launch: Optional[wire.Launch]) -> Optional[Verdict]:
        """End what failed; what is left of it and forbids a start, if there is anything."""
        steps, report = self._walk.steps, self._walk.journal.progress
        return self._walk.judge(steps.clean(report) if launch is None else steps.stop_launch(launch, report))

    def _nothing_put_back(self, remains: Verdict, failure: wire.Failure) -> wire.OrderResult:
        self._end_back()
        return self._walk.down(f"{failure.summary}; nothing was put back: {remains.detail}", failure, next_step=remains.next_step)

    def _anew(self, previous: Previous) -> Previous:
        """The previous server as it is started again: its unit, or its launch under a new id."""
        if previous.unit is not None:
            return previous
        launch_id = self._walk.steps.new_launch_id()
        return dataclasses.replace(previous, launch=dataclasses.replace(previous.launch, launch_id=launch_id))

    def _stage_previous(self) -> None:
        """Start the previous launch beside the one that failed, where that can be."""
        previous = self._walk.previous
        if previous is None or previous.unit is not None or not self._staging.asked:
            return
        back = StagedStart(self._walk, self._anew(previous).launch)
        try:
            room = self._walk.steps.room(back.launch)
            if room.outcome != Outcome.PASS:
                self._walk.journal.progress("sequential", f"the previous server is started after the other has ended: {room.detail}")
                return
            back.begin("while what failed is ended; nothing answers")
        except Exception as error:  # noqa: BLE001 - it is started plainly then
            self._tell_plain(error)
            back.end()
            return
        self._back = back

    def _tell_plain(self, error: Exception) -> None:
        detail = f"the previous server could not be staged and is started plainly: {words.failure_of(error).summary}"
        self._walk.verdicts.append(Verdict("staged rollback", Outcome.WARN, detail))

    def _put_back_staged(self, back: StagedStart, failure: wire.Failure, history: Optional[History]) -> wire.OrderResult:
        """Have the staged previous launch go on; where it does not come to serve, start it plainly."""
        walk = self._walk
        try:
            if history is None or history.state in (State.ROLLING_BACK, State.STAGING):
                back.wait(self._hurry())
            ready = back.go_on(history, lambda: None)
        except Exception as error:  # noqa: BLE001 - see above
            self._tell_plain(error)
            self._back = None
            if not back.activated:
                back.end()
            else:
                remains = walk.judge(walk.steps.stop_launch(back.launch, walk.journal.progress))
                if remains is not None:
                    return self._nothing_put_back(remains, failure)
            assert walk.previous is not None, "it was staged"
            return self._put_back(self._anew(walk.previous), failure, None)
        return self._serves_again(Previous(back.launch), failure, ready, staged=True)

    def _go_on_with(self, back: StagedStart, launch: Optional[wire.Launch], failure: wire.Failure, history: History) -> wire.OrderResult:
        """Go on with a staged way back that was cut off; one that ends its supervisor again and again is given up."""
        if history.state != State.STAGING:
            return self._put_back_staged(back, failure, history)
        if history.resumed >= MOST_RESUMES or not back.look_whether_started():
            self._end_back()
            return self._go_back(launch, failure, rebooted=False, staged=False)
        remains = self._clear_away(launch)
        if remains is not None:
            return self._nothing_put_back(remains, failure)
        return self._put_back_staged(back, failure, history)

    def _end_back(self, history: Optional[History] = None) -> None:
        """End what was staged of the previous launch, unless it went on from its gate."""
        back, self._back = self._back, None
        if back is not None and not back.activated and (history is None or history.state == State.STAGING):
            back.end()

    def _hurry(self) -> Pulse:
        """A wait for the gate ends the sooner the sooner the new server was there: meanwhile it is dark."""
        known = self._staging.gate_seconds
        seconds = _GATE_SECONDS if known is None else max(_GATE_SECONDS_AT_LEAST, _GATE_FACTOR * known)
        deadline = Deadline(seconds)

        def pulse() -> None:
            if deadline.passed:
                raise LaunchFailed(wire.Failure(Category.TIMED_OUT, f"it was not at its gate within {seconds:.0f} s"))

        return pulse

    def _put_back(self, target: Previous, failure: wire.Failure, history: Optional[History]) -> wire.OrderResult:
        walk = self._walk
        try:
            ready = start(walk, target, history, walk.group.pulse_back)
            self._ranks.meet_back_ready()
        except LaunchFailed as again:
            if target.unit is None:
                # It would go on loading with nobody looking, hold the GPUs, and keep the port from the next launch.
                walk.judge(walk.steps.stop_launch(target.launch, walk.journal.progress))
            summary = f"{failure.summary}; then the previous server failed too: {again.failure.summary}"
            return walk.down(summary, failure, launch=target.launch)
        return self._serves_again(target, failure, ready)

    def _serves_again(self, target: Previous, failure: wire.Failure, ready: Ready, *, staged: bool = False) -> wire.OrderResult:
        if target.unit is None:
            self._walk.mark_verified(target.launch, ready)
        return self._walk.finish(
            State.RESTORED,
            6,
            failure.summary,
            "the previous server serves again",
            failure,
            dark_until=ready.first_answer,
            launch=target.launch,
            staged=staged,
            loaded=ready.observed.facts,
        )
