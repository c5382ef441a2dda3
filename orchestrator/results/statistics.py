"""Whether one side of a comparison is faster than the other, from launches and their repeats. Pure and seeded.

A side is one or more launches, a launch one or more repeats of one value. Repeats of a launch resemble each other more than two launches
of the same thing do (other memory, other neighbours, other compiled kernels), so many repeats of one launch prove little: launches are
what is counted, and where each side has only one, the spread between launches is assumed and the finding says that it is blind to it.

All differences are of logarithms: a ratio and its inverse are then equally far from 1.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

CONFIDENCE = 0.95
POWER = 0.9
"""A difference "could have been shown" when nine of ten such comparisons would show it."""
WANTED_DIFFERENCE = 0.03
"""The slowdown that :attr:`Contrast.launches_needed` is about."""
ASSUMED_SPREAD = 0.006
"""Standard deviation between launches, as a share of the value, where none can be seen: half a percent, and what drifts within a launch.
It is no fact: launches of a tiny model on one H200 had medians from 1.31 to 2.42 ms."""
REPLICATES = 2000

_NORMAL = statistics.NormalDist()
_UPPER = (1 + CONFIDENCE) / 2
_MOST_LAUNCHES = 200
_FAR = 3 * 1.4826
"""In median absolute deviations: three standard deviations, were the values normal."""


class _Unbounded:
    """Tells pydantic's schema of a number which may be infinite that it is null then: JSON has no infinity."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": "null"}]}


Bound = Annotated[float, _Unbounded()]
"""A number that is infinite where there is no bound."""


class Finding(StrEnum):
    """What a comparison found of the second side, for a value of which less is better."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_SHOWN = "no difference shown"


@dataclass(frozen=True)
class LaunchRepeats:
    """One launch's values, above zero and in the order they were taken. `started` (Unix time) tells the order of launches."""

    values: tuple[float, ...]
    started: float | None = None


@dataclass(frozen=True)
class Contrast:
    """The second side over the first.

    Attributes:
        ratio: above 1 where the second side takes longer.
        low, high: the ends of its interval, which holds the true ratio in 95 % of cases. Zero and infinite where nothing can be told.
        launches: how many each side has.
        launch_spread: standard deviation between launches as a share of the value, beyond what repeats explain; None where none is seen.
        assumed_spread: what was taken in its place.
        explained_by: the spread between launches that would turn the finding into "no difference shown"; only where one is assumed.
        smallest_shown: the smallest slowdown (0.02 is 2 %) that nine of ten such comparisons would show; infinite when none.
        launches_needed: a side, to show a slowdown of 3 % as often; None when more than 200.
        remarks: what weakens it.
    """

    ratio: float
    low: float
    high: Bound
    finding: Finding
    launches: tuple[int, int]
    launch_spread: float | None
    assumed_spread: float | None
    explained_by: float | None
    smallest_shown: Bound
    launches_needed: int | None
    remarks: tuple[str, ...] = ()

    @property
    def blind(self) -> bool:
        """Whether the spread between launches could not be seen."""
        return self.launch_spread is None


def compare(
    first: Sequence[LaunchRepeats],
    second: Sequence[LaunchRepeats],
    *,
    assumed_spread: float = ASSUMED_SPREAD,
    seed: int = 0,
    replicates: int = REPLICATES,
) -> Contrast:
    """Compare two sides by resampling launches, and repeats within each.

    Args:
        assumed_spread: standard deviation between launches, used where each side has one.
        seed: the same numbers give the same answer.

    Raises:
        ValueError: a side or a launch without values, or a value that is not above zero.
    """
    sides = (_Side.of(first), _Side.of(second))
    spread = _spread(sides, assumed_spread)
    point = sides[1].location - sides[0].location
    half_width = _half_width(sides, spread, random.Random(seed), replicates)  # noqa: S311 - not for secrecy
    finding = Finding.NOT_SHOWN
    if abs(point) > half_width:
        finding = Finding.SLOWER if point > 0 else Finding.FASTER
    shown = half_width * _standard_errors_shown(spread.degrees) / student_quantile(_UPPER, spread.degrees)
    return Contrast(
        ratio=math.exp(point),
        low=math.exp(point - half_width),
        high=_exponential(point + half_width),
        finding=finding,
        launches=(len(first), len(second)),
        launch_spread=None if spread.assumed else spread.between,
        assumed_spread=spread.between if spread.assumed else None,
        explained_by=_explained_by(point, sides, spread) if spread.assumed and finding is not Finding.NOT_SHOWN else None,
        smallest_shown=_exponential(shown) - 1,
        launches_needed=_launches_needed(spread),
        remarks=tuple(_remarks(first, second)),
    )


