"""What a sweep has found: its points side by side, and the best of them. Pure.

Only timings that are to be believed count. The fastest point is not always the best: of those that no difference is shown to it, the one
that serves already is kept, else the one that comes first. A relaunch for a difference that may be noise is dark time for nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.errors import InvalidTimingError, RolledBackError
from orchestrator.results.comparison import launches
from orchestrator.results.measurements import Measurement
from orchestrator.results.statistics import Contrast, Finding, compare
from orchestrator.results.sweep import Point, Standing
from orchestrator.results.sweep_records import Changed, Skipped, Timed

Sides = Mapping[int, Sequence[Measurement]]
"""The timings to be believed, by point."""


@dataclass(frozen=True)
class PointAtBatch:
    """One point at one batch size. Times per output token in seconds, rates in tokens a second of all streams together.

    Attributes:
        time: the median of the launches' medians.
        low, high: of one launch the interval that holds its median, of several the lowest and the highest launch.
        to_first: the point over the reference; None for that itself.
    """

    batch_size: int
    time: float
    low: float
    high: float
    tokens_per_second: float | None
    to_first: Contrast | None = None


@dataclass(frozen=True)
class PointFound:
    """What became of a point. `launches` were made, `timed` of them have a timing to be believed; `troubles` tell of the rest."""

    number: int
    point: Point
    launches: int
    timed: int
    batches: list[PointAtBatch] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Choice:
    """The best point's number, None where no timing is to be believed; `alike` are others that may be as fast. `why` is a sentence."""

    best: int | None
    why: str
    alike: tuple[int, ...] = ()


def found(standing: Standing, sides: Sides) -> list[PointFound]:
    """Every point with its timings, each compared with the first that has any."""
    reference = reference_point(sides)
    return [_point(standing, number, sides, reference) for number in range(len(standing.design.points))]


def reference_point(sides: Sides) -> int | None:
    """The point that the others are compared with: the first one with a timing to be believed."""
    return min((number for number, side in sides.items() if side), default=None)


def _point(standing: Standing, number: int, sides: Sides, reference: int | None) -> PointFound:
    side = sides.get(number, ())
    first = sides[reference] if reference is not None and reference != number else None
    steps = [step for step, point in enumerate(standing.design.steps) if point == number]
    troubles = list(dict.fromkeys(text for step in steps for text in troubles_of(standing.tried.get(step))))
    sizes = [size for size in standing.design.timing.batch_sizes if launches(side, size)]
    return PointFound(
        number,
        standing.design.points[number],
        sum(1 for step in steps if step in standing.launches or isinstance(standing.tried.get(step), Changed)),
        len({item.launch for item in side}),
        [_at_batch(side, size, first) for size in sizes],
        troubles,
    )


def _at_batch(side: Sequence[Measurement], size: int, first: Sequence[Measurement] | None) -> PointAtBatch:
    own = launches(side, size)
    medians = [statistics.median(launch.values) for launch in own]
    batches = [batch for item in side for batch in item.report.batches if batch.batch_size == size]
    rates = [batch.tokens_per_second.median for batch in batches if batch.tokens_per_second is not None]
    interval = batches[0].time_per_output_token if len(own) == 1 else None
    low, high = (min(medians), max(medians)) if interval is None else (interval.low, interval.high)
    other = launches(first, size) if first is not None else []
    contrast = compare(other, own, seed=size) if other else None
    return PointAtBatch(size, statistics.median(medians), low, high, statistics.median(rates) if rates else None, contrast)


def troubles_of(end: Skipped | Changed | Timed | None) -> list[str]:
    """Why a step has no timing to be believed; empty where it has one, or has not ended."""
    if isinstance(end, Skipped):
        return [f"refused: {'; '.join(end.evidence) or end.reason}"]
    if isinstance(end, Changed):
        return [f"{end.state}: {end.summary}" + (f" [{end.category}]" if end.category else "")]
    return [f"not to be believed: {reason}" for reason in end.invalid] if end is not None else []


def choose(sides: Sides, points: Sequence[Point], batch_size: int, serves: int | None) -> Choice:
    """The best point by its time per output token at a batch size.

    Args:
        serves: the point that serves now, if any does.
    """
    timed = {number: own for number, side in sides.items() if (own := launches(side, batch_size))}
    if not timed:
        return Choice(None, f"no point has a timing to be believed at batch {batch_size}")
    times = {number: statistics.median(statistics.median(launch.values) for launch in own) for number, own in timed.items()}
    fastest = min(sorted(times), key=lambda number: times[number])
    close = [
        number
        for number in sorted(timed)
        if number != fastest and compare(timed[fastest], timed[number], seed=batch_size).finding is Finding.NOT_SHOWN
    ]
    among = sorted([fastest, *close])
    best = serves if serves in among else among[0]
    alike = tuple(number for number in among if number != best)
    return Choice(best, _why(points, times, best, fastest, alike, serves, batch_size), alike)


def _why(
    points: Sequence[Point], times: Mapping[int, float], best: int, fastest: int, alike: Sequence[int], serves: int | None, batch_size: int
) -> str:
    told = f"{points[best].label}: {times[best] * 1000:.2f} ms a token at batch {batch_size}"
    if not alike:
        return f"best is {told}" + (", the only one timed" if len(times) == 1 else "")
    others = ", ".join(f"{points[number].label} ({times[number] * 1000:.2f} ms)" for number in alike)
    kept = "serves already" if best == serves else "comes first"
    if best == fastest:
        return f"best is {told}; no difference shown to {others}"
    return f"best is {told}; no difference shown to {others}, and it {kept}"


def exit_code(standing: Standing, sides: Sides) -> int:
    """Of a sweep after which something serves.

    Returns:
        0 where every launch was made and has a timing to be believed; 9 where none has; else 6, as when a relaunch was rolled back.
    """
    if not any(sides.values()):
        return InvalidTimingError.exit_code
    last = standing.tried.get(standing.last_step)
    ended_elsewhere = last is not None and standing.last_step not in standing.launches
    troubled = any(troubles_of(end) for step, end in standing.tried.items() if step < standing.last_step)
    return RolledBackError.exit_code if troubled or ended_elsewhere else 0
