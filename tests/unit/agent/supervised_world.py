"""A world without servers in which a supervisor may die at any instant, and the next one is given what it left.

The world is what outlives a supervisor: which servers run, what was kept on the disk, the journal. The supervisor dies before and after
each effect and each line of the journal, by an exception that nothing catches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.history import read_history
from orchestrator.agent.relaunch import Relaunch
from orchestrator.agent.steps import LaunchFailed, Observed, Previous, Ready, Recalled, Report, Staged, Stopped
from orchestrator.agent.wire import OrderKind, Outcome, State
from orchestrator.agent.wire_router import RouterAddress, RouterSeat

OLD_ID = wire.ProcessId(100, 5000)
OLD = wire.Launch("old", "s", "auto", "/py", ["--port", "30000"], "127.0.0.1", 30000)
NEW = replace(OLD, launch_id="new", backend="flashinfer_cutedsl")
NO_ROOM = wire.Verdict("staging", Outcome.WARN, "1.0 GiB is free on GPU-1, 3.5 are needed")
HELD = wire.Verdict("port", Outcome.REFUSE, "port 30000 is held by something else now")


class Killed(BaseException):
    """The supervisor's end by SIGKILL."""


@dataclass
class World:
    """What outlives a supervisor. `mortal` are the effects after which it may die still."""

    running: set[str] = field(default_factory=lambda: {"old"})
    at_gate: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    """Launches whose gate is not theirs any more: somebody else has activated them."""
    ever_staged: set[str] = field(default_factory=set)
    exited: set[str] = field(default_factory=set)
    kept: Recalled | None = None
    captured: Previous | None = None
    verified: list[str] = field(default_factory=list)
    comes_back: str | None = "old"
    journal: list[wire.StateEntry] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    foreign: bool = False
    boot: str = "boot 1"
    in_router: bool = True
    cut: bool = False
    """Whether the old server was stopped while its router sent it requests, though there is one to be asked."""
    lives: int | None = None
    effects: list[str] = field(default_factory=list)
    meanwhile: dict[str, Callable[[World], None]] = field(default_factory=dict)
    """What happens at an instant, once, whoever lives."""

    def end(self, launch_id: str) -> None:
        """A server ends, by whatever."""
        self.exited |= {launch_id} & (self.running | self.at_gate)
        self.running.discard(launch_id)
        self.at_gate.discard(launch_id)

    def restart(self) -> None:
        """The machine is restarted."""
        self.boot, self.running, self.at_gate, self.taken = "boot 2", set(), set(), set()

    def effect(self, name: str) -> None:
        """An instant at which the supervisor may die."""
        self.effects.append(name)
        if name in self.meanwhile:
            self.meanwhile.pop(name)(self)
        if self.lives is not None:
            if self.lives == 0:
                raise Killed(name)
            self.lives -= 1


