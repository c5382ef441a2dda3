"""How the supervisors of a server over several nodes keep together: where each of them stands, and what that means to the others.

Each node's supervisor carries out its own part. At a few points they wait for each other, and whatever one of them fails with turns all
of them back. Nobody decides for the others: each has the same table of standings (:class:`Table`) and reads it by the same rules, so a
supervisor that was ended and has come back needs nothing but the table. How the table travels is :mod:`rank_link`'s.
"""

import threading
from enum import IntEnum
from typing import Callable, Dict, List, Optional, Protocol, Sequence

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, steady, wait_until
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.steps import LaunchFailed

SILENCE_SECONDS = 60.0
"""A supervisor that was not heard of for longer is taken for gone: systemd starts one that was killed again within seconds."""
MEETING_SECONDS = 120.0
"""How long the supervisors wait for each other before anything is touched, beyond what rank 0 does meanwhile."""
LEAVE_SECONDS = 15.0
_TICK = 0.1


class Point(IntEnum):
    """What a supervisor has reached. At those marked with a * all wait until each of them is there."""

    NOTHING = 0
    LOCKED = 1
    """* Checked and locked. Nothing is touched anywhere before everybody is there."""
    STOPPED = 2
    """The old server of this node has ended. Rank 0 goes first: it drains, and tells SGLang's other ranks to end."""
    CLEAN = 3
    """* Nothing is left of it. A rank that were started earlier could meet the old rank 0, which is on the same address."""
    READY = 4
    """* This node's part of the new server is proven."""
    VERIFIED = 5
    """* Rank 0 has shown that the whole of it answers as it should."""
    DONE = 6
    """* Rank 0 has timed it, where that was asked for."""
    BACK_CLEAN = 11
    """* Turned back, and nothing is left of what failed."""
    BACK_READY = 12
    """* This node's part of the previous server is proven again."""


class Group(Protocol):
    """What the state machine of one node knows of the other nodes."""

    @property
    def rank(self) -> int:
        """Of this node."""

    def meet(self, point: Point, seconds: float, pulse: Callable[[], None]) -> None:
        """Say that `point` is reached, and wait until everybody is there; `pulse` is called all the while.

        Raises:
            LaunchFailed: another one has failed, is not heard of any more or is not there in time; or what `pulse` raises.
        """

    def conclude(self, seconds: float, pulse: Callable[[], None]) -> str:
        """Say that this node is done, and wait until everybody is; what remains in doubt about that, empty where nothing does.

        Rank 0, which everybody hears, takes a silent one for failed. To the others its silence may as well mean that it has ended well.

        Raises:
            LaunchFailed: another one says that it failed; to rank 0 also that it is silent or late; or what `pulse` raises.
        """

    def reach(self, point: Point) -> None:
        """Say that `point` is reached."""

    def wait_for_head(self, point: Point, seconds: float) -> None:
        """Wait until rank 0 has reached `point`, or has turned back.

        Raises:
            LaunchFailed: it has given up, is not heard of any more, or is not there within `seconds`.
        """

    def pulse(self) -> None:
        """Raise LaunchFailed when another one has failed or is not heard of any more."""

    def pulse_back(self) -> None:
        """The same on the way back, where only one that has given up speaks against going on."""

    def turn_back(self, reason: str) -> None:
        """Say that this node goes forward no more."""

    def give_up(self, reason: str) -> None:
        """Say that nothing will serve on this node."""


class Alone:
    """The group of a server on one node."""

    rank = 0

    def meet(self, point: Point, seconds: float, pulse: Callable[[], None]) -> None:
        """There is nobody to wait for."""

    def conclude(self, seconds: float, pulse: Callable[[], None]) -> str:
        """There is nobody to wait for."""
        return ""

    def reach(self, point: Point) -> None:
        """There is nobody to tell."""

    def wait_for_head(self, point: Point, seconds: float) -> None:
        """It is the head itself."""

    def pulse(self) -> None:
        """Nobody else fails."""

    def pulse_back(self) -> None:
        """Nobody else fails."""

    def turn_back(self, reason: str) -> None:
        """There is nobody to tell."""

    def give_up(self, reason: str) -> None:
        """There is nobody to tell."""


