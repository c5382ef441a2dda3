"""A start, from its intent in the journal to the proof that it serves: plainly, or staged beside a server that still runs.

Part of the state machine (:mod:`relaunch`); the way forward and the way back both start servers.
"""

import dataclasses
from typing import Any, Callable, Dict, Optional

from orchestrator.agent import relaunch_words as words
from orchestrator.agent import wire
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.history import AT_GATE, History, Intent
from orchestrator.agent.steps import Previous, Ready
from orchestrator.agent.walk import Walk
from orchestrator.agent.wire import Outcome, State, Verdict

Pulse = Callable[[], None]
"""Called all through a wait; what it raises ends the wait."""


def start(walk: Walk, target: Previous, history: Optional[History], pulse: Pulse) -> Ready:
    """Start it, unless `history` shows that it was started already, and prove it ready.

    Raises:
        LaunchFailed: it did not become a serving server; or what `pulse` raises.
    """
    if walk.touched:
        pulse()
    if history is None or not _was_started(walk, target, history):
        _start_anew(walk, target)
    return walk.steps.wait_ready(target, walk.journal.progress, walk.tell, pulse)


def _was_started(walk: Walk, target: Previous, history: History) -> bool:
    """Between the intent and the line that says it runs, only the box itself can tell."""
    return history.state != State.STARTING or walk.steps.is_started(target)


def _start_anew(walk: Walk, target: Previous) -> None:
    launch = target.launch
    what = f"unit {target.unit}" if target.unit else f"launch {launch.launch_id}"
    walk.say(State.STARTING, f"starting {what}", _intent(launch, target.unit))
    walk.touched = True
    if target.unit:
        walk.steps.start_unit(target.unit)
        started: Dict[str, Any] = {"unit": target.unit}
    else:
        started = walk.steps.start(launch)
    crash_point("started")
    expected = {} if target.unit else walk.usual(launch)  # it loads already: reading costs no time without service
    walk.tell(State.LOADING, f"{what} is running", {**started, **expected})


def _intent(launch: wire.Launch, unit: Optional[str] = None) -> Dict[str, Any]:
    return {"launch_id": launch.launch_id, "unit": unit, "argv": words.argv(launch)}


class StagedStart:
    """One start beside a server that still runs: to the gate, and on from there once that server has gone.

    The gate is known to the steps that have to do with it alone: what is recorded of the launch and compared with it has none.
    """

    def __init__(self, walk: Walk, launch: wire.Launch) -> None:
        self.launch = dataclasses.replace(launch, gate_port=None)
        self._walk = walk
        self._gated = self.launch
        self._answer: Dict[str, Any] = {}
        self.announced = False
        """Whether there may be something of it."""
        self.started = False
        self.activated = False
        self.seconds: Optional[float] = None
        """How long it took to its gate."""

    def take_over(self, intent: Intent, history: History) -> None:
        """Take it for the one that a supervisor which was ended had announced."""
        self.launch = dataclasses.replace(self.launch, launch_id=intent.launch_id)
        self._gated = dataclasses.replace(self.launch, gate_port=intent.gate_port)
        self.announced = True
        self.seconds = history.gate_seconds

    def begin(self, meanwhile: str) -> None:
        """Announce it and start it. `meanwhile` tells what goes on beside it."""
        gated = self._walk.steps.with_gate(self.launch)
        reason = f"starting launch {gated.launch_id} up to its gate, {meanwhile}"
        data = {**_intent(gated), "gate_port": gated.gate_port, **self._walk.usual(self.launch)}
        self._walk.say(State.STAGING, reason, data)
        self._gated, self.announced = gated, True
        crash_point("before staging")
        self._answer = self._walk.steps.stage(gated)
        self.started = True
        self._walk.verdicts += [verdict for verdict in [self._answer.get("gate")] if verdict and verdict.outcome != Outcome.PASS]
        crash_point("staged")

    def look_whether_started(self) -> bool:
        """Whether the start that was announced, by a supervisor that was ended, has happened."""
        self.started = self._walk.steps.is_started(Previous(self._gated))
        return self.started

    def wait(self, pulse: Pulse) -> None:
        """Prove that it waits at its gate.

        Raises:
            LaunchFailed: it does not come there; or what `pulse` raises.
        """
        staged = self._walk.steps.wait_gate(self._gated, self._walk.journal.progress, pulse)
        self.seconds = staged.seconds
        data = {**self._answer, AT_GATE: {"seconds": staged.seconds, "footprint": staged.footprint}}
        self._walk.tell(State.STAGING, f"launch {self.launch.launch_id} waits at its gate after {staged.seconds:.1f} s", data)
        crash_point("at the gate")

    def look_again(self) -> None:
        """Raise LaunchFailed when it does not wait at its gate any more."""
        self._walk.steps.still_staged(self._gated)

    def go_on(self, history: Optional[History], pulse: Pulse) -> Ready:
        """Have it go on from its gate, unless `history` shows that it did already, and prove it ready.

        Raises:
            LaunchFailed: it did not become a serving server; or what `pulse` raises.
        """
        walk = self._walk
        walk.touched = True
        pulse()
        self.activated = True
        if history is None or history.state not in (State.LOADING, State.ANSWERING):
            what = f"launch {self.launch.launch_id}"
            walk.tell(State.ACTIVATING, f"telling {what} to go on from its gate", {"launch_id": self.launch.launch_id})
            crash_point("before activation")
            walk.steps.activate(self._gated, walk.journal.progress)
            crash_point("activated")
            walk.tell(State.LOADING, f"{what} goes on", {**self._answer, **walk.usual(self.launch, beyond_gate=True)})
        return walk.steps.wait_ready(Previous(self.launch), walk.journal.progress, walk.tell, pulse)

    def end(self) -> None:
        """End whatever there is of it. Nothing stands on that going well: what doesn't is a verdict of the result."""
        if not self.announced:
            return
        crash_point("before the staged launch is ended")
        try:
            left = self._walk.steps.unstage(self._gated, self._walk.journal.progress)
        except Exception as error:  # noqa: BLE001 - see above
            left = [Verdict("staged launch", Outcome.REFUSE, f"an unexpected error: {error!r}", next_step="fab status")]
        crash_point("the staged launch is ended")
        self._walk.verdicts += [verdict for verdict in left if verdict.outcome != Outcome.PASS]
