"""The new server's start beside the old one. Part of the state machine (:mod:`relaunch`).

Until the old server is stopped, whatever goes wrong here costs no service: the staged launch is ended, and the order is refused. Should
the old one die by itself meanwhile, the order goes on: at once when the new one is at its gate, and back when that fails too.
"""

import contextlib
import dataclasses
import time
from typing import Optional

from orchestrator.agent import wire
from orchestrator.agent.history import History
from orchestrator.agent.starting import StagedStart
from orchestrator.agent.steps import LaunchFailed, Ready, Stopped
from orchestrator.agent.walk import Walk
from orchestrator.agent.wire import OrderKind, Outcome, State, Verdict


class Staging:
    """The order's staged start, if it has one."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._start: Optional[StagedStart] = None
        self._seen_alive: Optional[float] = None
        self.old_died = False
        """Whether the old server was found dead, which nobody had stopped."""
        self.failure: Optional[wire.Failure] = None
        """Why the staged launch failed, where the order goes on nevertheless, since the old server had died."""

    @property
    def asked(self) -> bool:
        order = self._walk.order
        return order.staged and order.kind == OrderKind.RELAUNCH and order.old is not None and order.new is not None

    @property
    def begun(self) -> bool:
        """Whether there may be something of a staged launch."""
        return self._start is not None and self._start.announced

    @property
    def started(self) -> bool:
        """Whether it has a log to read."""
        return self._start is not None and self._start.started

    @property
    def gate_seconds(self) -> Optional[float]:
        return None if self._start is None else self._start.seconds

    def take_over(self, history: History) -> None:
        """Go on with what a supervisor had staged that was ended."""
        if history.staged is not None and self._walk.order.new is not None:
            self._start = StagedStart(self._walk, self._walk.order.new)
            self._start.take_over(history.staged, history)
            self.failure = history.staging_failure

    def warm(self) -> None:
        """Bring the files that the new server will load into memory while the old one serves; the old one's death ends that."""
        walk = self._walk
        if walk.order.new is None or walk.order.policy.warm_rate <= 0:
            return
        walk.say(State.WARMING, "the checkpoint's files are read while the old server serves")
        try:
            with contextlib.suppress(_OldServerDied, LaunchFailed):  # whoever cancelled it is heard next
                walk.verdicts += walk.steps.warm(walk.order.new, walk.journal.progress, self._warm_pulse)
        except Exception as error:  # noqa: BLE001 - cold files cost time, and nothing else
            walk.verdicts.append(Verdict("checkpoint files", Outcome.UNKNOWN, f"an unexpected error: {error!r}"))

    def _warm_pulse(self) -> None:
        self._walk.pulse()
        if not self.look_at_old():
            raise _OldServerDied

    def bring_to_gate(self) -> None:
        """Have the new server wait at its gate, where the plan said so and there is still room for it.

        Raises:
            LaunchFailed: it does not wait there, or the operator wants it stopped safely.
            AgentRefusal, OSError: it could not be started.
        """
        staged = self._start or self._prepared()
        if staged is None:
            return
        if not staged.announced or not staged.look_whether_started():
            staged.begin("while the old server answers")
        staged.wait(self._pulse)
        self._walk.pulse()
        staged.look_again()

    def _prepared(self) -> Optional[StagedStart]:
        """A start for which everything stands ready; None where there is to be none, with the reason told."""
        walk = self._walk
        if not self.asked or walk.order.new is None:
            return None
        launch = dataclasses.replace(walk.order.new, gate_port=None)
        room = walk.steps.room(launch) if self.look_at_old() else Verdict("staging", Outcome.WARN, "the old server has died by itself")
        if room.outcome != Outcome.PASS:
            walk.verdicts.append(dataclasses.replace(room, outcome=Outcome.WARN))
            walk.journal.progress("sequential", f"the new server is started after the stop: {room.detail}")
            return None
        walk.steps.remember(walk.observed, walk.baseline)
        self._start = StagedStart(walk, launch)
        return self._start

    def _pulse(self) -> None:
        self._walk.pulse()
        self.look_at_old()

    def look_at_old(self) -> bool:
        """Whether the old server still lives, as far as anybody can tell; tells it when it does not."""
        try:
            lives = self._walk.steps.old_lives()
        except Exception:  # noqa: BLE001 - only what was seen dead counts as dead
            lives = True
        if lives:
            self._seen_alive = time.monotonic()
        elif not self.old_died:
            self.old_died = True
            self._walk.journal.progress("old server", "it has died by itself; the new one takes its place as soon as it can")
        return lives

    def dated(self, stopped: Stopped) -> Stopped:
        """How a stop went; of a server that had died by itself nobody knows the last answer, so it is counted as when last seen alive."""
        if not self.old_died or stopped.last_answer is not None or self._seen_alive is None:
            return stopped
        answered_at = time.time() - (time.monotonic() - self._seen_alive)
        evidence = [*stopped.evidence, "it had died by itself; dark is counted from when it was last seen alive"]
        return dataclasses.replace(stopped, last_answer=self._seen_alive, answered_at=answered_at, evidence=evidence)

    def go_on(self, history: Optional[History]) -> Ready:
        """Have the staged launch go on, unless `history` shows that it did already, and prove it ready.

        Raises:
            LaunchFailed: it did not become a serving server, or had failed before, or the operator wants it stopped safely.
        """
        assert self._start is not None, "only what was staged is activated"
        if self.failure is not None:
            raise LaunchFailed(self.failure)
        return self._start.go_on(history, self._walk.pulse)

    def end(self) -> None:
        """End whatever there is of the staged launch; nothing of the old server is touched."""
        if self._start is not None:
            self._start.end()


class _OldServerDied(Exception):  # noqa: N818
    """Ends the reading of files that the next server will read itself."""
