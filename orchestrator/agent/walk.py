"""One order on its way through the states: what the parts of the state machine know in common, the journal, and the result."""

import contextlib
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from orchestrator.agent import relaunch_words as words
from orchestrator.agent import wire
from orchestrator.agent.clock import steady
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.history import RESULT, USUAL, History
from orchestrator.agent.phases import BEYOND_GATE
from orchestrator.agent.ranks import Alone, Group
from orchestrator.agent.router_steps import RouterSteps
from orchestrator.agent.steps import LaunchFailed, Observed, Previous, Ready, Recorder, Steps, Stopped
from orchestrator.agent.wire import Outcome, State

MOST_RESUMES = 3
"""How often an order goes on forward after its supervisor was killed; after that it rolls back, as it may be what kills it."""


class Walk:
    """What is known so far, and how it is told.

    Args:
        boot: which boot of the machine this is (:func:`own_session.boot_identity`).
        cancelled: why the operator wants it stopped safely; None as long as nobody does.
        router: takes the server out of its router and has it in; None: it stands behind none, or somebody else does that.
        group: the supervisors of the server's other nodes.
    """

    def __init__(
        self,
        order: wire.Order,
        steps: Steps,
        journal: Recorder,
        boot: str,
        cancelled: Callable[[], Optional[str]],
        router: Optional[RouterSteps] = None,
        group: Optional[Group] = None,
    ) -> None:
        self.group: Group = Alone() if group is None else group
        self.order = order
        self.steps = steps
        self.journal = journal
        self.boot = boot
        self.cancelled = cancelled
        self.router = router
        self.left_router = False
        """Whether the server may be out of its router, so that what serves in the end has to be in again."""
        self.has_left = False
        """Whether it was taken out of its router at some time, so that what fails later may be in again."""
        self.held_seconds: Optional[float] = None
        """From the server's removal from its router until its successor was in."""
        self._left_at: Optional[float] = None
        self._router_empty: Optional[wire.Verdict] = None
        """What the router said when its only server was to be in again, and is not."""
        self.previous: Optional[Previous] = None
        self.baseline: Optional[wire.DecodeTiming] = None
        self.observed = Observed()
        self.stopped: Optional[Stopped] = None
        self.failed_launch: Optional[str] = None
        self.verdicts: List[wire.Verdict] = []
        self.touched = False
        """Whether the old server may have been signalled, or anything started in its place: until then an error refuses the order, from
        then on it rolls back."""
        self._gaps = len(steady.gaps())

    def recall(self, history: History) -> None:
        """Know again what a supervisor knew that was ended."""
        recalled = self.steps.recall()
        if recalled is not None:
            self.previous, self.observed, self.baseline = recalled.previous, recalled.observed, recalled.baseline
        self.stopped = history.stopped
        self.verdicts = list(history.verdicts)
        self.failed_launch = history.failed_launch

    def pulse(self) -> None:
        """Raise LaunchFailed when the operator wants it stopped safely."""
        why = self.cancelled()
        if why is not None:
            raise LaunchFailed(wire.Failure(Category.CANCELLED, f"stopped safely: {why}"))

    def say(self, state: str, reason: str, data: Optional[Dict[str, Any]] = None) -> None:
        """Journal what is about to be done: until something is touched, nothing is done without it."""
        if self.touched:
            return self.tell(state, reason, data)
        self.journal.state(state, reason, self._with_gaps(data))
        return crash_point(f"journal: {state}")

    def tell(self, state: str, reason: str, data: Optional[Dict[str, Any]] = None) -> None:
        """Journal what has happened already. Bringing the service back does not wait for a disk with room."""
        with contextlib.suppress(OSError):
            self.journal.state(state, reason, self._with_gaps(data))
        crash_point(f"journal: {state}")

    def _with_gaps(self, data: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
        """A line's data, and for how long this place stood still since the line before: no deadline ran then."""
        gaps = steady.gaps(self._gaps)
        self._gaps += len(gaps)
        return {**(data or {}), "stood_still": [round(gap.seconds, 1) for gap in gaps]} if gaps else data

    def report_touch(self, phase: str, detail: str) -> None:
        """A stop's first report comes after its first signal."""
        self.touched = True
        crash_point(f"stop: {phase}")
        self.journal.progress(phase, detail)

    def judge(self, verdicts: List[wire.Verdict]) -> Optional[wire.Verdict]:
        """Keep the verdicts of a clean gate and return the one that closes it."""
        self.verdicts += verdicts
        return next((verdict for verdict in verdicts if verdict.outcome == Outcome.REFUSE), None)

    def measure(self, launch: wire.Launch) -> wire.DecodeTiming:
        """A timing is never worth a serving server: whatever goes wrong in it is told in its place."""
        try:
            return self.steps.measure(launch, self.journal.progress)
        except Exception as error:  # noqa: BLE001 - see above
            return wire.DecodeTiming(skipped=f"an unexpected error: {error!r}")

    def usual(self, launch: wire.Launch, *, beyond_gate: bool = False) -> Dict[str, Any]:
        """The data of a line on a load: how long its phases should take. It is for whoever watches, and worth no failure."""
        try:
            known = self.steps.usual(launch)
            return {USUAL: {phase: usual for phase, usual in known.items() if not beyond_gate or phase in BEYOND_GATE}}
        except Exception:  # noqa: BLE001 - see above
            return {}

    def require_serving(self, launch: wire.Launch) -> None:
        """Raise LaunchFailed when the launch has died since it was verified; a fault of the look itself is not worth a server."""
        try:
            self.steps.still_serves(launch, self.journal.progress)
        except LaunchFailed:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self.verdicts.append(wire.Verdict("serves", Outcome.UNKNOWN, f"an unexpected error: {error!r}", next_step="fab status"))

    def mark_verified(self, launch: wire.Launch, ready: Ready) -> None:
        """Make it the launch to go back to, and the one that comes back by itself. A record is not worth a serving server either."""
        crash_point("before the record")
        try:
            self.steps.mark_verified(launch, ready.observed)
            crash_point("the record")
        except OSError as error:
            detail = f"{launch.launch_id} is not recorded as the last verified launch: {error.strerror or error}"
            self.verdicts.append(wire.Verdict("record", Outcome.WARN, detail, next_step="df -h"))
        try:
            self.verdicts += self.steps.come_back(launch)
        except Exception as error:  # noqa: BLE001 - nor is what would start it again
            self.verdicts.append(wire.Verdict("boot unit", Outcome.WARN, f"an unexpected error: {error!r}", next_step="fab boot --on"))

    def leave_router(self) -> None:
        """Have the old server without requests before its stop, where it stands behind a router.

        Raises:
            LaunchFailed: the router does not let it go. Nothing was touched but its list.
        """
        if self.router is None or self.previous is None or self.touched:
            return
        self.left_router = self.has_left = True
        self._left_at = time.monotonic()
        self.say(State.LEAVING, "the server is taken out of its router and serves on until it has no request left")
        self.router.leave(self.previous.launch, self.journal.progress, self.pulse)
        crash_point("out of the router")

    def rejoin_router(self, launch: Optional[wire.Launch] = None) -> None:
        """Have what serves in the router again, if it may be out; the old server where no `launch` took its place."""
        serving = launch if launch is not None else self.previous.launch if self.previous is not None else None
        if self.router is None or not self.left_router or serving is None:
            return
        joined = self.router.join(serving, self.journal.progress)
        self.verdicts = [verdict for verdict in self.verdicts if verdict is not self._router_empty] + joined
        self._router_empty = next((verdict for verdict in joined if verdict.outcome == Outcome.REFUSE), None)
        if self._left_at is not None and all(verdict.outcome == Outcome.PASS for verdict in joined):
            self.held_seconds = time.monotonic() - self._left_at
        self.left_router = self._router_empty is not None  # worth another try at the end
        crash_point("in the router")

    def leave_router_again(self) -> None:
        """Take what has failed out of the router, where the way back begins after it was had in. Not worth the way back."""
        if self.router is None or not self.has_left:
            return
        self.left_router = True
        self.router.withdraw(self.journal.progress)

    def down(
        self,
        summary: str,
        failure: Optional[wire.Failure] = None,
        *,
        launch: Optional[wire.Launch] = None,
        next_step: Optional[str] = None,
    ) -> wire.OrderResult:
        """End it with nothing that serves; it has been dark until now."""
        now = time.monotonic()
        return self.finish(State.DOWN, 7, summary, "down", failure, dark_until=now, launch=launch, next_step=next_step)

    def finish(
        self,
        state: str,
        exit_code: int,
        summary: str,
        service: str,
        failure: Optional[wire.Failure] = None,
        *,
        dark_until: Optional[float] = None,
        launch: Optional[wire.Launch] = None,
        measured: Optional[wire.DecodeTiming] = None,
        next_step: Optional[str] = None,
        staged: bool = False,
        saved_seconds: Optional[float] = None,
        loaded: Sequence[wire.Fact] = (),
    ) -> wire.OrderResult:
        """End it, with the result in the journal's last line.

        Args:
            dark_until: a monotonic time, None where nobody knows.
            loaded: what is known of the load of what serves now.
        """
        if state in (State.DONE, State.RESTORED, State.REFUSED):
            self.rejoin_router(launch)
            if self._router_empty is not None:
                exit_code, next_step = 7, self._router_empty.next_step
                summary = f"{summary}, and no client reaches it: {self._router_empty.detail}"
        stopped = self.stopped
        dark = None if dark_until is None or stopped is None else words.dark_seconds(stopped, dark_until, self.boot)
        result = wire.OrderResult(
            order_id=self.order.order_id,
            state=state,
            exit_code=exit_code,
            summary=summary,
            service=service,
            failure=failure,
            next_step=next_step or words.next_step(state, self.failed_launch, restorable=self.previous is not None),
            baseline=self.baseline,
            measured=measured,
            dark_seconds=dark,
            lost_requests=stopped.lost_requests if stopped else None,
            held_seconds=self.held_seconds,
            launch_id=launch.launch_id if launch else None,
            verdicts=self.verdicts,
            failed_launch_id=self.failed_launch,
            staged=staged,
            saved_seconds=saved_seconds,
            dark_phases=words.dark_phases(loaded, staged=staged),
            estimate=self.order.estimate,
        )
        self.tell(state, summary, {"service": service, "time": time.time(), RESULT: result})
        return result
