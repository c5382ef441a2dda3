"""An order whose supervisor takes the server out of its router: never stopped while it is in, and always in again, whoever dies when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.follow import told_by_journal
from orchestrator.agent.history import read_history
from orchestrator.agent.router import Router
from orchestrator.agent.router_steps import BoxRouterSteps
from orchestrator.agent.steps import LaunchFailed, Report
from orchestrator.agent.wire import Outcome, State
from tests.unit.agent.supervised_world import NEW, OLD, SEAT, Killed, World, WorldSteps, instants, order, supervise
from tests.unit.fake_router import FakeRouter

WORKER, OTHER = SEAT.worker, SEAT.others[0]


def failing(*what: str) -> Callable[[], World]:
    return lambda: World(failing=set(what))


WORLDS: dict[str, tuple[Callable[[], World], str]] = {
    "goes well": (World, State.DONE),
    "fails": (failing("new"), State.RESTORED),
    "not to its gate": (failing("gate new"), State.REFUSED),
    "no room": (failing("room new"), State.DONE),
    "requests do not end": (failing("requests"), State.REFUSED),
    "fails for good": (failing("new", "back"), State.DOWN),
}
DEATHS = [
    pytest.param(make, staged, instant, id=f"{name}-{'staged' if staged else 'sequential'}-{instant}")
    for name, (make, _) in WORLDS.items()
    for staged in (False, True)
    for instant in instants(make, order(staged=staged, router=True))
]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("name", WORLDS)
def test_it_ends_as_without_a_router_and_what_serves_is_in(name: str, staged: bool) -> None:
    make, state = WORLDS[name]
    if name == "not to its gate" and not staged:
        pytest.skip("there is no gate")
    world = make()
    result = supervise(world, order(staged=staged, router=True))
    assert (result.state, world.in_router, world.cut) == (state, state != State.DOWN, False)
    states = [entry.state for entry in world.journal]
    assert (State.LEAVING in states) == (name != "not to its gate")
    if State.DRAINING in states:
        assert states.index(State.LEAVING) < states.index(State.DRAINING)
    if staged and State.STAGING in states and State.LEAVING in states:
        assert states.index(State.STAGING) < states.index(State.LEAVING), "it leaves only once its successor waits at the gate"


@pytest.mark.parametrize("staged", [False, True])
def test_its_successor_is_in_as_soon_as_it_is_proven_and_clients_do_not_wait_for_a_timing(staged: bool) -> None:
    world = World()
    result = supervise(world, order(staged=staged, router=True))
    assert world.effects.index("after joining the router") < world.effects.index("measure new")
    assert result.held_seconds is not None
    assert supervise(World(), order(staged=staged)).held_seconds is None


@pytest.mark.parametrize(("failing", "state"), [(set(), State.DONE), ({"new"}, State.RESTORED)])
def test_a_router_that_is_left_without_a_server_is_no_success(failing: set[str], state: str) -> None:
    result = supervise(World(failing={"its only server", *failing}), order(router=True))
    assert (result.state, result.exit_code, result.next_step) == (state, 7, "fab roll --repair")
    assert "no client reaches it: it is not in router front" in result.summary


def test_where_nothing_serves_the_router_is_not_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(failing={"its only server", "back"})

    def measure(steps: WorldSteps, launch: wire.Launch, report: Report) -> wire.DecodeTiming:
        world.end("new")
        return wire.DecodeTiming(skipped="nobody answers")

    monkeypatch.setattr(WorldSteps, "measure", measure)
    result = supervise(world, order(router=True))
    assert (result.state, result.exit_code) == (State.DOWN, 7)
    assert "no client reaches it" not in result.summary
    assert "fab launch" in str(result.next_step)


def test_it_is_had_in_at_the_end_where_that_failed_before_the_timing() -> None:
    world = World(failing={"its only server once"})
    result = supervise(world, order(router=True))
    assert (result.exit_code, world.in_router) == (0, True)
    assert [verdict.detail for verdict in result.verdicts if verdict.check == "router"] == ["new is in again"]


def test_what_dies_after_it_was_had_in_is_out_before_it_is_cleared_away_and_the_old_one_comes_in() -> None:
    world = World()
    sample = World()
    supervise(sample, order(router=True))
    world.lives = sample.effects.index("measure new")
    with pytest.raises(Killed):
        supervise(world, order(router=True))
    world.lives = None
    world.end("new")
    assert world.in_router
    result = supervise(world, order(router=True))
    assert (result.state, world.in_router) == (State.RESTORED, True)
    assert world.effects.index("after withdrawing") < world.effects.index("before a launch is cleared away")


def test_a_failure_of_the_router_is_not_the_launchs() -> None:
    world = World(failing={"requests"})
    result = supervise(world, order(staged=True, router=True))
    assert (result.failed_launch_id, result.service, world.running, world.at_gate) == (None, "unchanged", {"old"}, set())
    assert result.failure is not None
    assert result.failure.category == "not_drained"
    assert [verdict.detail for verdict in result.verdicts if verdict.check == "router"] == ["old is in again"]


@pytest.mark.parametrize(("make", "staged", "instant"), DEATHS)
def test_whenever_its_supervisor_dies_the_next_one_has_the_server_in_again(make: Callable[[], World], staged: bool, instant: int) -> None:
    world = make()
    world.lives = instant
    with pytest.raises(Killed):
        supervise(world, order(staged=staged, router=True))
    world.lives = None
    history = read_history(world.journal)
    state = supervise(world, order(staged=staged, router=True)).state if history is None or not history.ended else history.state
    assert state in State.FINAL
    assert not world.cut
    assert world.in_router == (state != State.DOWN)


@pytest.mark.parametrize(("make", "staged", "instant"), DEATHS)
def test_after_a_restart_of_the_machine_too(make: Callable[[], World], staged: bool, instant: int) -> None:
    world = make()
    world.lives = instant
    with pytest.raises(Killed):
        supervise(world, order(staged=staged, router=True))
    world.lives = None
    world.restart()
    history = read_history(world.journal)
    state = supervise(world, order(staged=staged, router=True)).state if history is None or not history.ended else history.state
    assert not world.cut
    assert world.in_router or state == State.DOWN


def test_an_order_that_is_cancelled_while_it_waits_is_in_again() -> None:
    world = World()
    sample = World()
    supervise(sample, order(router=True))
    world.lives = sample.effects.index("after leaving the router")
    with pytest.raises(Killed):
        supervise(world, order(router=True))
    world.lives = None
    assert not world.in_router
    result = supervise(world, order(router=True), cancelled="asked by ann")
    assert (result.state, world.running, world.in_router) == (State.REFUSED, {"old"}, True)


def test_what_a_lost_supervisor_leaves_says_that_the_router_may_have_lost_the_server() -> None:
    world = World()
    sample = World()
    supervise(sample, order(router=True))
    world.lives = sample.effects.index("after leaving the router")
    with pytest.raises(Killed):
        supervise(world, order(router=True))
    told = told_by_journal("o1", world.journal, "INTERRUPTED(LEAVING)")
    assert (told.service, told.next_step, told.exit_code) == ("unchanged", "fab roll --repair", 3)
    assert "router" in told.summary


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRouter:
    made = FakeRouter.of(WORKER, OTHER)
    monkeypatch.setattr("orchestrator.agent.router_steps.box_router", lambda address: Router(made.exchange))
    monkeypatch.setattr("orchestrator.agent.quiet.EVERY", 0.01)
    return made


def loads(monkeypatch: pytest.MonkeyPatch, *values: int) -> None:
    left = list(values)
    monkeypatch.setattr("orchestrator.agent.sglang.running_and_queued", lambda client, timeout: left.pop(0) if len(left) > 1 else left[0])


def leave(settle: float = 0.2, drain: float = 5.0) -> list[str]:
    told: list[str] = []
    seat = wire.from_json(type(SEAT), {**wire.to_json(SEAT), "drain": drain})
    BoxRouterSteps(seat, settle).leave(OLD, lambda phase, detail: told.append(detail), lambda: None)
    return told


def test_on_the_box_it_leaves_and_is_waited_for_until_it_has_no_request(fake: FakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    loads(monkeypatch, 2, 1, 0)
    told = leave()
    assert fake.urls == [OTHER]
    assert next(text for text in told if "running or queued" in text).endswith("2 requests running or queued")


def test_on_the_box_nobody_is_taken_out_while_another_does_not_serve(fake: FakeRouter) -> None:
    fake.sick = {OTHER}
    with pytest.raises(LaunchFailed, match="not all others serve"):
        leave()
    assert fake.writes == []


def test_on_the_box_requests_that_do_not_end_stop_it(fake: FakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    loads(monkeypatch, 3)
    with pytest.raises(LaunchFailed, match="3 requests are left"):
        leave(drain=0.1)


def test_on_the_box_a_dead_router_stops_it_before_the_server_is_touched(fake: FakeRouter) -> None:
    fake.down = 10_000
    with pytest.raises(LaunchFailed) as failed:
        leave()
    assert failed.value.failure.category == "not_drained"


def test_on_the_box_what_serves_comes_in_and_trouble_is_a_warning(fake: FakeRouter) -> None:
    fake.router.remove(WORKER, Deadline(5))
    (verdict,) = BoxRouterSteps(SEAT).join(NEW, lambda phase, detail: None)
    assert (verdict.outcome, sorted(fake.urls)) == (Outcome.PASS, sorted([WORKER, OTHER]))
    fake.key = "other"
    fake.router.remove(WORKER, Deadline(5))
    del fake.serving[WORKER]
    seat = wire.from_json(type(SEAT), {**wire.to_json(SEAT), "join": 0.2})
    (verdict,) = BoxRouterSteps(seat).join(NEW, lambda phase, detail: None)
    assert (verdict.outcome, verdict.next_step) == (Outcome.WARN, "fab roll --router front --repair")
    alone = wire.from_json(type(SEAT), {**wire.to_json(seat), "others": []})
    (verdict,) = BoxRouterSteps(alone).join(NEW, lambda phase, detail: None)
    assert verdict.outcome == Outcome.REFUSE
    assert "which has no server now" in verdict.detail
