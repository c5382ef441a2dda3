"""Steps that only remember what was asked of them, and a journal that is a list: every path can be walked without a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.relaunch import Relaunch
from orchestrator.agent.steps import LaunchFailed, Observed, Previous, Ready, Recalled, Report, Staged, Stopped
from orchestrator.agent.wire import OrderKind, Outcome, State

OLD_ID = wire.ProcessId(100, 5000)
OLD = wire.ServerInfo(
    OLD_ID,
    [OLD_ID],
    wire.Manager(wire.ManagerKind.OWN_UNIT, "orchestrator-s-old.service"),
    30000,
    True,
    "/py",
    ["--port", "30000"],
    "root",
    1.0,
)
OLD_LAUNCH = wire.Launch("old", "s", "auto", "/py", ["--port", "30000"], "127.0.0.1", 30000)
NEW_LAUNCH = replace(OLD_LAUNCH, launch_id="new", backend="flashinfer_cutedsl")
TIMING = wire.DecodeTiming(tokens_per_second=10.36, time_per_output_token=1 / 10.36)
DIRTY = wire.Verdict("port", Outcome.REFUSE, "port 30000 is held by process 7", next_step="ss -ltnp sport = :30000")
GATE_PORT = 41234
NO_ROOM = wire.Verdict("staging", Outcome.WARN, "1.0 GiB is free on GPU-1, 3.5 are needed")
STAGED_LEFT = wire.Verdict("processes", Outcome.REFUSE, "process 8 can't be killed", next_step="fab doctor")


@dataclass
class RememberingSteps:
    """Stands in for the box: answers from its fields and remembers the calls."""

    server: wire.ServerInfo | None = OLD
    previous: Previous = field(default_factory=lambda: Previous(OLD_LAUNCH))
    failing: set[str] = field(default_factory=set)
    dirty_after: set[str] = field(default_factory=set)
    verdict: wire.Verdict = field(default_factory=lambda: wire.Verdict("answers", Outcome.PASS, "same"))
    left: tuple[str, ...] = ()
    full_disk: bool = False
    old_is_alive: bool = True
    answers_at: float = 12.5
    meanwhile: dict[str, Callable[[RememberingSteps], None]] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def find(self) -> wire.ServerInfo | None:
        return self.server

    def capture(self) -> Previous:
        self.calls.append("capture")
        return self.previous

    def observe(self, previous: Previous) -> Observed:
        self.calls.append("observe")
        if "observe" in self.failing:
            raise ValueError("not what was expected")
        return Observed(capacity=1000)

    def remember(self, observed: Observed, baseline: wire.DecodeTiming | None) -> None:
        if "remember" in self.failing:
            raise OSError(28, "No space left on device")
        self.calls.append("remember")

    def recall(self) -> Recalled | None:
        self.calls.append("recall")
        return None if self.server is None else Recalled(self.previous, Observed(capacity=1000), TIMING)

    def is_started(self, target: Previous) -> bool:
        self.calls.append(f"is_started {target.launch.launch_id}")
        return target.launch.launch_id in self.started

    def measure(self, launch: wire.Launch, report: Report) -> wire.DecodeTiming:
        self.calls.append(f"measure {launch.launch_id}")
        if f"measure {launch.launch_id}" in self.failing:
            raise ValueError("not what was expected")
        return replace(TIMING, skipped="others use it") if f"skip {launch.launch_id}" in self.failing else TIMING

    def stop(self, report: Report, enter: Callable[[str, str], None]) -> Stopped:
        self.calls.append("stop")
        if "refused stop" in self.failing:
            raise AgentRefusal("rights", "not allowed to signal it")
        report("draining", "")
        if "stop" in self.failing:
            raise AgentRefusal("kernel", "processes can't be held")
        enter(State.STOPPING, "no requests left")
        return Stopped("ended by itself after 3.0 s", last_answer=10.0)

    def clean(self, report: Report) -> list[wire.Verdict]:
        return [DIRTY] if "old" in self.dirty_after else []

    def leftovers(self) -> list[str]:
        return list(self.left)

    def end_leftovers(self, report: Report) -> list[wire.Verdict]:
        self.calls.append("end_leftovers")
        if "leftovers" in self.failing:
            raise ValueError("not what was expected")
        return [DIRTY] if "leftovers" in self.dirty_after else []

    def warm(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> list[wire.Verdict]:
        self.calls.append(f"warm {launch.launch_id}")
        if "warm" in self.failing:
            raise ValueError("not what was expected")
        self._happen("warming")
        pulse()
        self.calls.append(f"warmed {launch.launch_id}")
        return []

    def room(self, launch: wire.Launch) -> wire.Verdict:
        self.calls.append(f"room {launch.launch_id}")
        return NO_ROOM if f"room {launch.launch_id}" in self.failing else wire.Verdict("staging", Outcome.PASS, "there is room")

    def with_gate(self, launch: wire.Launch) -> wire.Launch:
        assert launch.gate_port is None, "each start has a gate of its own"
        return replace(launch, gate_port=GATE_PORT)

    def stage(self, launch: wire.Launch) -> dict[str, Any]:
        self._gated(f"stage {launch.launch_id}", launch)
        if f"stage {launch.launch_id}" in self.failing:
            raise AgentRefusal("rights", "not allowed to start it")
        return {"runner": "unit"}

    def wait_gate(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> Staged:
        self._gated(f"wait_gate {launch.launch_id}", launch)
        self._happen(f"at gate {launch.launch_id}")
        pulse()
        if f"gate {launch.launch_id}" in self.failing:
            raise LaunchFailed(wire.Failure("missing_module", f"{launch.launch_id} misses a module", ["No module named x"]))
        if f"fault at gate {launch.launch_id}" in self.failing:
            raise ValueError("not what was expected")
        return Staged(launch, 18.0, {"GPU-1": 500})

    def still_staged(self, launch: wire.Launch) -> None:
        self._gated(f"still_staged {launch.launch_id}", launch)
        if f"still {launch.launch_id}" in self.failing:
            raise LaunchFailed(wire.Failure("killed", f"{launch.launch_id} was killed"))

    def old_lives(self) -> bool:
        return self.old_is_alive

    def activate(self, launch: wire.Launch, report: Report) -> None:
        self._gated(f"activate {launch.launch_id}", launch)
        if f"activate {launch.launch_id}" in self.failing:
            raise LaunchFailed(wire.Failure("killed", f"{launch.launch_id} was killed"))

    def usual(self, launch: wire.Launch) -> dict[str, wire.UsualPhase]:
        return {"imports": wire.UsualPhase(20.0, 22.0, 3), "weights": wire.UsualPhase(40.0, 44.0, 3)}

    def unstage(self, launch: wire.Launch, report: Report) -> list[wire.Verdict]:
        self._gated(f"unstage {launch.launch_id}", launch)
        if "unstage" in self.failing:
            raise ValueError("not what was expected")
        return [STAGED_LEFT] if "staged" in self.dirty_after else []

    def _gated(self, call: str, launch: wire.Launch) -> None:
        assert launch.gate_port == GATE_PORT, "these steps need the gate"
        self.calls.append(call)

    def _happen(self, moment: str) -> None:
        """What a test wants to go on just then."""
        if moment in self.meanwhile:
            self.meanwhile[moment](self)

    def start(self, launch: wire.Launch) -> dict[str, Any]:
        assert launch.gate_port is None, "a plain start has no gate"
        self.calls.append(f"start {launch.launch_id}")
        if f"start {launch.launch_id}" in self.failing:
            raise OSError(28, "No space left on device", "/state/launch.json") if self.full_disk else OSError("broken")
        return {}

    def start_unit(self, unit: str) -> None:
        self.calls.append(f"start_unit {unit}")

    def wait_ready(self, previous: Previous, report: Report, enter: Callable[[str, str], None], pulse: Callable[[], None]) -> Ready:
        assert previous.launch.gate_port is None, "what is compared with the launch has no gate"
        self._happen(f"loading {previous.launch.launch_id}")
        pulse()
        if previous.launch.launch_id in self.failing:
            raise LaunchFailed(wire.Failure("out_of_memory", f"{previous.launch.launch_id} ran out of memory"))
        enter(State.ANSWERING, "first good generation")
        return Ready(self.answers_at, Observed(capacity=1000))

    def verify(self, launch: wire.Launch, old: Observed, new: Observed, report: Report) -> list[wire.Verdict]:
        return [self.verdict]

    def stop_launch(self, launch: wire.Launch, report: Report) -> list[wire.Verdict]:
        self.calls.append(f"stop_launch {launch.launch_id}")
        return [DIRTY] if "new" in self.dirty_after else []

    def still_serves(self, launch: wire.Launch, report: Report) -> None:
        self.calls.append(f"still_serves {launch.launch_id}")
        if f"serves {launch.launch_id}" in self.failing:
            raise LaunchFailed(wire.Failure("killed", f"{launch.launch_id} was killed"))
        if f"look at {launch.launch_id}" in self.failing:
            raise ValueError("not what was expected")

    def mark_verified(self, launch: wire.Launch, observed: Observed) -> None:
        if "record" in self.failing:
            raise OSError(28, "No space left on device")
        self.calls.append(f"mark_verified {launch.launch_id}")

    def come_back(self, launch: wire.Launch) -> list[wire.Verdict]:
        self.calls.append(f"come_back {launch.launch_id}")
        return []

    def new_launch_id(self) -> str:
        used = [call for call in self.calls if call.startswith(("stage back", "start back"))]
        return f"back{len(used) + 1}" if used else "back"


@dataclass
class ListJournal:
    states: list[str] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    full_from: str | None = None
    """The state from which on nothing can be written."""
    full: bool = False

    def reserve(self) -> None:
        if self.full_from == "reserve":
            raise OSError(28, "No space left on device")

    def state(self, state: str, reason: str, data: dict[str, Any] | None = None) -> None:
        self.full = self.full or state == self.full_from
        if self.full:
            raise OSError(28, "No space left on device")
        self.states.append(state)
        self.data.append(data or {})
        self.reasons.append(reason)

    def progress(self, phase: str, detail: str = "") -> None:
        return


def order(
    kind: str = OrderKind.RELAUNCH, old: wire.ProcessId | None = OLD_ID, new: wire.Launch | None = NEW_LAUNCH, measure: bool = True
) -> wire.Order:
    return wire.Order("o1", kind, "s", "/state", 30000, wire.Policy(measure=measure), "ann@laptop", old=old, new=new)


def carry_out(asked: wire.Order, steps: RememberingSteps) -> tuple[wire.OrderResult, list[str]]:
    journal = ListJournal()
    return Relaunch(asked, steps, journal).run(), journal.states
