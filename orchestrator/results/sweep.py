"""What a sweep tries and in which order, and where it stands by its journal. Pure.

A sweep relaunches a service at each of its points and times each launch. With several rounds the order turns round each time (A B B A), so
that a slow drift of the machine falls on all points alike; each step is a launch of its own, also where the point serves already, since
launches of the same thing differ and only several of them show by how much.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.agent import wire
from orchestrator.agent.failure_classes import Category
from orchestrator.config.fields import ArgumentType
from orchestrator.results.sweep_records import Begun, Changed, Dropped, Finished, Ordered, Record, Resumed, Seen, Skipped, Timed


@dataclass(frozen=True)
class Point:
    """Backend profiles (``flashinfer_cutlass+ep8``), and arguments by exact long flag that are laid over the service's."""

    backend: str
    arguments: dict[str, ArgumentType] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``flashinfer_cutlass --max-running-requests 64``."""
        return " ".join([self.backend, *(_told(flag, value) for flag, value in self.arguments.items())])


def _told(flag: str, value: ArgumentType) -> str:
    if value is True:
        return flag
    if value is False:
        return f"without {flag}"
    return f"{flag} {' '.join(map(str, value)) if isinstance(value, list) else value}"


@dataclass(frozen=True)
class Timing:
    """How each launch is timed; see :class:`orchestrator.flows.measure.MeasureOptions`, whose fields these are."""

    batch_sizes: list[int] = field(default_factory=lambda: [1, 4, 16])
    input_tokens: int = 256
    output_tokens: int = 256
    repeats: int = 6
    seconds: float = 900.0
    temperature: float = 0.0


@dataclass(frozen=True)
class Design:
    """What was asked for.

    Attributes:
        best_at: the batch size by whose time per output token the best point is told.
        restore: it ends on what served at its beginning, not on the best point.
    """

    points: list[Point]
    timing: Timing
    rounds: int = 1
    best_at: int = 1
    restore: bool = False

    @property
    def steps(self) -> list[int]:
        """The point of each step, in their order: forth, back, forth."""
        there = list(range(len(self.points)))
        return [point for number in range(self.rounds) for point in (there if number % 2 == 0 else reversed(there))]

    @property
    def flags(self) -> list[str]:
        """All arguments of which values are tried, at whichever point."""
        return list(dict.fromkeys(flag for point in self.points for flag in point.arguments))


def grid(backends: Sequence[str], arguments: Mapping[str, Sequence[ArgumentType]]) -> list[Point]:
    """Every combination, the last argument's values running fastest."""
    combinations = itertools.product(backends, *arguments.values())
    return [Point(str(backend), dict(zip(arguments, values, strict=True))) for backend, *values in combinations]


@dataclass(frozen=True)
class Standing:
    """Where a sweep stands.

    Attributes:
        seen: what must serve, unless somebody else has changed it meanwhile.
        point: the point that serves; None where it is none of the sweep's.
        at_start: whether what serves is what served at the beginning, or its equal after a way back.
        start_launch: the launch of the box's own records that would bring back what served at the beginning; None: there is none.
        tried: what ended each step, the last one's number standing for the relaunch with which a sweep ends.
        launches: what was launched at a step, with its timing still to come or made.
        order: an order whose end is not known here.
        untimed: the step whose launch serves and was not timed yet.
    """

    design: Design
    begun: Begun
    seen: Seen
    point: int | None = None
    at_start: bool = True
    start_launch: str | None = None
    tried: dict[int, Skipped | Changed | Timed] = field(default_factory=dict)
    launches: dict[int, Changed] = field(default_factory=dict)
    order: Ordered | None = None
    untimed: int | None = None
    finished: Finished | None = None

    @property
    def steps_left(self) -> list[int]:
        """The points that are still to be launched, in their order."""
        return [point for step, point in enumerate(self.design.steps) if step not in self.tried and step != self.untimed]

    @property
    def changes(self) -> list[Changed]:
        """How every order has ended, the last one's number standing for the relaunch with which a sweep ends."""
        failed = [end for step, end in self.tried.items() if isinstance(end, Changed) and step not in self.launches]
        return [*self.launches.values(), *failed]

    @property
    def last_step(self) -> int:
        """The number of the relaunch with which it ends."""
        return len(self.design.steps)

    def timings(self) -> dict[int, list[Timed]]:
        """The timings of each point, those included that are not to be believed."""
        found: dict[int, list[Timed]] = {}
        for step, point in enumerate(self.design.steps):
            end = self.tried.get(step)
            if isinstance(end, Timed):
                found.setdefault(point, []).append(end)
        return found


