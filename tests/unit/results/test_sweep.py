"""The order of a sweep's steps, and where it stands and what comes next by each journal that there can be."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from orchestrator.agent.failure_classes import Category
from orchestrator.results.sweep import Close, Design, Finish, Launch, Look, Point, Standing, Time, Timing, grid, next_action, resumed, stand
from orchestrator.results.sweep_records import Begun, Changed, Dropped, Finished, Ordered, Record, Resumed, Seen, Skipped, Timed

A, B, C = Point("a"), Point("b", {"--max-running-requests": 64}), Point("c")
DESIGN = Design([A, B], Timing([1]))
STARTED = Seen("START")
BEGUN = Begun({}, "gpu1", "gpu1/101", "glm5", "kim@laptop", STARTED, "START")


def ordered(step: int, point: int | None = None) -> Ordered:
    return Ordered(step, DESIGN.steps[step] if point is None and step < 2 else point, f"order-{step}", f"run-{step}")


def done(step: int) -> Changed:
    return Changed(step, "DONE", "it serves", launch_id=f"L{step}", dark_seconds=4.0)


def failed(step: int, state: str = "RESTORED", category: str = Category.KERNEL_MISSING) -> Changed:
    return Changed(step, state, "no kernel", category, None if state == "DOWN" else f"B{step}-back")


def after(*records: Record, design: Design = DESIGN) -> Standing:
    return stand([BEGUN, *records], design)


@pytest.mark.parametrize(
    ("points", "rounds", "steps"),
    [
        (1, 1, [0]),
        (1, 3, [0, 0, 0]),
        (2, 2, [0, 1, 1, 0]),
        (3, 1, [0, 1, 2]),
        (3, 3, [0, 1, 2, 2, 1, 0, 0, 1, 2]),
    ],
)
def test_rounds_go_forth_and_back(points: int, rounds: int, steps: list[int]) -> None:
    assert Design([Point(str(number)) for number in range(points)], Timing(), rounds).steps == steps


@pytest.mark.parametrize(("points", "rounds"), list(itertools.product([2, 3, 4, 5], [2, 4, 6])))
def test_with_an_even_number_of_rounds_a_steady_drift_falls_on_all_alike(points: int, rounds: int) -> None:
    steps = Design([Point(str(number)) for number in range(points)], Timing(), rounds).steps
    places = [sum(place for place, step in enumerate(steps) if step == point) for point in range(points)]
    assert len(set(places)) == 1


def test_a_grid_is_every_combination() -> None:
    points = grid(["a", "b"], {"--max-running-requests": [32, 64], "--disable-radix-cache": [True, False]})
    assert [point.label for point in points[:4]] == [
        "a --max-running-requests 32 --disable-radix-cache",
        "a --max-running-requests 32 without --disable-radix-cache",
        "a --max-running-requests 64 --disable-radix-cache",
        "a --max-running-requests 64 without --disable-radix-cache",
    ]
    assert [point.backend for point in points] == ["a"] * 4 + ["b"] * 4
    assert grid(["a"], {}) == [Point("a")]
    assert Point("a", {"--cuda-graph-bs": [1, 2]}).label == "a --cuda-graph-bs 1 2"


def test_every_point_knows_what_the_others_try() -> None:
    assert Design([A, B, Point("c", {"--x": 1})], Timing()).flags == ["--max-running-requests", "--x"]


ALL = (ordered(0), done(0), Timed(0, "m0"), ordered(1), done(1), Timed(1, "m1"))


@pytest.mark.parametrize(
    ("count", "action"),
    [
        (0, Launch(0, 0)),
        (1, Look(ordered(0))),
        (2, Time(0)),
        (3, Launch(1, 1)),
        (4, Look(ordered(1))),
        (5, Time(1)),
        (6, Close()),
    ],
)
def test_what_comes_next_when_it_is_cut_off_after_so_many_records(count: int, action: object) -> None:
    assert next_action(after(*ALL[:count])) == action


@pytest.mark.parametrize(
    ("records", "action"),
    [
        ([Skipped(0, "refused")], Launch(1, 1)),
        ([ordered(0), Skipped(0, "refused")], Launch(1, 1)),
        ([ordered(0), failed(0)], Launch(1, 1)),
        ([ordered(0), failed(0, "REFUSED")], Launch(1, 1)),
        ([ordered(0), failed(0, "DOWN")], Launch(1, 1)),
        ([ordered(0), Dropped(0)], Launch(0, 0)),
        ([ordered(0), failed(0, category=Category.CANCELLED)], Launch(0, 0)),
        ([ordered(0), done(0), Timed(0, "", ["there is no server"])], Launch(1, 1)),
        ([*ALL, ordered(2, 0)], Look(ordered(2, 0))),
        ([*ALL, ordered(2, 0), done(2)], Finish()),
        ([*ALL, ordered(2, 0), failed(2)], Finish()),
        ([*ALL, ordered(2, 0), failed(2, category=Category.CANCELLED)], Close()),
        ([*ALL, Skipped(2, "refused")], Finish()),
        ([*ALL, Finished(0, 0)], None),
    ],
    ids=str,
)
def test_what_comes_next_when_not_all_goes_well(records: list[Record], action: object) -> None:
    assert next_action(after(*records)) == action


@pytest.mark.parametrize(
    ("records", "seen", "point", "at_start"),
    [
        ([], STARTED, None, True),
        ([ordered(0)], STARTED, None, True),
        ([ordered(0), done(0)], Seen("L0"), 0, False),
        ([ordered(0), failed(0)], Seen("B0-back"), None, True),
        ([ordered(0), failed(0, "REFUSED")], STARTED, None, True),
        ([ordered(0), failed(0, "DOWN")], Seen(None), None, False),
        ([*ALL[:4], failed(1)], Seen("B1-back"), 0, False),
        ([*ALL, ordered(2, 0), done(2)], Seen("L2"), 0, False),
        ([*ALL, Ordered(2, None, "o", "r"), done(2)], Seen("L2"), None, True),
    ],
    ids=str,
)
def test_what_serves_by_the_journal(records: list[Record], seen: Seen, point: int | None, at_start: bool) -> None:
    standing = after(*records)
    assert (standing.seen, standing.point, standing.at_start) == (seen, point, at_start)


def test_what_served_at_the_beginning_is_brought_back_by_its_newest_launch() -> None:
    assert after().start_launch == "START"
    assert after(ordered(0), failed(0)).start_launch == "B0-back"
    assert after(*ALL[:4], failed(1)).start_launch == "START", "what came back there is a point's launch"


def test_of_somebody_elses_server_that_came_back_nobody_knows_the_launch() -> None:
    foreign = dataclasses.replace(BEGUN, seen=Seen(None, 4242, 11), start_launch=None)
    standing = stand([foreign, ordered(0), failed(0)], DESIGN)
    assert (standing.seen.is_known, standing.at_start, standing.start_launch) == (False, True, None)
    assert resumed(standing, Seen(None, 5000, 12)).at_start, "it is taken for what came back"


@pytest.mark.parametrize(
    ("found", "point", "at_start", "action"),
    [
        (Seen("L0", 7, 8), 0, False, Time(0)),
        (Seen("X"), None, False, Launch(0, 0)),
        (Seen("START"), None, True, Launch(0, 0)),
        (Seen(None, 9, 9), None, False, Launch(0, 0)),
    ],
    ids=str,
)
def test_a_launch_that_no_longer_serves_is_made_again(found: Seen, point: int | None, at_start: bool, action: object) -> None:
    standing = after(*ALL[:2], Resumed("kim@laptop", found))
    assert (standing.point, standing.at_start, next_action(standing)) == (point, at_start, action)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Seen("L", 1, 1), Seen("L", 2, 2), True),
        (Seen("L", 1, 1), Seen("M", 1, 1), False),
        (Seen("L"), Seen(None, 1, 1), False),
        (Seen(None, 1, 1), Seen(None, 1, 1), True),
        (Seen(None, 1, 1), Seen(None, 1, 2), False),
        (Seen(None), Seen(None), False),
    ],
    ids=str,
)
def test_a_launch_that_came_back_after_a_crash_is_the_same(one: Seen, other: Seen, same: bool) -> None:
    assert one.is_same(other) is same


def test_what_is_left_and_what_was_changed() -> None:
    design = dataclasses.replace(DESIGN, rounds=2)
    records = (ordered(0), done(0), Timed(0, "m0"), ordered(1), failed(1), Skipped(2, "refused"), ordered(3), done(3))
    standing = after(*records, design=design)
    assert standing.steps_left == []
    assert [end.step for end in standing.changes] == [0, 3, 1]
    assert after(*records[:4], design=design).steps_left == [1, 1, 0]
    assert after(*records[:2], design=design).steps_left == [1, 1, 0], "the first has only to be timed"
    assert {point: [item.run for item in timings] for point, timings in standing.timings().items()} == {0: ["m0"]}


def test_a_journal_begins_with_what_is_tried() -> None:
    with pytest.raises(ValueError, match="first record"):
        stand([done(0)], DESIGN)
