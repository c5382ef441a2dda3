"""The points of a sweep side by side, the best of them, and the exit code."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.results.measurements import Measurement
from orchestrator.results.statistics import Finding
from orchestrator.results.sweep import Design, Point, Standing, Timing, stand
from orchestrator.results.sweep_choice import choose, exit_code, found, troubles_of
from orchestrator.results.sweep_records import Begun, Changed, Ordered, Record, Seen, Skipped, Timed
from tests.unit.results.test_comparison import measurement

POINTS = [Point("a"), Point("b"), Point("c")]
DESIGN = Design(POINTS, Timing([1, 4]))
BEGUN = Begun({}, "gpu1", "gpu1/101", "glm5", "kim@laptop", Seen("START"), "START")


def side(*steps: float, of: str = "") -> list[Measurement]:
    """Launches with such times per output token at batch 1."""
    return [measurement(f"{of}{number}", step, began=1000.0 + number) for number, step in enumerate(steps)]


def launched(step: int, invalid: list[str] | None = None) -> list[Record]:
    end = Changed(step, "DONE", "it serves", launch_id=f"L{step}")
    return [Ordered(step, DESIGN.steps[step] if step < 3 else 0, f"o{step}", "r"), end, Timed(step, f"m{step}", invalid or [])]


def failed(step: int, point: int) -> list[Record]:
    return [Ordered(step, point, f"o{step}", "r"), Changed(step, "RESTORED", "no kernel", "kernel_missing", "X-back")]


def after(*records: Record, design: Design = DESIGN) -> Standing:
    return stand([BEGUN, *records], design)


@pytest.mark.parametrize(
    ("times", "serves", "best", "alike"),
    [
        ([0.020, 0.018, 0.019], None, 1, ()),
        ([0.020, 0.018, 0.019], 0, 1, ()),
        ([0.0200, 0.01995, 0.0230], None, 0, (1,)),
        ([0.0200, 0.01995, 0.0230], 1, 1, (0,)),
        ([0.0200, 0.01995, 0.0230], 2, 0, (1,)),
        ([0.0200, 0.0201, 0.0230], 1, 1, (0,)),
        ([0.0230, 0.0200, 0.01999], None, 1, (2,)),
        ([0.0230, 0.0200, 0.01999], 2, 2, (1,)),
    ],
)
def test_within_the_noise_what_serves_or_comes_first_is_kept(
    times: list[float], serves: int | None, best: int, alike: tuple[int, ...]
) -> None:
    sides = {number: side(time, of=str(number)) for number, time in enumerate(times)}
    choice = choose(sides, POINTS, 1, serves)
    assert (choice.best, choice.alike) == (best, alike)
    assert POINTS[best].label in choice.why
    assert ("no difference shown" in choice.why) is bool(alike)


def test_a_point_that_is_kept_although_another_is_faster_says_why() -> None:
    sides = {0: side(0.0200, of="a"), 1: side(0.01995, of="b")}
    assert choose(sides, POINTS, 1, None).why.endswith("no difference shown to b (19.95 ms), and it comes first")
    assert choose(sides, POINTS, 1, 0).why.endswith("and it serves already")
    assert choose(sides, POINTS, 1, 1).why == "best is b: 19.95 ms a token at batch 1; no difference shown to a (20.00 ms)"


def test_the_batch_size_that_counts_is_the_one_that_was_named() -> None:
    other = [measurement("b", 0.02, sizes=(1,)), measurement("b", 0.001, sizes=(4,))]
    sides = {0: side(0.010, of="a"), 1: other}
    assert choose(sides, POINTS, 1, None).best == 0
    assert choose(sides, POINTS, 4, None).best == 1
    assert choose({0: side(0.01)}, POINTS, 16, None) == dataclasses.replace(choose({}, POINTS, 16, None))


def test_nothing_to_be_believed_is_no_choice() -> None:
    choice = choose({0: []}, POINTS, 1, 0)
    assert choice.best is None
    assert "no point has a timing to be believed at batch 1" in choice.why


def test_several_launches_of_a_point_show_what_one_cannot() -> None:
    one = choose({0: side(0.0200, of="a"), 1: side(0.0197, of="b")}, POINTS, 1, None)
    noisy = choose({0: side(0.0200, 0.0190, of="a"), 1: side(0.0197, 0.0187, of="b")}, POINTS, 1, None)
    assert (one.best, noisy.best, noisy.alike) == (0, 0, (1,))
    steady = choose({0: side(0.0200, 0.0201, 0.0200, of="a"), 1: side(0.0197, 0.0197, 0.0196, of="b")}, POINTS, 1, None)
    assert (steady.best, steady.alike) == (1, ())


def test_points_side_by_side() -> None:
    standing = after(*launched(0), *failed(1, 1), *launched(2))
    first, second, third = found(standing, {0: side(0.020, of="a"), 2: side(0.0180, 0.0181, of="c")})
    assert (first.launches, first.timed, first.troubles) == (1, 1, [])
    assert [batch.batch_size for batch in first.batches] == [1, 4]
    assert first.batches[0].to_first is None
    assert (second.launches, second.timed, second.batches) == (1, 0, [])
    assert second.troubles == ["RESTORED: no kernel [kernel_missing]"]
    batch = third.batches[0]
    assert (batch.time, batch.low, batch.high) == pytest.approx((0.01805, 0.018, 0.0181))
    assert batch.to_first is not None
    assert batch.to_first.finding is Finding.FASTER


def test_where_the_first_point_has_no_timing_the_next_one_is_what_the_others_are_compared_with() -> None:
    standing = after(*failed(0, 0), *launched(1), *launched(2))
    _, second, third = found(standing, {1: side(0.02, of="b"), 2: side(0.03, of="c")})
    assert second.batches[0].to_first is None
    assert third.batches[0].to_first is not None
    assert third.batches[0].to_first.ratio == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (None, []),
        (Timed(0, "m0"), []),
        (Timed(0, "m0", ["others: 3 ran", "link: x8"]), ["not to be believed: others: 3 ran", "not to be believed: link: x8"]),
        (Skipped(0, "refused", ["port: held"]), ["refused: port: held"]),
        (Skipped(0, "it can't be had"), ["refused: it can't be had"]),
        (Changed(0, "REFUSED", "not the one"), ["REFUSED: not the one"]),
    ],
)
def test_what_became_of_a_step(end: Skipped | Changed | Timed | None, told: list[str]) -> None:
    assert troubles_of(end) == told


GOOD = [*launched(0), *launched(1), *launched(2)]
SIDES = {0: side(0.02)}


@pytest.mark.parametrize(
    ("records", "believed", "code"),
    [
        (GOOD, True, 0),
        ([*GOOD, *launched(3)[:2]], True, 0),
        ([*GOOD, *failed(3, 0)], True, 6),
        ([*GOOD, Skipped(3, "refused")], True, 6),
        ([*launched(0), *launched(1), *failed(2, 2)], True, 6),
        ([*launched(0), *launched(1), Skipped(2, "refused")], True, 6),
        ([*launched(0), *launched(1), *launched(2, ["others"])], True, 6),
        (GOOD, False, 9),
        ([*failed(0, 0), *failed(1, 1), *failed(2, 2)], False, 9),
    ],
)
def test_the_exit_code(records: list[Record], believed: bool, code: int) -> None:
    assert exit_code(after(*records), SIDES if believed else {0: []}) == code