def stand(records: Sequence[Record], design: Design) -> Standing:
    """Where a sweep stands by its journal, whose first record says how it began.

    Raises:
        ValueError: it does not begin so.
    """
    first, *later = records
    if not isinstance(first, Begun):
        raise ValueError("its first record does not say what it tries")
    standing = Standing(design, first, first.seen, start_launch=first.start_launch)
    for record in later:
        standing = _after(standing, record)
    return standing


def _after(before: Standing, record: Record) -> Standing:
    if isinstance(record, Ordered):
        return replace(before, order=record, untimed=None)
    if isinstance(record, Dropped):
        return replace(before, order=None)
    if isinstance(record, Changed):
        return _changed(before, record)
    if isinstance(record, Skipped):
        return replace(before, order=None, tried={**before.tried, record.step: record})
    if isinstance(record, Timed):
        return replace(before, untimed=None, tried={**before.tried, record.step: record})
    if isinstance(record, Resumed):
        return resumed(before, record.seen)
    return replace(before, finished=record) if isinstance(record, Finished) else before


def _changed(before: Standing, end: Changed) -> Standing:
    """An order has ended. One that was stopped because the operator wanted it tells nothing of its point, which is tried again."""
    point = before.order.point if before.order is not None else None
    after = replace(before, order=None)
    if end.state == wire.State.DONE:
        after = replace(
            after,
            point=point,
            at_start=point is None,
            seen=Seen(end.launch_id),
            launches={**before.launches, end.step: end},
        )
        if end.step < before.last_step:
            return replace(after, untimed=end.step)
        return replace(after, tried={**before.tried, end.step: end})
    if end.state == wire.State.RESTORED:
        after = _restored(after, end)
    if end.state == wire.State.DOWN:
        after = replace(after, seen=Seen(None), point=None, at_start=False)
    if end.category == Category.CANCELLED:
        return after
    return replace(after, tried={**before.tried, end.step: end})


def _restored(before: Standing, end: Changed) -> Standing:
    """What served before is back, under a new launch. Of a server that somebody else manages the box does not say under which."""
    if before.at_start and before.begun.seen.launch_id is None:
        return replace(before, seen=Seen(None))
    started = end.launch_id if before.at_start else before.start_launch
    return replace(before, seen=Seen(end.launch_id), start_launch=started)


def resumed(before: Standing, seen: Seen) -> Standing:
    """Somebody has looked at what serves and said yes to going on from there, whatever the sweep had left."""
    if before.seen.is_same(seen):
        return before
    is_start = seen.launch_id is not None and seen.launch_id == before.start_launch
    at_start = is_start or (before.at_start and not before.seen.is_known)
    return replace(before, seen=seen, point=None, at_start=at_start, untimed=None)


@dataclass(frozen=True)
class Look:
    """The end of this order has to be asked for."""

    order: Ordered


@dataclass(frozen=True)
class Time:
    """The launch of this step serves and is timed."""

    step: int


@dataclass(frozen=True)
class Launch:
    """This point is launched."""

    step: int
    point: int


@dataclass(frozen=True)
class Close:
    """All points were tried: it ends on the best of them, or where it began."""


@dataclass(frozen=True)
class Finish:
    """Nothing is left to be changed."""


Action = Look | Time | Launch | Close | Finish


def next_action(standing: Standing) -> Action | None:
    """What comes next; None once it has finished."""
    if standing.finished is not None:
        return None
    if standing.order is not None:
        return Look(standing.order)
    if standing.untimed is not None:
        return Time(standing.untimed)
    for step, point in enumerate(standing.design.steps):
        if step not in standing.tried:
            return Launch(step, point)
    return Close() if standing.last_step not in standing.tried else Finish()