class Recording:
    """The journal, in the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def reserve(self) -> None:
        self._world.effect("reserve")

    def state(self, state: str, reason: str, data: dict[str, Any] | None = None) -> None:
        self._world.effect(f"before line {state}")
        number = len(self._world.journal) + 1
        plain = json.loads(json.dumps(wire.to_json(data or {})))
        self._world.journal.append(wire.StateEntry(number, state, float(number), float(number), reason, plain))
        self._world.effect(f"after line {state}")

    def progress(self, phase: str, detail: str = "") -> None:
        return


class WorldSteps:
    """Steps whose effects stay in the world; each supervisor has its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    def find(self) -> wire.ServerInfo | None:
        if "old" not in self._world.running:
            return None
        manager = wire.Manager(wire.ManagerKind.OWN_UNIT, "old.service")
        return wire.ServerInfo(OLD_ID, [OLD_ID], manager, 30000, True, "/py", ["--port", "30000"], "root", 1.0)

    def capture(self) -> Previous:
        self._world.captured = Previous(OLD)
        return self._world.captured

    def observe(self, previous: Previous) -> Observed:
        return Observed(capacity=1000)

    def remember(self, observed: Observed, baseline: wire.DecodeTiming | None) -> None:
        self._world.effect("before remember")
        assert self._world.captured is not None
        self._world.kept = Recalled(self._world.captured, observed, baseline)
        self._world.effect("after remember")

    def recall(self) -> Recalled | None:
        return self._world.kept or (None if self._world.captured is None else Recalled(self._world.captured))

    def measure(self, launch: wire.Launch, report: Report) -> wire.DecodeTiming:
        self._world.effect(f"measure {launch.launch_id}")
        return wire.DecodeTiming(tokens_per_second=10.0)

    def stop(self, report: Report, enter: Callable[[str, str], None]) -> Stopped:
        self._world.cut = self._world.cut or self._world.in_router
        self._world.comes_back = None
        assert self._world.kept is not None, "nothing is stopped that was not kept before"
        self._world.effect("before SIGTERM")
        report("draining", "")
        enter(State.STOPPING, "")
        self._world.end("old")
        self._world.effect("after the stop")
        return Stopped("it went by itself", last_answer=1.0)

    def clean(self, report: Report) -> list[wire.Verdict]:
        return [HELD] if self._world.foreign or self._world.running else []

    def leftovers(self) -> list[str]:
        return []

    def end_leftovers(self, report: Report) -> list[wire.Verdict]:
        return []

    def warm(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> list[wire.Verdict]:
        self._world.effect("while files are warmed")
        pulse()
        return []

    def room(self, launch: wire.Launch) -> wire.Verdict:
        return NO_ROOM if self._fails("room", launch) else wire.Verdict("staging", Outcome.PASS, "there is room")

    def with_gate(self, launch: wire.Launch) -> wire.Launch:
        assert launch.gate_port is None, "each start has a gate of its own"
        return replace(launch, gate_port=41000 + len(self._world.journal))

    def stage(self, launch: wire.Launch) -> dict[str, Any]:
        assert self._world.journal[-1].data["gate_port"] == launch.gate_port, "the intent names the gate"
        assert not self._world.at_gate - {"new"}, "of the way back, one at a time"
        assert launch.launch_id not in self._world.at_gate | self._world.exited, "it is started once"
        assert self._world.kept is not None, "what the old server held is kept before"
        self._world.effect("before the staged start")
        self._world.at_gate.add(launch.launch_id)
        self._world.ever_staged.add(launch.launch_id)
        self._world.effect("after the staged start")
        return {}

    def wait_gate(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> Staged:
        self._world.effect(f"while {_who(launch)} comes to its gate")
        pulse()
        if self._fails("gate", launch):
            self._world.end(launch.launch_id)
        self.still_staged(launch)
        return Staged(launch, 18.0)

    def still_staged(self, launch: wire.Launch) -> None:
        assert launch.gate_port is not None
        if launch.launch_id not in self._world.at_gate - self._world.taken:
            raise LaunchFailed(wire.Failure("missing_module", f"{launch.launch_id} does not wait at its gate"))

    def old_lives(self) -> bool:
        return "old" in self._world.running

    def activate(self, launch: wire.Launch, report: Report) -> None:
        assert launch.gate_port is not None
        assert not self._world.running - {launch.launch_id}, f"{launch.launch_id} goes on beside {self._world.running}"
        self._world.effect("before activation")
        if self._fails("activate", launch):
            self._world.end(launch.launch_id)
        if launch.launch_id not in self._world.at_gate | self._world.running:
            raise LaunchFailed(wire.Failure("killed", f"{launch.launch_id} is gone"))
        self._world.at_gate.discard(launch.launch_id)
        self._world.running.add(launch.launch_id)
        self._world.effect("after activation")

    def usual(self, launch: wire.Launch) -> dict[str, wire.UsualPhase]:
        return {"weights": wire.UsualPhase(40.0, 44.0, 3)}

    def unstage(self, launch: wire.Launch, report: Report) -> list[wire.Verdict]:
        self._world.effect("before a staged launch is ended")
        self._world.end(launch.launch_id)
        self._world.effect("after a staged launch was ended")
        return []

    def _fails(self, what: str, launch: wire.Launch) -> bool:
        return f"{what} {_who(launch)}" in self._world.failing

    def start(self, launch: wire.Launch) -> dict[str, Any]:
        there = self._world.running | self._world.at_gate
        assert not there, f"{launch.launch_id} is started on top of {there}"
        assert launch.gate_port is None
        self._world.effect("before the start")
        self._world.running.add(launch.launch_id)
        self._world.effect("after the start")
        return {}

    def start_unit(self, unit: str) -> None:
        raise AssertionError("there is no unit here")

    def is_started(self, target: Previous) -> bool:
        return target.launch.launch_id in self._world.running | self._world.at_gate | self._world.exited

    def wait_ready(self, previous: Previous, report: Report, enter: Callable[[str, str], None], pulse: Callable[[], None]) -> Ready:
        pulse()
        self._world.effect("while it loads")
        assert previous.launch.gate_port is None
        name = previous.launch.launch_id
        fails = _who(previous.launch) in self._world.failing or (name in self._world.ever_staged and self._fails("staged", previous.launch))
        if fails or name not in self._world.running:
            raise LaunchFailed(wire.Failure("out_of_memory", f"{name} ran out of memory"))
        enter(State.ANSWERING, "first good generation")
        return Ready(20.0, Observed(capacity=1000))

    def verify(self, launch: wire.Launch, old: Observed, new: Observed, report: Report) -> list[wire.Verdict]:
        assert old.capacity == 1000, "the old server's facts outlive the supervisor that read them"
        return [wire.Verdict("answers", Outcome.PASS, "same")]

    def stop_launch(self, launch: wire.Launch, report: Report) -> list[wire.Verdict]:
        self._world.effect("before a launch is cleared away")
        self._world.end(launch.launch_id)
        self._world.effect("after a launch was cleared away")
        return [HELD] if self._world.running else []

    def still_serves(self, launch: wire.Launch, report: Report) -> None:
        if launch.launch_id not in self._world.running:
            raise LaunchFailed(wire.Failure("killed", "it is gone"))

    def mark_verified(self, launch: wire.Launch, observed: Observed) -> None:
        self._world.effect("before the record")
        self._world.verified.append(launch.launch_id)

    def come_back(self, launch: wire.Launch) -> list[wire.Verdict]:
        self._world.effect("before the boot unit")
        self._world.comes_back = launch.launch_id
        self._world.effect("after the boot unit")
        return []

    def new_launch_id(self) -> str:
        return f"back-{len(self._world.journal)}"


def _who(launch: wire.Launch) -> str:
    """The launch of the way back has another id each time."""
    return launch.launch_id.partition("-")[0]


class WorldRouter:
    """The router's list, in the world. With ``requests`` failing, those on the old server do not end.

    With ``its only server`` failing, that is not had in again; with ``its only server once``, not at the first try.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def leave(self, old: wire.Launch, report: Report, pulse: Callable[[], None]) -> None:
        pulse()
        self._world.effect("before leaving the router")
        self._world.in_router = False
        self._world.effect("after leaving the router")
        if "requests" in self._world.failing:
            raise LaunchFailed(wire.Failure("not_drained", "2 requests are left"))

    def withdraw(self, report: Report) -> None:
        self._world.effect("before withdrawing")
        self._world.in_router = False
        self._world.effect("after withdrawing")

    def join(self, launch: wire.Launch, report: Report) -> list[wire.Verdict]:
        self._world.effect("before joining the router")
        if self._world.failing & {"its only server", "its only server once"}:
            self._world.failing.discard("its only server once")
            return [
                wire.Verdict("router", Outcome.REFUSE, "it is not in router front, which has no server now", next_step="fab roll --repair")
            ]
        self._world.in_router = True
        self._world.effect("after joining the router")
        return [wire.Verdict("router", Outcome.PASS, f"{_who(launch)} is in again")]


SEAT = RouterSeat(RouterAddress("front", "http://10.0.0.5:30001"), "http://10.0.0.1:30000", ["http://10.0.0.2:30000"], 300.0, 120.0)


def order(kind: str = OrderKind.RELAUNCH, *, staged: bool = False, router: bool = False) -> wire.Order:
    new = None if kind == OrderKind.TEARDOWN else NEW
    seat = SEAT if router else None
    return wire.Order("o1", kind, "s", "/state", 30000, wire.Policy(), "ann@laptop", old=OLD_ID, new=new, staged=staged, router=seat)


def supervise(world: World, asked: wire.Order, cancelled: str | None = None) -> wire.OrderResult:
    """One supervisor: a fresh one, or one that takes over."""
    router = None if asked.router is None else WorldRouter(world)
    machine = Relaunch(asked, WorldSteps(world), Recording(world), world.boot, lambda: cancelled, router)
    history = read_history(world.journal)
    return machine.run() if history is None else machine.resume(history)


def instants(world: Callable[[], World], asked: wire.Order) -> Iterator[int]:
    """All instants of an undisturbed run."""
    sample = world()
    supervise(sample, asked)
    yield from range(len(sample.effects))
