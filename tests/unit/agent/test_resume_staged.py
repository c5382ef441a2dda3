"""A staged order whose supervisor dies, at any instant, with whatever else goes wrong: it comes to a safe end, and leaves no process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.agent import wire
from orchestrator.agent.history import History, is_only_staged, is_touched, read_history
from orchestrator.agent.walk import MOST_RESUMES
from orchestrator.agent.wire import State
from tests.unit.agent.supervised_world import Killed, World, instants, order, supervise

ORDER = order(staged=True)


def failing(*what: str) -> Callable[[], World]:
    return lambda: World(failing=set(what))


def old_dies(*what: str) -> Callable[[], World]:
    return lambda: World(failing=set(what), meanwhile={"while new comes to its gate": lambda world: world.end("old")})


WORLDS: dict[str, tuple[Callable[[], World], str]] = {
    "goes well": (World, State.DONE),
    "no room": (failing("room new"), State.DONE),
    "not to its gate": (failing("gate new"), State.REFUSED),
    "not from its gate": (failing("activate new"), State.RESTORED),
    "fails": (failing("new"), State.RESTORED),
    "fails, and no room": (failing("new", "room back"), State.RESTORED),
    "fails, and the way back not to its gate": (failing("new", "gate back"), State.RESTORED),
    "fails, and the way back not from its gate": (failing("new", "activate back"), State.RESTORED),
    "fails, and the staged way back too": (failing("new", "staged back"), State.RESTORED),
    "fails, and no way back": (failing("new", "back"), State.DOWN),
    "old server dies": (old_dies(), State.DONE),
    "old server dies, and the new one": (old_dies("gate new"), State.RESTORED),
}
"""How the world is, and how an order ends in it that nobody disturbs."""
Death = tuple[World, History | None]
"""The world after a supervisor died, and what its journal tells."""


def killed_at(name: str, instant: int) -> Death:
    world = WORLDS[name][0]()
    world.lives = instant
    with pytest.raises(Killed):
        supervise(world, ORDER)
    world.lives = None
    return world, read_history(world.journal)


def survivors(name: str, check: Callable[[World, History | None], None]) -> None:
    """Let a supervisor die at each instant in turn, and see what the next one makes of what it left, unless it had ended."""
    for instant in instants(WORLDS[name][0], ORDER):
        world, history = killed_at(name, instant)
        if history is not None and history.ended:
            continue
        died = f"the supervisor died at {world.effects[-1]!r}, the {instant + 1}. instant"
        try:
            check(world, history)
        except BaseException as error:
            error.add_note(died)
            raise


def had_gone(result: wire.OrderResult) -> bool:
    """Whether it was refused because the old server had ended before anything was touched."""
    return result.state == State.REFUSED and "has ended meanwhile" in result.summary


def require_safe(world: World, result: wire.OrderResult) -> None:
    """Whatever happened, what the result says is what runs."""
    assert not world.at_gate, "nothing waits at a gate for ever"
    assert world.journal[-1].state == result.state
    if result.state == State.REFUSED:
        assert (result.service, result.exit_code, world.running) == ("unchanged", 3, {"old"})
        assert world.comes_back == "old"
        return
    serves = {State.DONE: {"new"}, State.RESTORED: {result.launch_id}, State.DOWN: set()}[result.state]
    assert world.running == serves
    assert world.comes_back == next(iter(serves), None)
    assert result.staged == (bool(serves) and result.launch_id in world.ever_staged)


@pytest.mark.parametrize("name", WORLDS)
def test_undisturbed_it_ends_as_it_should(name: str) -> None:
    world = WORLDS[name][0]()
    result = supervise(world, ORDER)
    assert result.state == WORLDS[name][1]
    require_safe(world, result)


@pytest.mark.parametrize("name", WORLDS)
def test_the_next_supervisor_comes_to_the_same_end(name: str) -> None:
    def check(world: World, history: History | None) -> None:
        result = supervise(world, ORDER)
        if had_gone(result):
            assert not (history and history.touched)
            return
        assert result.state == WORLDS[name][1]
        if "gate new" in world.failing:
            assert result.failure is not None
            assert result.failure.category == "missing_module", "what failed first outlives the supervisor that saw it"
        require_safe(world, result)

    survivors(name, check)


@pytest.mark.parametrize("second", [1, 4, 9])
@pytest.mark.parametrize("name", WORLDS)
def test_two_deaths_in_a_row_are_survived_as_well(name: str, second: int) -> None:
    def check(world: World, history: History | None) -> None:
        world.lives = second
        try:
            result = supervise(world, ORDER)
        except Killed:
            world.lives = None
            history = read_history(world.journal)
            if history is not None and history.ended:
                return
            result = supervise(world, ORDER)
        if not had_gone(result):
            assert result.state == WORLDS[name][1]
            require_safe(world, result)

    survivors(name, check)


@pytest.mark.parametrize("name", WORLDS)
def test_a_restart_of_the_machine_leaves_what_was_proven_or_what_was_left_alone(name: str) -> None:
    def check(world: World, history: History | None) -> None:
        if history is None:
            return
        world.restart()
        result = supervise(world, ORDER)
        if not history.touched or history.only_staged:
            assert (result.state, result.exit_code, result.service, world.running) == (State.REFUSED, 3, "unchanged", set())
        elif history.state in (State.VERIFIED, State.MEASURED):
            assert (result.state, world.running, result.staged) == (State.DONE, {"new"}, False)
        elif "back" in world.failing:
            assert result.state == State.DOWN
        else:
            assert (result.state, world.running, result.staged) == (State.RESTORED, {result.launch_id}, False)
        assert not world.at_gate

    survivors(name, check)


@pytest.mark.parametrize("name", WORLDS)
def test_a_safe_stop_is_heard_by_the_next_supervisor(name: str) -> None:
    def check(world: World, history: History | None) -> None:
        world.meanwhile.clear()
        served = "old" in world.running
        staged_before = set(world.ever_staged)
        result = supervise(world, ORDER, cancelled="asked by ann@laptop")
        if served and (history is None or not history.touched or history.only_staged):
            assert (result.state, result.exit_code, world.running) == (State.REFUSED, 3, {"old"})
            assert world.ever_staged == staged_before, "nothing is started any more"
        elif had_gone(result):
            return
        elif history is not None and history.state in (State.VERIFIED, State.MEASURED):
            assert result.state == State.DONE
        else:
            assert result.state == (State.DOWN if "back" in world.failing else State.RESTORED)
        require_safe(world, result)

    survivors(name, check)


@pytest.mark.parametrize("name", WORLDS)
def test_an_old_server_that_dies_meanwhile_is_replaced(name: str) -> None:
    def check(world: World, history: History | None) -> None:
        if history is None or not history.touched:
            return
        world.end("old")
        result = supervise(world, ORDER)
        undisturbed = WORLDS[name][1]
        assert result.state == (State.RESTORED if undisturbed == State.REFUSED else undisturbed)
        require_safe(world, result)

    survivors(name, check)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("how", ["it died", "somebody activated it"])
def test_a_staged_server_that_is_lost_meanwhile_costs_no_service(name: str, how: str) -> None:
    def check(world: World, history: History | None) -> None:
        lost = set(world.at_gate)
        if history is None or not lost:
            return
        world.meanwhile.clear()
        for launch_id in lost:
            if how == "it died":
                world.end(launch_id)
            world.taken.add(launch_id)
        served = "old" in world.running
        result = supervise(world, ORDER)
        if history.only_staged and served:
            assert (result.state, result.failed_launch_id) == (State.REFUSED, "new")
        elif "back" in world.failing:
            assert result.state == State.DOWN
        elif how == "it died":
            assert result.state == State.RESTORED
        require_safe(world, result)

    survivors(name, check)


def test_room_that_is_gone_meanwhile_does_not_end_what_is_staged_already() -> None:
    def check(world: World, history: History | None) -> None:
        world.failing.add("room new")
        result = supervise(world, ORDER)
        announced = history is not None and history.touched
        assert (result.state, result.staged) == (State.DONE, announced)
        require_safe(world, result)

    survivors("goes well", check)


def test_what_loads_is_not_activated_again() -> None:
    def check(world: World, history: History | None) -> None:
        before = world.effects.count("before activation")
        supervise(world, ORDER)
        loads = history is not None and history.state in (State.LOADING, State.ANSWERING, State.VERIFIED, State.MEASURED)
        assert world.effects.count("before activation") == (before if loads else before + 1)

    survivors("goes well", check)


def test_a_gate_that_ends_its_supervisor_again_and_again_is_given_up() -> None:
    world = World()
    deaths = 0
    while True:
        world.meanwhile["while new comes to its gate"] = _kill
        try:
            result = supervise(world, ORDER)
            break
        except Killed:
            deaths += 1
    assert deaths == MOST_RESUMES + 1
    assert (result.state, result.exit_code) == (State.REFUSED, 3)
    assert result.failure is not None
    assert (result.failure.category, result.failed_launch_id) == ("supervisor_ended", None)
    require_safe(world, result)


def test_a_staged_way_back_that_ends_its_supervisor_again_and_again_is_given_up_for_a_plain_one() -> None:
    world = World(failing={"new"})
    deaths = 0
    while True:
        world.meanwhile["while back comes to its gate"] = _kill
        try:
            result = supervise(world, ORDER)
            break
        except Killed:
            deaths += 1
    assert deaths <= MOST_RESUMES + 1
    assert (result.state, result.staged) == (State.RESTORED, False)
    require_safe(world, result)


def test_a_load_that_ends_its_supervisor_again_and_again_goes_back_plainly() -> None:
    world = World()
    deaths = 0
    while True:
        world.meanwhile = {"while it loads": _kill} if deaths <= MOST_RESUMES else {}
        try:
            result = supervise(world, ORDER)
            break
        except Killed:
            deaths += 1
    assert (result.state, result.staged) == (State.RESTORED, False)
    assert result.failure is not None
    assert result.failure.category == "supervisor_ended"
    require_safe(world, result)


def _kill(world: World) -> None:
    raise Killed


def test_what_was_kept_of_the_old_server_and_can_not_be_read_any_more_ends_the_staged_one() -> None:
    world, _ = next(
        killed for killed in (killed_at("goes well", at) for at in instants(World, ORDER)) if killed[1] and killed[1].only_staged
    )
    world.at_gate.add("new")
    world.kept = world.captured = None
    result = supervise(world, ORDER)
    assert result.state == State.REFUSED
    require_safe(world, result)


def test_an_order_cut_off_while_staging_is_half_done_and_has_left_the_old_server_alone() -> None:
    for instant in instants(World, ORDER):
        world, history = killed_at("goes well", instant)
        states = {entry.state for entry in world.journal}
        assert is_only_staged(world.journal) == (State.STAGING in states and State.DRAINING not in states)
        assert is_touched(world.journal) == bool(states & {State.STAGING, State.DRAINING})
        if history is not None and history.only_staged:
            assert history.staged is not None
            assert (history.staged.launch_id, history.staged.gate_port) == ("new", world.journal[history_at(world)].data["gate_port"])


def history_at(world: World) -> int:
    return next(at for at, entry in enumerate(world.journal) if entry.state == State.STAGING)