@dataclass(frozen=True)
class _Launch:
    """A launch's median, with what resampling its repeats needs: the sorted values, those far off moved in."""

    location: float
    ordered: tuple[float, ...]
    variance: float
    """Of the location, as far as repeats tell."""

    @classmethod
    def of(cls, launch: LaunchRepeats) -> _Launch:
        if not launch.values or not all(math.isfinite(value) and value > 0 for value in launch.values):
            raise ValueError("a launch needs values, all finite and above zero")
        logarithms = [math.log(value) for value in launch.values]
        location = statistics.median(logarithms)
        reach = _FAR * statistics.median(abs(value - location) for value in logarithms)
        # An outlier is evidence of one, however far off it is.
        ordered = tuple(sorted(min(max(value, location - reach), location + reach) for value in logarithms))
        variance = sum(share * (ordered[low] + ordered[high] - 2 * location) ** 2 / 4 for low, high, share in _medians(len(ordered)))
        return cls(location, ordered, variance)

    @property
    def degrees(self) -> int:
        """Of freedom, of the variance."""
        return len(self.ordered) - 1

    def resampled(self, rng: random.Random, replicates: int) -> list[float]:
        """How far the median lies off, in each replicate."""
        pairs = _medians(len(self.ordered))
        offsets = [(self.ordered[low] + self.ordered[high]) / 2 - self.location for low, high, _ in pairs]
        return rng.choices(offsets, weights=[share for *_, share in pairs], k=replicates)


