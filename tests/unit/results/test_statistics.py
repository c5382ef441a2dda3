"""The comparison of two sides, on numbers that can be followed by hand; its behaviour on the whole is in test_statistics_simulated.py."""

from __future__ import annotations

import importlib
import math
import random
import time
from typing import Any

import pytest

from orchestrator.results.statistics import ASSUMED_SPREAD, Finding, LaunchRepeats, compare, student_quantile
from tests.unit.results.simulated_series import Series

SIX = (1.000, 1.002, 0.999, 1.001, 1.000, 0.998)


def launches(*locations: float, values: tuple[float, ...] = SIX) -> list[LaunchRepeats]:
    return [LaunchRepeats(tuple(value * location for value in values), float(place)) for place, location in enumerate(locations)]


def test_the_second_side_is_called_slower_or_faster() -> None:
    slower = compare(launches(1.0, 1.002, 0.998), launches(1.05, 1.052, 1.048))
    assert slower.finding is Finding.SLOWER
    assert slower.ratio == pytest.approx(1.05, abs=0.001)
    assert 1.0 < slower.low < slower.ratio < slower.high
    faster = compare(launches(1.05, 1.052, 1.048), launches(1.0, 1.002, 0.998))
    assert faster.finding is Finding.FASTER
    assert faster.ratio == pytest.approx(1 / slower.ratio)


def test_a_difference_within_the_spread_between_launches_is_not_shown_however_quiet_repeats_are() -> None:
    contrast = compare(launches(1.0, 1.03, 0.97), launches(1.02, 1.05, 0.99))
    assert contrast.finding is Finding.NOT_SHOWN
    assert contrast.launch_spread == pytest.approx(0.03, abs=0.002)
    assert contrast.smallest_shown > 0.05
    assert contrast.launches_needed is not None
    assert contrast.launches_needed > 10


def test_the_same_numbers_give_the_same_answer() -> None:
    sides = launches(1.0, 1.01), launches(1.02, 1.03)
    assert compare(*sides) == compare(*sides)
    assert compare(*sides, seed=1).high != compare(*sides).high


def test_outliers_and_their_size_do_not_matter() -> None:
    quiet = compare(launches(1.0), launches(1.03))
    disturbed = [LaunchRepeats((*SIX[:5], outlier)) for outlier in (1.5, 150.0)]
    one, other = (compare([launch], launches(1.03)) for launch in disturbed)
    assert one == other
    assert one.finding is quiet.finding is Finding.SLOWER
    assert one.ratio == pytest.approx(quiet.ratio, abs=0.002)


def test_one_launch_a_side_is_blind_to_the_spread_between_launches() -> None:
    contrast = compare(launches(1.0), launches(1.03))
    assert contrast.blind
    assert contrast.launch_spread is None
    assert contrast.assumed_spread == ASSUMED_SPREAD
    # Two of them differ by 1.96 * sqrt(2) * 0.6 % and less in 95 % of cases; repeats add little.
    assert math.log(contrast.high / contrast.ratio) == pytest.approx(0.0166, rel=0.1)
    assert contrast.explained_by is not None
    assert contrast.explained_by == pytest.approx(math.log(1.03) / 1.96 / math.sqrt(2), rel=0.05)
    assert compare(launches(1.0), launches(1.03), assumed_spread=contrast.explained_by * 1.1).finding is Finding.NOT_SHOWN
    assert compare(launches(1.0), launches(1.01)).explained_by is None


def test_several_launches_are_not_blind() -> None:
    contrast = compare(launches(1.0, 1.0), launches(1.03, 1.03))
    assert not contrast.blind
    assert contrast.assumed_spread is contrast.explained_by is None


def test_a_single_launch_takes_the_spread_of_the_other_side() -> None:
    contrast = compare(launches(1.0, 1.02, 0.98), launches(1.03))
    assert not contrast.blind
    assert contrast.finding is Finding.NOT_SHOWN
    assert any("single launch" in remark for remark in contrast.remarks)


