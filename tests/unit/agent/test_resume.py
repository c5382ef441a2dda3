"""An order whose supervisor dies, at any instant, is finished or rolled back by the next one; walked in a world without servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.agent import wire
from orchestrator.agent.history import History, read_history
from orchestrator.agent.walk import MOST_RESUMES
from orchestrator.agent.wire import OrderKind, State
from tests.unit.agent.supervised_world import Killed, World, instants, order, supervise


def failing() -> World:
    return World(failing={"new"})


CASES = [("goes well", World, OrderKind.RELAUNCH), ("fails", failing, OrderKind.RELAUNCH), ("teardown", World, OrderKind.TEARDOWN)]
DEATHS = [
    pytest.param(make, kind, instant, id=f"{name}-{instant}") for name, make, kind in CASES for instant in instants(make, order(kind))
]


@pytest.mark.parametrize(("make", "kind", "instant"), DEATHS)
def test_a_supervisor_that_dies_at_any_instant_is_followed_by_one_that_comes_to_a_safe_end(
    make: Callable[[], World], kind: str, instant: int
) -> None:
    world = make()
    world.lives = instant
    with pytest.raises(Killed):
        supervise(world, order(kind))
    world.lives = None
    last = read_history(world.journal)
    if last is not None and last.ended:
        return
    result = supervise(world, order(kind))
    if kind == OrderKind.TEARDOWN:
        assert (result.state, world.running) == (State.DONE, set())
    elif world.failing:
        assert result.state == State.RESTORED
        assert len(world.running) == 1
        assert result.launch_id in world.running
        assert result.failed_launch_id == "new"
    else:
        assert (result.state, result.exit_code, world.running) == (State.DONE, 0, {"new"})
        assert world.verified[-1] == "new"


@pytest.mark.parametrize(("make", "kind", "instant"), DEATHS)
def test_two_deaths_in_a_row_are_survived_as_well(make: Callable[[], World], kind: str, instant: int) -> None:
    world = make()
    for lives in (instant, 3):
        world.lives = lives
        history = read_history(world.journal)
        if history is not None and history.ended:
            break
        try:
            supervise(world, order(kind))
        except Killed:
            continue
    world.lives = None
    history = read_history(world.journal)
    if history is None or not history.ended:
        supervise(world, order(kind))
    ended = read_history(world.journal)
    assert ended is not None
    assert ended.state in (State.DONE, State.RESTORED)
    assert len(world.running) == (0 if kind == OrderKind.TEARDOWN else 1)
    assert world.comes_back == next(iter(world.running), None), "what serves comes back by itself, and nothing else does"


@pytest.mark.parametrize(("make", "kind", "instant"), DEATHS)
def test_a_restart_of_the_machine_in_between_leaves_a_proven_server_or_an_untouched_order(
    make: Callable[[], World], kind: str, instant: int
) -> None:
    world = make()
    world.lives = instant
    with pytest.raises(Killed):
        supervise(world, order(kind))
    history = read_history(world.journal)
    world.lives = None
    world.restart()
    if history is None or history.ended:
        return
    result = supervise(world, order(kind))
    if not history.touched:
        assert (result.state, result.exit_code, world.running) == (State.REFUSED, 3, set())
    elif kind == OrderKind.TEARDOWN:
        assert (result.state, world.running) == (State.DONE, set())
    elif history.state in (State.VERIFIED, State.MEASURED):
        assert (result.state, world.running) == (State.DONE, {"new"})
    else:
        assert result.state == State.RESTORED
        assert world.running == {result.launch_id}
        assert "new" not in world.running


def test_an_order_that_kills_its_supervisor_again_and_again_rolls_back() -> None:
    world = World()
    world.lives = next(at for at in instants(World, order()) if _effect(at) == "while it loads")
    deaths = 0
    while True:
        try:
            result = supervise(world, order())
            break
        except Killed:
            deaths += 1
            history = read_history(world.journal)
            assert history is not None
            # In the same place again, until it gives up going forward.
            world.lives = 2 if history.resumed < MOST_RESUMES else None
    assert deaths == MOST_RESUMES + 1
    assert result.state == State.RESTORED
    assert result.failure is not None
    assert result.failure.category == "supervisor_ended"


def _effect(instant: int) -> str:
    sample = World()
    supervise(sample, order())
    return sample.effects[instant]


def test_what_somebody_put_on_the_port_meanwhile_is_told_and_not_started_on_top_of() -> None:
    world = World()
    world.lives = next(at for at in instants(World, order()) if _effect(at) == "after the stop")
    with pytest.raises(Killed):
        supervise(world, order())
    world.lives, world.foreign = None, True
    result = supervise(world, order())
    assert (result.state, result.exit_code) == (State.DOWN, 7)
    assert "held by something else" in result.summary


def test_a_safe_stop_before_anything_was_touched_changes_nothing() -> None:
    world = World()
    result = supervise(world, order(), cancelled="asked by ann@laptop")
    assert (result.state, result.exit_code, world.running) == (State.REFUSED, 3, {"old"})
    assert "ann@laptop" in result.summary


def test_a_safe_stop_after_that_brings_the_old_server_back() -> None:
    world = World()
    world.lives = next(at for at in instants(World, order()) if _effect(at) == "while it loads")
    with pytest.raises(Killed):
        supervise(world, order())
    world.lives = None
    result = supervise(world, order(), cancelled="asked by ann@laptop")
    assert (result.state, result.exit_code) == (State.RESTORED, 6)
    assert result.failure is not None
    assert (result.failure.category, world.running) == ("cancelled", {result.launch_id})


def test_dark_time_spans_a_supervisor_that_died_after_the_first_answer() -> None:
    world = World()
    world.lives = next(at for at in instants(World, order()) if _effect(at) == "after line VERIFIED")
    with pytest.raises(Killed):
        supervise(world, order())
    world.lives = None
    answered = next(entry.monotonic for entry in world.journal if entry.state == State.ANSWERING)
    assert supervise(world, order()).dark_seconds == answered - 1.0


def test_history_of_nothing_is_none_and_a_damaged_record_still_turns_back() -> None:
    assert read_history([]) is None
    entry = wire.StateEntry(1, State.ROLLING_BACK, 1.0, 1.0, "it failed", {"failure": {"colour": 1}, "verdicts": 3})
    history = read_history([entry])
    assert isinstance(history, History)
    assert history.failure == wire.Failure("unexpected", "it failed")
