"""The state machine that changes a service: relaunch, launch and teardown are orders to the same machine.

::

    CHECKED -> LOCKED -> [BASELINE] -> DRAINING -> STOPPING -> CLEAN -> STARTING -> LOADING -> ANSWERING -> VERIFIED
            -> [MEASURED] -> DONE
    any failure after STOPPING -> ROLLING_BACK -> RESTORED | DOWN

What it decides is here; what it does to the world is behind :class:`steps.Steps`, so that each path can be walked in a test
without a server. Before a step that can't be taken back, the journal says what is about to be done.
"""

import contextlib
import dataclasses
import errno
import time
from typing import Any, Dict, List, Optional

from orchestrator.agent import wire
from orchestrator.agent.failure_signatures import Category
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.steps import CAPACITY_CHECK, LaunchFailed, Observed, Previous, Ready, Recorder, Steps, Stopped
from orchestrator.agent.wire import OrderKind, Outcome, State
from orchestrator.agent.wire_words import managed


class Relaunch:
    """One order from CHECKED to a final state."""

    def __init__(self, order: wire.Order, steps: Steps, journal: Recorder) -> None:
        self._order = order
        self._steps = steps
        self._journal = journal
        self._previous: Optional[Previous] = None
        self._baseline: Optional[wire.DecodeTiming] = None
        self._observed = Observed()
        self._stopped: Optional[Stopped] = None
        self._failed_launch: Optional[str] = None
        self.touched = False
        """Whether anything may have been signalled or started: until then an error refuses the order, from then on it rolls back."""
        self._verdicts: List[wire.Verdict] = []

    def run(self) -> wire.OrderResult:
        """Carry the order out; returns when it has come to a final state, whatever happens on the way.

        Raises:
            AgentRefusal, OSError: before anything was touched.
        """
        refusal = self._check()
        if refusal is not None:
            return self._finish(State.REFUSED, 3, refusal, "unchanged")
        self._journal.state(State.LOCKED, f"held for {self._order.operator}" + (f": {self._order.reason}" if self._order.reason else ""))
        try:
            remains = self._stop_old(self._previous) if self._previous is not None else self._end_leftovers()
        except Exception as error:
            # A stop that broke off half-way must not leave the service without a server.
            if not self.touched or self._previous is None:
                raise
            return self._roll_back(None, _unexpected(error))
        if remains is not None:
            return self._finish(State.DOWN, 7, f"nothing was started: {remains.detail}", "down", next_step=remains.next_step)
        if self._order.kind == OrderKind.TEARDOWN or self._order.new is None:
            return self._finish(State.DONE, 0, self._stopped.summary if self._stopped else "nothing was running", "down, as asked")
        launch = self._order.new
        try:
            ready = self._bring_up(launch)
            measured = self._measure_new(launch)
        except LaunchFailed as failed:
            return self._roll_back(launch, failed.failure)
        except Exception as error:
            # Whatever breaks between stop and ready, the service must come back.
            if not self.touched:
                raise
            return self._roll_back(launch, _unexpected(error))
        return self._finish(State.DONE, 0, f"{launch.backend} serves", "serving", ready=ready, launch=launch, measured=measured)

    def _check(self) -> Optional[str]:
        server = self._steps.find()
        wanted = self._order.old
        if server is not None and wanted is None:
            if self._order.kind == OrderKind.TEARDOWN:
                return f"process {server.main.pid} serves port {server.port} now, but the plan showed none"
            return f"process {server.main.pid} already serves port {server.port}: use relaunch to replace it"
        if wanted is not None and server is None:
            return f"the server that the plan showed (process {wanted.pid}) has ended meanwhile; look again"
        if server is not None and server.main != wanted:
            return f"another server (process {server.main.pid}) is there now than the plan showed; look again"
        if server is not None:
            self._previous = self._steps.capture()
        self._journal.state(State.CHECKED, _describe(server), {"server": server, "order": self._order.kind})
        return None

    def _look_at_old(self, previous: Previous) -> None:
        self._journal.state(State.BASELINE, "the old server is looked at while it serves")
        try:
            self._observed = self._steps.observe(previous)
        except Exception as error:  # noqa: BLE001 - nothing was touched yet, and less is compared afterwards: verify says so
            self._observed = Observed(remark=f"an unexpected error: {error!r}")
        if self._order.policy.measure:
            self._baseline = self._measure(previous.launch)

    def _stop_old(self, previous: Previous) -> Optional[wire.Verdict]:
        """Stop it and wait until nothing of it is left; the verdict that forbids a start, if there is one."""
        if self._order.kind != OrderKind.TEARDOWN:
            self._look_at_old(previous)
        self._journal.state(State.DRAINING, "SIGTERM to the main process; running requests go on")
        self._stopped = self._steps.stop(self._report_touch, self._tell)
        remains = self._judge(self._steps.clean(self._journal.progress))
        if remains is None:
            self._tell(State.CLEAN, self._stopped.summary, {"verdicts": self._verdicts, "evidence": self._stopped.evidence})
        return remains

    def _report_touch(self, phase: str, detail: str) -> None:
        """A stop's first report comes after its first signal."""
        self.touched = True
        self._journal.progress(phase, detail)

    def _end_leftovers(self) -> Optional[wire.Verdict]:
        """End what is left of earlier launches; the verdict that forbids a start, if there is one."""
        left = self._steps.leftovers()
        if not left:
            return None
        self._journal.state(State.STOPPING, f"{len(left)} processes are left of an earlier launch", {"processes": left})
        self.touched = True
        remains = self._judge(self._steps.end_leftovers(self._journal.progress))
        if remains is None:
            self._stopped = Stopped(f"nothing was running; {len(left)} processes left of an earlier launch were ended", evidence=left)
            self._tell(State.CLEAN, self._stopped.summary, {"verdicts": self._verdicts})
        return remains

    def _judge(self, verdicts: List[wire.Verdict]) -> Optional[wire.Verdict]:
        """Keep the verdicts of a clean gate and return the one that closes it."""
        self._verdicts += verdicts
        return next((verdict for verdict in verdicts if verdict.outcome == Outcome.REFUSE), None)

    def _tell(self, state: str, reason: str, data: Optional[Dict[str, Any]] = None) -> None:
        """Journal what has happened already. Bringing the service back does not wait for a disk with room."""
        with contextlib.suppress(OSError):
            self._journal.state(state, reason, data)

    def _bring_up(self, launch: wire.Launch) -> Ready:
        ready = self._start(Previous(launch))
        verdicts = self._steps.verify(launch, self._observed, ready.observed, self._journal.progress)
        self._verdicts += verdicts
        wrong = [verdict for verdict in verdicts if verdict.outcome == Outcome.REFUSE]
        if wrong:
            category = Category.KV_CAPACITY if wrong[0].check == CAPACITY_CHECK else Category.WRONG_ANSWERS
            raise LaunchFailed(wire.Failure(category, wrong[0].detail, wrong[0].evidence, wrong[0].next_step or ""))
        self._mark_verified(launch, ready)
        self._tell(State.VERIFIED, _verified(verdicts), {"verdicts": verdicts})
        return ready

    def _mark_verified(self, launch: wire.Launch, ready: Ready) -> None:
        """A record is not worth a serving server either."""
        try:
            self._steps.mark_verified(launch, ready.observed)
        except OSError as error:
            detail = f"{launch.launch_id} is not recorded as the last verified launch: {error.strerror or error}"
            self._verdicts.append(wire.Verdict("record", Outcome.WARN, detail, next_step="df -h"))

    def _measure_new(self, launch: wire.Launch) -> Optional[wire.DecodeTiming]:
        if not self._order.policy.measure:
            return None
        measured = self._measure(launch)
        if measured.skipped is not None:
            self._require_serving(launch)
        self._tell(State.MEASURED, measured.skipped or f"{measured.tokens_per_second:.2f} tok/s", {"timing": measured})
        return measured

    def _require_serving(self, launch: wire.Launch) -> None:
        """Raise LaunchFailed when the launch has died since it was verified; a fault of the look itself is not worth a server."""
        try:
            self._steps.still_serves(launch, self._journal.progress)
        except LaunchFailed:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self._verdicts.append(wire.Verdict("serves", Outcome.UNKNOWN, f"an unexpected error: {error!r}", next_step="fab status"))

    def _measure(self, launch: wire.Launch) -> wire.DecodeTiming:
        """A timing is never worth a serving server: whatever goes wrong in it is told in its place."""
        try:
            return self._steps.measure(launch, self._journal.progress)
        except Exception as error:  # noqa: BLE001 - see above
            return wire.DecodeTiming(skipped=f"an unexpected error: {error!r}")

    def _start(self, target: Previous) -> Ready:
        launch = target.launch
        what = f"unit {target.unit}" if target.unit else f"launch {launch.launch_id}"
        intent = {"launch_id": launch.launch_id, "unit": target.unit, "argv": argv(launch)}
        (self._tell if self.touched else self._journal.state)(State.STARTING, f"starting {what}", intent)
        self.touched = True
        if target.unit:
            self._steps.start_unit(target.unit)
            started: Dict[str, Any] = {"unit": target.unit}
        else:
            started = self._steps.start(launch)
        self._tell(State.LOADING, f"{what} is running", started)
        return self._steps.wait_ready(target, self._journal.progress, self._tell)

    def _roll_back(self, launch: Optional[wire.Launch], failure: wire.Failure) -> wire.OrderResult:
        """Bring the previous server back. `launch` is the one that failed, None when the stop of the old server broke off."""
        self._failed_launch = None if launch is None else launch.launch_id
        self._tell(State.ROLLING_BACK, failure.summary, {"failure": failure})
        try:
            report = self._journal.progress
            remains = self._judge(self._steps.clean(report) if launch is None else self._steps.stop_launch(launch, report))
            if remains is not None:
                summary = f"{failure.summary}; nothing was put back: {remains.detail}"
                return self._finish(State.DOWN, 7, summary, "down", failure, next_step=remains.next_step)
            if self._previous is None:
                return self._finish(State.DOWN, 7, f"{failure.summary}; there was no server to put back", "down", failure)
            if self._order.kind == OrderKind.TEARDOWN:
                return self._finish(State.DOWN, 7, f"the teardown broke off: {failure.summary}; nothing of it is left", "down", failure)
            target = self._previous
            if target.unit is None:
                target = dataclasses.replace(target, launch=dataclasses.replace(target.launch, launch_id=self._steps.new_launch_id()))
            return self._put_back(target, failure)
        except Exception as error:  # noqa: BLE001 - the operator must learn that the service may be down, and why
            return self._finish(
                State.DOWN, 7, f"{failure.summary}; then rolling back failed: {_unexpected(error).summary}", "not known to serve", failure
            )

    def _put_back(self, target: Previous, failure: wire.Failure) -> wire.OrderResult:
        try:
            ready = self._start(target)
        except LaunchFailed as again:
            if target.unit is None:
                # It would go on loading with nobody looking, hold the GPUs, and keep the port from the next launch.
                self._judge(self._steps.stop_launch(target.launch, self._journal.progress))
            summary = f"{failure.summary}; then the previous server failed too: {again.failure.summary}"
            return self._finish(State.DOWN, 7, summary, "down", failure, launch=target.launch)
        if target.unit is None:
            self._mark_verified(target.launch, ready)
        summary, serves = failure.summary, "the previous server serves again"
        return self._finish(State.RESTORED, 6, summary, serves, failure, ready=ready, launch=target.launch)

    def _finish(
        self,
        state: str,
        exit_code: int,
        summary: str,
        service: str,
        failure: Optional[wire.Failure] = None,
        *,
        ready: Optional[Ready] = None,
        launch: Optional[wire.Launch] = None,
        measured: Optional[wire.DecodeTiming] = None,
        next_step: Optional[str] = None,
    ) -> wire.OrderResult:
        stopped = self._stopped
        dark = None
        if ready is not None and stopped is not None and stopped.last_answer is not None:
            dark = max(0.0, ready.first_answer - stopped.last_answer)
        result = wire.OrderResult(
            order_id=self._order.order_id,
            state=state,
            exit_code=exit_code,
            summary=summary,
            service=service,
            failure=failure,
            next_step=next_step or self._next_step(state),
            baseline=self._baseline,
            measured=measured,
            dark_seconds=dark,
            lost_requests=stopped.lost_requests if stopped else None,
            launch_id=launch.launch_id if launch else None,
            verdicts=self._verdicts,
            failed_launch_id=self._failed_launch,
        )
        self._tell(state, summary, {"service": service, "time": time.time()})
        return result

    def _next_step(self, state: str) -> Optional[str]:
        logs = f"fab logs --launch {self._failed_launch}" if self._failed_launch is not None else "fab logs"
        if state == State.DOWN and self._failed_launch is not None and self._previous is None:
            return f"{logs}   # mend the cause first: the same launch would fail the same way"
        return {
            State.RESTORED: f"{logs}   # the log of the launch that failed" if self._failed_launch is not None else "fab status",
            State.DOWN: f"fab status, then {logs}; fab launch starts the service again",
            State.REFUSED: "fab status",
        }.get(state)


def argv(launch: wire.Launch) -> List[str]:
    """The argument vector of a launch without what its secrets add."""
    return [launch.python, *launch.entry, *launch.arguments]


def _describe(server: Optional[wire.ServerInfo]) -> str:
    if server is None:
        return "no server is running"
    return f"process {server.main.pid} on port {server.port}, {managed(server.manager)}"


def _verified(verdicts: List[wire.Verdict]) -> str:
    unproven = [verdict.check for verdict in verdicts if verdict.outcome != Outcome.PASS]
    if not unproven:
        return "it serves, and says what the old one said"
    return f"it serves; not shown to be as before: {', '.join(unproven)}"


def _unexpected(error: Exception) -> wire.Failure:
    if isinstance(error, AgentRefusal):
        told = error.failure
        return wire.Failure(told.category, told.message, told.evidence, told.next_step or "")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or "a file of the state folder"
        return wire.Failure("disk_full", f"{where}: {error.strerror}", advice="make room (df -h, df -i), then launch again")
    return wire.Failure(
        "unexpected",
        f"an unexpected error: {error!r}",
        advice="this is a fault of the orchestrator: keep the run folder",
    )