@functools.lru_cache(maxsize=64)
def _medians(count: int) -> tuple[tuple[int, int, float], ...]:
    """Which of `count` sorted values are in the middle of a resample of as many, and how often (Efron 1979, Maritz and Jarrett 1978).

    Of an even number two are: the lower's and the upper's distribution side by side, as if both went up together.
    """
    lower, upper = (_cumulative(count, position) for position in ((count - 1) // 2, count // 2))
    ends = sorted({0.0, *lower, *upper})
    return tuple((bisect_right(lower, start), bisect_right(upper, start), end - start) for start, end in itertools.pairwise(ends))


def _cumulative(count: int, position: int) -> list[float]:
    """How often the value at `position` (from 0) of a sorted resample is at most the first, the second, ... of `count` values."""

    def at_most(index: int) -> float:
        share = (index + 1) / count
        return sum(math.comb(count, more) * share**more * (1 - share) ** (count - more) for more in range(position + 1, count + 1))

    return [*(at_most(index) for index in range(count - 1)), 1.0]


@dataclass(frozen=True)
class _Side:
    launches: tuple[_Launch, ...]

    @classmethod
    def of(cls, launches: Sequence[LaunchRepeats]) -> _Side:
        if not launches:
            raise ValueError("a side needs a launch")
        return cls(tuple(_Launch.of(launch) for launch in launches))

    @property
    def location(self) -> float:
        return statistics.fmean(launch.location for launch in self.launches)

    @property
    def deviations(self) -> list[float]:
        """Of the launches from their side's location."""
        return [launch.location - self.location for launch in self.launches]


@dataclass(frozen=True)
class _Spread:
    """Of launches about their side's location, the same for both sides: `between` launches, beyond what repeats `within` one explain.

    `residuals` are what launches are resampled from. `degrees` of freedom widen what is resampled from few; None: as many as one likes.
    """

    between: float
    within: float
    residuals: tuple[float, ...]
    degrees: float | None
    assumed: bool

    @property
    def of_a_launch(self) -> float:
        return math.hypot(self.between, self.within)


def _spread(sides: tuple[_Side, _Side], assumed: float) -> _Spread:
    launches = [launch for side in sides for launch in side.launches]
    within = statistics.median(launch.variance for launch in launches)
    degrees = len(launches) - 2
    if degrees == 0:
        return _Spread(assumed, math.sqrt(within), (), None, assumed=True)
    seen = sum(deviation**2 for side in sides for deviation in side.deviations) / degrees
    between = max(0.0, seen - within)
    # Deviations from a mean of few are too small; what repeats explain is resampled with the repeats.
    shrink = math.sqrt(between / seen) if seen else 0.0
    residuals = tuple(
        deviation * shrink * math.sqrt(len(side.launches) / (len(side.launches) - 1))
        for side in sides
        if len(side.launches) > 1
        for deviation in side.deviations
    )
    return _Spread(math.sqrt(between), math.sqrt(within), residuals, degrees, assumed=False)


def _half_width(sides: tuple[_Side, _Side], spread: _Spread, rng: random.Random, replicates: int) -> float:
    """Half the interval's width: what 95 % of resampled differences stay within, widened as Student's distribution is over the normal."""
    if spread.assumed:
        return _half_width_of_two(sides, spread, rng, replicates)
    off = [_resampled(side, spread, rng, replicates) for side in sides]
    widened = student_quantile(_UPPER, spread.degrees) / _NORMAL.inv_cdf(_UPPER)
    return _reach(off[0], off[1]) * widened


def _resampled(side: _Side, spread: _Spread, rng: random.Random, replicates: int) -> list[float]:
    count = len(side.launches)
    launches = rng.choices(spread.residuals, k=count * replicates)
    repeats = [launch.resampled(rng, replicates) for launch in side.launches]
    return [sum(launches[index::replicates]) / count + sum(drawn) / count for index, drawn in enumerate(zip(*repeats, strict=True))]


def _half_width_of_two(sides: tuple[_Side, _Side], spread: _Spread, rng: random.Random, replicates: int) -> float:
    """Of one launch a side: only repeats can be resampled, and the assumed spread is added."""
    degrees = _welch_degrees(sides)
    if degrees == 0:
        return math.inf
    widened = student_quantile(_UPPER, degrees) / _NORMAL.inv_cdf(_UPPER)
    off = [[drawn * widened + rng.gauss(0, spread.between) for drawn in side.launches[0].resampled(rng, replicates)] for side in sides]
    return _reach(off[0], off[1])


def _welch_degrees(sides: tuple[_Side, _Side]) -> float:
    """Degrees of freedom of a difference of two launches whose repeats spread differently (Welch and Satterthwaite)."""
    launches = [side.launches[0] for side in sides]
    if any(launch.degrees == 0 for launch in launches):
        return 0.0
    variance = sum(launch.variance for launch in launches)
    if not variance:
        return float(sum(launch.degrees for launch in launches))
    return variance**2 / sum(launch.variance**2 / launch.degrees for launch in launches)


def _reach(first: Sequence[float], second: Sequence[float]) -> float:
    """What 95 % of the differences stay within."""
    distances = sorted(abs(one - other) for one, other in zip(first, second, strict=True))
    return distances[min(len(distances) - 1, math.ceil(CONFIDENCE * len(distances)))]


def _explained_by(point: float, sides: tuple[_Side, _Side], spread: _Spread) -> float:
    noise = student_quantile(_UPPER, _welch_degrees(sides)) * math.sqrt(2) * spread.within
    return math.sqrt(max(0.0, point**2 - noise**2) / 2) / _NORMAL.inv_cdf(_UPPER)


def _launches_needed(spread: _Spread) -> int | None:
    wanted = math.log1p(WANTED_DIFFERENCE)
    for count in range(2, _MOST_LAUNCHES + 1):
        if _standard_errors_shown(2 * count - 2) * spread.of_a_launch * math.sqrt(2 / count) <= wanted:
            return count
    return None


def _standard_errors_shown(degrees: float | None) -> float:
    """The difference that nine of ten comparisons show: of the noncentral distribution of Student's (Abramowitz and Stegun 26.7.10)."""
    limit, z = student_quantile(_UPPER, degrees), _NORMAL.inv_cdf(POWER)
    if degrees is None:
        return limit + z
    return limit * (1 - 1 / (4 * degrees)) + z * math.sqrt(1 + limit**2 / (2 * degrees))


def _remarks(first: Sequence[LaunchRepeats], second: Sequence[LaunchRepeats]) -> list[str]:
    remarks = []
    if 1 in (len(first), len(second)) and len(first) + len(second) > 2:
        remarks.append("one side has a single launch: its spread is taken to be the other side's")
    starts = [[launch.started for launch in side if launch.started is not None] for side in (first, second)]
    one, other = starts
    if len(one) + len(other) > 2 and one and other and (max(one) < min(other) or max(other) < min(one)):
        remarks.append(
            "all launches of one side came first: a slow drift of the machine looks like a difference; in the order A B B A it does not"
        )
    return remarks


def _exponential(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def student_quantile(probability: float, degrees: float | None) -> float:
    """Student's distribution: exact for 1 and 2 degrees of freedom, within 0.2 % from 3 on at 0.9 and 0.975; None: the normal one.

    From the expansion in 1 / degrees (Abramowitz and Stegun 26.7.5).
    """
    z = _NORMAL.inv_cdf(probability)
    if degrees is None:
        return z
    centred = 2 * probability - 1
    if degrees < 2:
        return math.tan(math.pi * centred / 2)
    if degrees < 3:
        return centred * math.sqrt(2 / (1 - centred**2))
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))