def test_sides_that_were_launched_one_after_the_other_are_remarked() -> None:
    one_after_the_other = [LaunchRepeats(SIX, 1.0), LaunchRepeats(SIX, 2.0)], [LaunchRepeats(SIX, 3.0), LaunchRepeats(SIX, 4.0)]
    forth_and_back = [LaunchRepeats(SIX, 1.0), LaunchRepeats(SIX, 4.0)], [LaunchRepeats(SIX, 2.0), LaunchRepeats(SIX, 3.0)]
    assert any("A B B A" in remark for remark in compare(*one_after_the_other).remarks)
    assert not compare(*forth_and_back).remarks
    assert not compare(*reversed(forth_and_back)).remarks


def test_few_launches_have_the_width_of_students_distribution() -> None:
    # Both sides spread by 0.02 * sqrt(2) / 2, and the mean of two by that over sqrt(2): the difference by 0.0141; 4.30 times that.
    contrast = compare(launches(math.exp(-0.01), math.exp(0.01)), launches(math.exp(-0.01), math.exp(0.01)))
    assert math.log(contrast.high) == pytest.approx(4.303 * 0.01 * math.sqrt(2), rel=0.15)
    assert contrast.launch_spread == pytest.approx(0.01 * math.sqrt(2), rel=0.01)


def test_a_single_value_a_side_shows_nothing() -> None:
    contrast = compare([LaunchRepeats((1.0,))], [LaunchRepeats((2.0,))])
    assert contrast.finding is Finding.NOT_SHOWN
    assert (contrast.ratio, contrast.low, contrast.high) == (2.0, 0.0, math.inf)
    assert contrast.smallest_shown == math.inf


def test_values_without_any_noise_are_compared() -> None:
    same = [LaunchRepeats((1.0, 1.0, 1.0)), LaunchRepeats((1.0, 1.0))]
    assert compare(same, same).finding is Finding.NOT_SHOWN
    assert compare(same, launches(1.001, 1.001, values=(1.0,))).finding is Finding.SLOWER


@pytest.mark.parametrize("side", [[], [LaunchRepeats(())], [LaunchRepeats((1.0, 0.0))], [LaunchRepeats((1.0, math.nan))]])
def test_what_is_no_timing_is_refused(side: list[LaunchRepeats]) -> None:
    with pytest.raises(ValueError, match="needs"):
        compare(side, launches(1.0))


def test_a_comparison_is_quick() -> None:
    sides = Series(launches=8, repeats=20, spread=0.01).draw(random.Random(1))
    began = time.process_time()
    compare(*sides)
    assert time.process_time() - began < 0.5


def scipy_stats() -> Any:
    return pytest.importorskip("scipy.stats", reason="no scipy here")


def test_student_quantiles_are_those_of_scipy() -> None:
    stats = scipy_stats()
    for probability in (0.9, 0.975):
        for degrees in (1, 2, 3, 4, 7, 20, 100):
            assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=0.002)
        assert student_quantile(probability, None) == pytest.approx(stats.norm.ppf(probability))


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 8])
def test_the_interval_is_that_of_students_test_where_launches_are_normal(count: int) -> None:
    stats = scipy_stats()
    rng = random.Random(3)
    ratios = []
    for seed in range(40):
        sides = [[rng.gauss(0, 0.01) for _ in range(count)] for _ in range(2)]
        found = compare(*(launches(*map(math.exp, side)) for side in sides), seed=seed)
        theirs = stats.ttest_ind(sides[1], sides[0]).confidence_interval(0.95)
        assert math.log(found.ratio) == pytest.approx((theirs.low + theirs.high) / 2, abs=1e-9)
        ratios.append(math.log(found.high / found.low) / (theirs.high - theirs.low))
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.05)
    assert all(0.85 < ratio < 1.2 for ratio in ratios)


def test_what_repeats_tell_of_a_launch_is_what_scipys_bootstrap_of_the_median_tells() -> None:
    stats = scipy_stats()
    numpy = importlib.import_module("numpy")
    values = [random.Random(5).gauss(1.0, 0.003) for _ in range(9)]
    theirs = stats.bootstrap((values,), numpy.median, n_resamples=20000, rng=numpy.random.default_rng(1)).standard_error
    # The spread of a single side against one without noise; Student's width for 8 degrees of freedom taken out again.
    contrast = compare([LaunchRepeats((1.0,) * 9)], [LaunchRepeats(tuple(values))], assumed_spread=0.0, replicates=20000)
    ours = math.log(contrast.high / contrast.ratio) / student_quantile(0.975, 8)
    assert ours == pytest.approx(theirs, rel=0.15)