class Table:
    """What one supervisor knows of all of them; for several threads.

    Args:
        now: the steady clock's time.
        known: what was known already.
        keep: keeps what is known of the others, for a supervisor that takes over. Called before anybody is told that it was heard, since
            who knows that may end.
    """

    def __init__(
        self,
        rank: int,
        count: int,
        now: Callable[[], float] = steady.now,
        known: Sequence[wire.RankStanding] = (),
        keep: Callable[[List[wire.RankStanding]], None] = lambda standings: None,
    ) -> None:
        self.rank = rank
        self.count = count
        self._now = now
        self._keep = keep
        self._lock = threading.Lock()
        self._standings: Dict[int, wire.RankStanding] = {each: wire.RankStanding(each) for each in range(count)}
        self._heard: Dict[int, float] = {each: now() for each in range(count)}
        self.told: Optional[wire.RankStanding] = None
        """What rank 0 has heard last of this supervisor."""
        self.trouble = ""
        """What keeps this supervisor from hearing of others at the moment."""
        for standing in known:
            self.take(standing)

    def own(self) -> wire.RankStanding:
        """Where this supervisor stands itself."""
        return self.standings()[self.rank]

    def standings(self) -> List[wire.RankStanding]:
        """One for each rank, in their order."""
        with self._lock:
            return [self._standings[each] for each in range(self.count)]

    def heard(self, standing: wire.RankStanding) -> None:
        """Take in what a supervisor says of itself, now."""
        self.take(standing)
        with self._lock:
            self._heard[standing.rank] = self._now()

    def take(self, standing: wire.RankStanding) -> None:
        """Take in what is known of a rank, from wherever; ranks that there are not are no mistake worth an end."""
        with self._lock:
            known = self._standings.get(standing.rank)
            if known is None or further(known, standing) == known:
                return
            self._standings[standing.rank] = further(known, standing)
            others = [each for each in self._standings.values() if each.rank != self.rank]
            if standing.rank != self.rank:
                self._keep(others)

    def silent(self) -> Optional[int]:
        """The first rank that should be heard of by this supervisor and was not for too long.

        Rank 0 hears of all, and all hear of rank 0: who else is silent they hear from it.
        """
        with self._lock:
            now = self._now()
            near = range(1, self.count) if self.rank == 0 else [0]
            for each in near:
                if not self._standings[each].left and now - self._heard[each] > SILENCE_SECONDS:
                    return each
        return None


def further(one: wire.RankStanding, other: wire.RankStanding) -> wire.RankStanding:
    """What two standings of one rank say together: nothing that was reached is taken back, and the first reason stays."""
    return wire.RankStanding(
        one.rank,
        max(one.point, other.point),
        one.failure or other.failure,
        one.down or other.down,
        one.left or other.left,
    )


def behind(standings: List[wire.RankStanding], point: int) -> List[int]:
    """The ranks that are not at `point` or beyond it; who has turned back is not beyond any point of the way forward."""
    end = Point.BACK_CLEAN if point < Point.BACK_CLEAN else 1 << 16
    return [standing.rank for standing in standings if not point <= standing.point < end]


