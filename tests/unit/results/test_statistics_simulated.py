"""The promises of a comparison, held against series in which the truth is known: alarms, slowdowns found, what could have been seen."""

from __future__ import annotations

import dataclasses
import os
import statistics
from concurrent.futures import ProcessPoolExecutor

import pytest

from orchestrator.results.statistics import Contrast, Finding
from tests.unit.results.simulated_series import Series, comparisons

pytestmark = pytest.mark.slow

MOST_ALARMS = 0.06
LEAST_FOUND = 0.9
SERIES = 2000
PARTS = 4


def found_in(series: Series, count: int, seed: int) -> list[Contrast]:
    """`count` comparisons, in parts side by side."""
    parts = [(series, count // PARTS, seed * PARTS + part) for part in range(PARTS)]
    with ProcessPoolExecutor(min(PARTS, os.cpu_count() or 1)) as pool:
        return [contrast for part in pool.map(comparisons, *zip(*parts, strict=True)) for contrast in part]


def share_shown(contrasts: list[Contrast]) -> float:
    return statistics.fmean(contrast.finding is not Finding.NOT_SHOWN for contrast in contrasts)


@pytest.mark.parametrize(
    ("launches", "repeats", "spread"),
    [(1, 6, 0.005), (1, 10, 0.005), (2, 6, 0.005), (2, 6, 0.02), (3, 6, 0.0), (3, 6, 0.005), (3, 6, 0.02), (5, 6, 0.02)],
)
def test_the_same_is_seldom_called_different(launches: int, repeats: int, spread: float) -> None:
    assert share_shown(found_in(Series(launches, repeats, spread), SERIES, seed=launches)) <= MOST_ALARMS


@pytest.mark.parametrize(("launches", "repeats", "spread"), [(1, 10, 0.0025), (3, 6, 0.0), (3, 6, 0.005), (5, 6, 0.005)])
def test_a_slowdown_of_3_percent_is_found(launches: int, repeats: int, spread: float) -> None:
    contrasts = found_in(Series(launches, repeats, spread, slowdown=0.03), SERIES // 4, seed=100 + launches)
    assert statistics.fmean(contrast.finding is Finding.SLOWER for contrast in contrasts) >= LEAST_FOUND


@pytest.mark.parametrize("launches", [2, 3, 5])
def test_the_smallest_difference_that_could_be_seen_is_seen_as_often_as_said(launches: int) -> None:
    series = Series(launches, 6, spread=0.02)
    smallest = statistics.median(contrast.smallest_shown for contrast in found_in(series, SERIES // 4, seed=200 + launches))
    assert smallest > 0.03
    contrasts = found_in(dataclasses.replace(series, slowdown=smallest), SERIES // 4, seed=300 + launches)
    assert 0.75 <= share_shown(contrasts) <= 0.97


def test_as_many_launches_as_are_needed_show_3_percent() -> None:
    few = found_in(Series(5, 6, spread=0.01), SERIES // 4, seed=400)
    needed = statistics.median(contrast.launches_needed or 1000 for contrast in few)
    assert needed > 3
    enough = found_in(Series(round(needed), 6, spread=0.01, slowdown=0.03), SERIES // 8, seed=401)
    assert share_shown(enough) >= 0.85


def test_one_launch_a_side_is_blind_to_a_wide_spread_and_names_the_spread_that_explains_what_it_found() -> None:
    contrasts = found_in(Series(1, 10, spread=0.02), SERIES, seed=500)
    alarms = [contrast for contrast in contrasts if contrast.finding is not Finding.NOT_SHOWN]
    assert all(contrast.blind for contrast in contrasts)
    assert len(alarms) / len(contrasts) > MOST_ALARMS
    # A spread as wide as there is explains nearly all of what was found where there is nothing.
    too_small = [contrast for contrast in alarms if contrast.explained_by is None or contrast.explained_by > 0.021]
    assert len(too_small) / len(contrasts) <= MOST_ALARMS
