"""How a load goes compared with earlier ones of the service: what of it is usual, and what takes longer than ever. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.history import USUAL
from orchestrator.agent.wire import State

LOADS = frozenset({State.STARTING, State.STAGING, State.ACTIVATING, State.LOADING, State.ANSWERING})
"""States in which a server loads."""

_BEYOND = 1.25
_BEYOND_SECONDS = 2.0
"""Clearly longer than ever is a quarter more than the longest so far, and this much more of those that take no time."""
_TOLD_FROM = 1.0
"""Seconds. What takes less is over before it is read."""


@dataclass(frozen=True)
class Timed:
    """A phase that goes on: for how long, and what it took before where that is known. Seconds."""

    seconds: float
    usual: wire.UsualPhase | None = None

    @property
    def is_overdue(self) -> bool:
        """Whether it takes clearly longer than in any earlier load."""
        return self.usual is not None and self.seconds > self.usual.longest * _BEYOND + _BEYOND_SECONDS

    @property
    def is_worth_telling(self) -> bool:
        return self.is_overdue or (self.usual is not None and self.usual.seconds >= _TOLD_FROM)


@dataclass(frozen=True)
class Ended:
    """A phase of a load that is over, as it was told of last, and how long it took."""

    progress: wire.Progress
    timed: Timed


@dataclass
class Pace:
    """Follows one order's states and progress, and knows what is usual for the load that is on. All moments are the box's own."""

    usual: dict[str, wire.UsualPhase] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    """Phases of this load of which it was told that they are overdue."""
    _entry: wire.StateEntry | None = None
    _last: wire.Progress | None = None
    """The phase of a load that goes on."""

    def enter(self, entry: wire.StateEntry) -> Ended | None:
        """Take in an order's state, and what it says of the load that begins with it. The phase that it ends is returned."""
        ended = self._end(entry.monotonic)
        self._entry = entry
        if entry.state in (State.CHECKED, State.ROLLING_BACK):
            self.usual, self._told = {}, set()
        if USUAL in entry.data:
            self.usual, self._told = _understood(entry.data[USUAL]), set()
        return ended

    def hear(self, progress: wire.Progress) -> Ended | None:
        """Take in what goes on inside the state. The phase that it ends is returned."""
        loads = progress.in_phase is not None and progress.state in LOADS
        ended = None
        if self._last is not None and (self._last.state, self._last.phase) != (progress.state, progress.phase):
            begun = self._moment(progress)
            ended = None if begun is None else self._end(begun - (progress.in_phase or 0.0))
        self._last = progress if loads else None
        return ended

    def _end(self, moment: float) -> Ended | None:
        """End the phase that goes on at that moment; None where there is none, or it was over before anybody could read it."""
        last, self._last = self._last, None
        told = None if last is None else self._moment(last)
        if last is None or told is None:
            return None
        timed = self.timed(last, moment - told)
        return Ended(last, timed) if timed.seconds >= _TOLD_FROM else None

    def _moment(self, progress: wire.Progress) -> float | None:
        """When it was told, by the clock of the journal's lines."""
        if self._entry is None or self._entry.state != progress.state:
            return None
        return self._entry.monotonic + progress.elapsed

    def timed(self, progress: wire.Progress, since: float = 0.0) -> Timed:
        """How a phase stands `since` seconds after it was told."""
        if progress.in_phase is None or progress.state not in LOADS:
            return Timed(progress.elapsed + since)
        return Timed(progress.in_phase + since, self.usual.get(progress.phase))

    def newly_overdue(self, progress: wire.Progress) -> Timed | None:
        """The phase, the first time that it takes longer than ever."""
        timed = self.timed(progress)
        if not timed.is_overdue or progress.phase in self._told:
            return None
        self._told.add(progress.phase)
        return timed


def _understood(data: Any) -> dict[str, wire.UsualPhase]:
    """What an agent of another version says in a way of its own is not known."""
    found = {}
    for phase, value in data.items() if isinstance(data, Mapping) else ():
        try:
            found[str(phase)] = wire.from_json(wire.UsualPhase, value)
        except wire.WireError:
            continue
    return found
