"""Two sides of a comparison, batch size by batch size, and what is said of them. Pure.

A side is made of run folders. Several of one launch are one launch with all their repeats: timing a server again tells nothing of the
next one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.results.differing import Differing, differing
from orchestrator.results.measurements import Measurement, batch_sizes
from orchestrator.results.statistics import WANTED_DIFFERENCE, Contrast, Finding, LaunchRepeats, compare


@dataclass(frozen=True)
class BatchComparison:
    """One batch size. `first` and `second` are times per output token in seconds, the median of the launches' medians."""

    batch_size: int
    first: float
    second: float
    contrast: Contrast


@dataclass(frozen=True)
class Comparison:
    """`differing` comes first in what is shown: a ratio means what it does under these."""

    differing: tuple[Differing, ...]
    batches: tuple[BatchComparison, ...]
    remarks: tuple[str, ...] = ()


def compare_sides(first: Sequence[Measurement], second: Sequence[Measurement]) -> Comparison:
    """Compare what both have timed.

    Raises:
        ValueError: no batch size was timed on both sides.
    """
    sizes = batch_sizes((first, second))
    if not sizes:
        raise ValueError("no batch size was timed on both sides")
    batches = tuple(_compare_batch(first, second, size) for size in sizes)
    return Comparison(tuple(differing(first, second)), batches, tuple(_remarks(first, second, sizes)))


def _compare_batch(first: Sequence[Measurement], second: Sequence[Measurement], size: int) -> BatchComparison:
    sides = [launches(side, size) for side in (first, second)]
    middle = [statistics.median(statistics.median(launch.values) for launch in side) for side in sides]
    return BatchComparison(size, middle[0], middle[1], compare(sides[0], sides[1], seed=size))


def launches(side: Sequence[Measurement], size: int) -> list[LaunchRepeats]:
    """The side's launches with their repeats of a batch size, in the order in which they were timed."""
    found: dict[str, list[tuple[float, float]]] = {}
    for item in sorted(side, key=lambda item: item.report.began):
        for batch in item.report.batches:
            if batch.batch_size == size:
                found.setdefault(item.launch, []).extend((item.report.began, value) for value in item.values(batch))
    return [LaunchRepeats(tuple(value for _, value in timed), timed[0][0]) for timed in found.values() if timed]


def _remarks(first: Sequence[Measurement], second: Sequence[Measurement], sizes: Sequence[int]) -> list[str]:
    remarks = []
    if {item.launch for item in first} & {item.launch for item in second}:
        remarks.append("both sides hold the same launch: what differs between its runs is time alone")
    timed = {batch.batch_size for item in (*first, *second) for batch in item.report.batches}
    one_sided = sorted(timed - set(sizes))
    if one_sided:
        remarks.append(f"timed on one side only: batch {', '.join(map(str, one_sided))}")
    return remarks


def contrast_sentences(contrast: Contrast) -> list[str]:
    """What a finding rests on, and what it could not have seen."""
    return [_spread(contrast), _reach(contrast), *contrast.remarks]


def _spread(contrast: Contrast) -> str:
    if contrast.launch_spread is not None:
        counts = " and ".join(map(str, contrast.launches))
        return f"{counts} launches, which differ among themselves by {percent(contrast.launch_spread)} (standard deviation)"
    blind = f"one launch a side: blind to how launches differ among themselves; {percent(contrast.assumed_spread or 0.0)} is assumed"
    if contrast.explained_by is None:
        return blind
    return f"{blind}, and {percent(contrast.explained_by)} or more would explain what was found"


def _reach(contrast: Contrast) -> str:
    """The smallest difference that could have been seen, and what 3 % would take."""
    wanted = percent(WANTED_DIFFERENCE)
    if math.isinf(contrast.smallest_shown):
        return "a single value tells nothing: repeat it"
    seen = f"a slowdown of {percent(contrast.smallest_shown)} or more would have been seen in nine of ten such comparisons"
    if contrast.smallest_shown <= WANTED_DIFFERENCE and not contrast.blind:
        return seen
    if contrast.launches_needed is None:
        return f"{seen}; {wanted} can't be seen with so wide a spread"
    without = ", seen without that assumption," if contrast.blind else ""
    return f"{seen}; one of {wanted}{without} takes {contrast.launches_needed} launches a side"


def finding_words(finding: Finding, ratio: float) -> str:
    """``slower by 3.1 %``, ``no difference shown``."""
    if finding is Finding.NOT_SHOWN:
        return str(finding)
    return f"{finding} by {percent(abs(ratio - 1))}"


def percent(share: float) -> str:
    """With as many digits as it takes to be more than zero: ``0.2 %``, ``12 %``."""
    digits = 0 if share >= 0.1 else 1 if share >= 0.001 else 2
    return f"{share * 100:.{digits}f} %"