class Together:
    """The group of a server over several nodes, as one of its supervisors has it."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def rank(self) -> int:
        return self._table.rank

    def reach(self, point: Point) -> None:
        self._table.take(wire.RankStanding(self.rank, point))

    def turn_back(self, reason: str) -> None:
        self._table.take(wire.RankStanding(self.rank, failure=reason))

    def give_up(self, reason: str) -> None:
        self._table.take(wire.RankStanding(self.rank, failure=reason, down=True))

    def pulse(self) -> None:
        self._require_forward()
        self._require_heard(Point.DONE)

    def pulse_back(self) -> None:
        down = next((each for each in self._others() if each.down), None)
        if down is not None:
            raise _failed(f"rank {down.rank} has given up: {down.failure}")
        self._require_heard(Point.BACK_READY)

    def meet(self, point: Point, seconds: float, pulse: Callable[[], None]) -> None:
        self.reach(point)
        watch = self.pulse_back if point >= Point.BACK_CLEAN else self.pulse

        def all_there() -> bool:
            if point < Point.BACK_CLEAN:
                # One that was there may have turned back since.
                self._require_forward()
            if not behind(self._table.standings(), point):
                return True
            watch()
            pulse()
            return False

        if not wait_until(all_there, Deadline(seconds), _TICK):
            missing = ", ".join(str(each) for each in behind(self._table.standings(), point))
            raise _failed(f"rank {missing} was not {_WORDS[point]} within {seconds:.0f} s{self._trouble()}")

    def conclude(self, seconds: float, pulse: Callable[[], None]) -> str:
        if self.rank == 0:
            self.meet(Point.DONE, seconds, pulse)
            return ""
        self.reach(Point.DONE)

        def known() -> bool:
            if not behind(self._table.standings(), Point.DONE):
                return True
            self._require_forward()
            pulse()
            return self._table.silent() is not None

        wait_until(known, Deadline(seconds), _TICK)
        missing = ", ".join(str(each) for each in behind(self._table.standings(), Point.DONE))
        return f"rank {missing} did not say that it is done{self._trouble()}" if missing else ""

    def wait_for_head(self, point: Point, seconds: float) -> None:
        def there() -> bool:
            head = self._table.standings()[0]
            if head.point >= point:
                return True
            if head.down:
                raise _failed(f"rank 0 has given up: {head.failure}")
            if head.failure:
                return True
            self._require_heard(Point.DONE)
            return False

        if self.rank and not wait_until(there, Deadline(seconds), _TICK):
            raise _failed(f"rank 0 has not stopped its part within {seconds:.0f} s{self._trouble()}")

    def leave(self) -> None:
        """Wait, for a short time, until the others have heard where this one stands; then say no more.

        Rank 0 stays until everybody else has left, since they hear of each other by it alone. One of the others may have come to its end
        before rank 0's supervisor was there to hear of it.
        """
        others = [each.rank for each in self._others()]
        self._table.take(wire.RankStanding(self.rank, left=True))
        if self.rank:
            wait_until(lambda: self._table.told == self._table.own(), Deadline(LEAVE_SECONDS), _TICK)
        else:
            wait_until(lambda: all(self._table.standings()[each].left for each in others), Deadline(LEAVE_SECONDS), _TICK)

    def _others(self) -> List[wire.RankStanding]:
        return [each for each in self._table.standings() if each.rank != self.rank]

    def _require_forward(self) -> None:
        failed = next((each for each in self._others() if each.failure), None)
        if failed is not None:
            # What turned that one back may have been another one itself.
            told = failed.failure.startswith("rank ")
            raise _failed(failed.failure if told else f"rank {failed.rank} failed: {failed.failure}")

    def _require_heard(self, end: Point) -> None:
        """Raise LaunchFailed when one says no more that is to be waited for. At `end` nobody is any more."""
        gone = next((each for each in self._others() if each.left and each.point != end), None)
        if gone is not None:
            raise _failed(f"the supervisor of rank {gone.rank} has ended before the others")
        silent = self._table.silent()
        if silent is not None:
            raise _failed(f"rank {silent} was not heard of for {SILENCE_SECONDS:.0f} s{self._trouble()}")

    def _trouble(self) -> str:
        return f": {self._table.trouble}" if self._table.trouble else ""


_WORDS = {
    Point.LOCKED: "checked and locked",
    Point.CLEAN: "clean",
    Point.READY: "ready",
    Point.VERIFIED: "verified",
    Point.DONE: "done",
    Point.BACK_CLEAN: "clean again",
    Point.BACK_READY: "ready again",
}


def _failed(summary: str) -> LaunchFailed:
    advice = "the run folder of the same order on that rank's node, or its fab logs, say why"
    return LaunchFailed(wire.Failure(Category.ANOTHER_RANK, summary, advice=advice))
