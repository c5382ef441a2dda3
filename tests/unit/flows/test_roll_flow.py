"""A roll over three replicas and a router in memory: its order, what ends it, what it leaves, and how it is taken up after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.router_protocol import Ask
from orchestrator.errors import (
    ConnectError,
    InterruptedByOperatorError,
    RouterError,
    RouterRestartedError,
    TooFewServingError,
    UsageError,
)
from orchestrator.flows import roll_router
from orchestrator.flows.roll_repair import Mend, plan_repair, repair
from orchestrator.results.roll import clients
from orchestrator.results.roll_journal import find_roll, read_records, unfinished
from orchestrator.results.roll_records import By, Changed, Returned
from tests.unit.flows.fake_agent import Heard
from tests.unit.flows.rolled_fleet import SERVICES, WORKERS, Killed, RolledFleet
from tests.unit.flows.samples import CANARY

FAST = "flashinfer_cutedsl"
ALL_FAST = dict.fromkeys(SERVICES, FAST)
INSTANTS = range(28)
"""Before and after each of the 14 records of a roll of three; where a supervisor does a part of it, fewer come to pass."""


@pytest.fixture(autouse=True)
def short_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(roll_router.RollRouter.__init__, "__defaults__", (0.3, 0.01))
    monkeypatch.setattr("orchestrator.agent.router.POLL", 0.005)


@pytest.fixture(params=[(False, False), (True, False), (False, True)], ids=["0.3.2", "smg", "by the supervisor"])
def rolled(request: pytest.FixtureRequest, tmp_path: Path) -> RolledFleet:
    smg, reaches = request.param
    return RolledFleet(tmp_path / "inventory", smg=smg, reaches=reaches)


@pytest.fixture
def fleet(tmp_path: Path) -> RolledFleet:
    return RolledFleet(tmp_path / "inventory")


def test_every_replica_is_changed_in_its_turn_and_out_of_the_router_meanwhile(rolled: RolledFleet) -> None:
    fewest: list[int] = []
    rolled.router.on_ask = lambda ask: fewest.append(len(rolled.router.urls))
    standing = rolled.roll()
    assert (standing.exit_code, rolled.serves) == (0, ALL_FAST)
    assert sorted(rolled.router.urls) == sorted(WORKERS.values())
    assert min(fewest) == 2, "never fewer than N-1"
    assert [box.served_out for box in rolled.boxes.values()] == [[True], [True], [True]]
    assert all(isinstance(end, Returned) and end.requests for end in standing.done.values())
    assert standing.finished is not None
    assert standing.finished.said == "3 of 3 replicas were changed"
    grown = clients(standing)
    assert grown is not None
    assert grown.clean
    assert grown.requests > 0


def test_the_plan_says_who_takes_them_out(tmp_path: Path) -> None:
    near = RolledFleet(tmp_path / "near", reaches=True)
    assert {item.replica.by for item in near.plan().replicas} == {By.SUPERVISOR}
    far = RolledFleet(tmp_path / "far")
    planned = far.plan()
    assert {item.replica.by for item in planned.replicas} == {By.OPERATOR}
    assert "--resume goes on" in planned.remarks[0]
    assert far.router.writes == []


@pytest.mark.parametrize(("url", "by"), [("http://127.0.0.1:30001", By.OPERATOR), ("https://10.0.0.9", By.OPERATOR)])
def test_a_box_takes_no_other_loopback_for_the_routers(tmp_path: Path, url: str, by: str) -> None:
    fleet = RolledFleet(tmp_path / "inventory", reaches=True)
    path = tmp_path / "inventory" / "routers" / "front.yml"
    path.write_text(path.read_text().replace("http://10.0.0.9:30001", url))
    other = RolledFleet.__new__(RolledFleet)
    other.__dict__.update(fleet.__dict__)
    from orchestrator.config import load_inventory

    other.inventory = load_inventory(tmp_path / "inventory")
    assert {item.replica.by for item in other.plan().replicas} == {by}


def test_the_first_that_fails_is_back_in_and_ends_it(rolled: RolledFleet) -> None:
    rolled.boxes["r2"].ends = {FAST: wire.State.RESTORED}
    standing = rolled.roll()
    assert (standing.exit_code, rolled.serves) == (6, {"r1": FAST, "r2": "auto", "r3": "auto"})
    assert sorted(rolled.router.urls) == sorted(WORKERS.values())
    assert rolled.boxes["r3"].orders == []
    assert standing.finished is not None
    assert standing.finished.said.startswith("stopped at r2: no kernel; it was put back and is in the router again; 1 of 3")


def test_one_that_is_down_stays_out(rolled: RolledFleet) -> None:
    rolled.boxes["r1"].ends = {FAST: wire.State.DOWN}
    standing = rolled.roll()
    assert standing.exit_code == 7
    assert sorted(rolled.router.urls) == [WORKERS["r2"], WORKERS["r3"]]
    assert rolled.boxes["r2"].orders == []


def test_one_that_fails_before_its_stop_is_in_again(rolled: RolledFleet) -> None:
    rolled.boxes["r1"].ends = {FAST: wire.State.REFUSED}
    standing = rolled.roll()
    assert (standing.exit_code, rolled.serves["r1"]) == (3, "auto")
    assert sorted(rolled.router.urls) == sorted(WORKERS.values())


def test_one_that_serves_so_already_is_passed_over(fleet: RolledFleet) -> None:
    assert fleet.roll().exit_code == 0
    fleet.path.unlink()
    for box in fleet.boxes.values():
        box.orders.clear()
    planned = fleet.plan()
    assert ([item.already for item in planned.replicas], planned.to_change) == ([True] * 3, [])
    standing = fleet.roll()
    assert (standing.exit_code, [box.orders for box in fleet.boxes.values()]) == (0, [[], [], []])
    assert standing.finished is not None
    assert standing.finished.said == "0 of 3 replicas were changed, 3 served so already"


def test_a_refused_check_stops_it_before_anything_leaves_the_router(fleet: RolledFleet) -> None:
    fleet.boxes["r2"].refused = {FAST: "the port is held"}
    planned = fleet.plan()
    assert planned.refusals == ["r2: port: the port is held"]
    assert fleet.router.writes == []


def test_a_check_that_is_refused_only_when_its_turn_has_come_leaves_it_in(fleet: RolledFleet) -> None:
    planned = fleet.plan()
    assert not planned.refusals
    original = fleet.boxes["r2"].on_preflight
    asked: list[int] = []

    def on_preflight(request: wire.PreflightRequest) -> wire.PreflightReport:
        asked.append(1)
        if len(asked) > 1:
            fleet.boxes["r2"].refused = {FAST: "the port is held"}
        return original(request)

    fleet.boxes["r2"].on_preflight = on_preflight  # type: ignore[method-assign]
    standing = fleet.roll()
    assert (standing.exit_code, fleet.boxes["r2"].orders) == (3, [])
    assert f"DELETE {WORKERS['r2']}" not in fleet.router.writes
    assert len(fleet.router.urls) == 3


def test_requests_that_do_not_end_stop_it_and_it_is_put_back(fleet: RolledFleet) -> None:
    fleet.boxes["r1"].loads = [3]
    standing = fleet.roll()
    assert (standing.exit_code, fleet.boxes["r1"].orders) == (3, [])
    assert sorted(fleet.router.urls) == sorted(WORKERS.values())
    assert standing.stop is not None
    assert "still has requests" in standing.stop.why


def test_a_single_replica_is_not_rolled(tmp_path: Path) -> None:
    fleet = RolledFleet(tmp_path / "inventory")
    path = tmp_path / "inventory" / "routers" / "front.yml"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "r2" not in line and "r3" not in line))
    from orchestrator.config import load_inventory

    fleet.inventory = load_inventory(tmp_path / "inventory")
    planned = fleet.plan()
    assert "one replica" in planned.refusals[0]


def test_a_replica_that_does_not_serve_refuses_the_whole(fleet: RolledFleet) -> None:
    fleet.router.sick = {WORKERS["r3"]}
    planned = fleet.plan()
    assert planned.refusals == [f"{WORKERS['r3']} is in the list, and not healthy"]
    assert planned.next_step == "fab roll --router front --repair --plan"
    fleet.router.sick = set()
    fleet.router.forget(WORKERS["r3"])
    assert fleet.plan().refusals == [f"{WORKERS['r3']} is not in the router's list"]


def _during(fleet: RolledFleet, happens: str) -> None:
    """Have something happen once the first replica is back."""
    state = {"done": False}

    def on_ask(ask: Ask) -> None:
        if state["done"] or not any("answering" in said for said in fleet.watcher.ended):
            return
        state["done"] = True
        if happens == "killed":
            fleet.router.sick = {WORKERS["r3"]}
        elif happens == "restarted":
            fleet.router.known = (WORKERS["r2"], WORKERS["r3"])
            fleet.router.restart()
        else:
            fleet.router.down = 10_000

    fleet.router.on_ask = on_ask


@pytest.mark.parametrize(
    ("happens", "error", "exit_code"),
    [("killed", TooFewServingError, 3), ("restarted", RouterRestartedError, 4), ("dead", RouterError, 4)],
)
def test_what_happens_to_the_router_or_a_worker_has_a_name(
    fleet: RolledFleet, happens: str, error: type[Exception], exit_code: int
) -> None:
    _during(fleet, happens)
    with pytest.raises(error) as caught:
        fleet.roll()
    assert getattr(caught.value, "exit_code", None) == exit_code
    assert unfinished("front") == fleet.path.parent
    assert fleet.boxes["r3"].orders == []
    fleet.router.on_ask = lambda ask: None
    fleet.router.down, fleet.router.sick = 0, set()
    if happens == "restarted":
        found = plan_repair(fleet.fleet)
        assert [item.mend for item in found.findings] == [Mend.ADD, Mend.NOTHING, Mend.NOTHING]
        repair(fleet.fleet, found, Heard())
    assert fleet.resume().exit_code == 0
    assert (fleet.serves, len(fleet.router.urls)) == (ALL_FAST, 3)


def test_a_restart_while_requests_are_waited_for_is_mended_in_passing(fleet: RolledFleet) -> None:
    restarts = iter([True])

    def on_ask(ask: Ask) -> None:
        if "waiting for requests to reach r1" in fleet.watcher.heard.notes and next(restarts, False):
            fleet.router.known = (WORKERS["r2"], WORKERS["r3"])
            fleet.router.restart()

    fleet.router.on_ask = on_ask
    standing = fleet.roll()
    assert (standing.exit_code, len(fleet.router.urls)) == (0, 3)
    assert fleet.router.writes.count(f"POST {WORKERS['r1']}") == 2
    assert standing.finished is not None
    assert (standing.finished.restarted, clients(standing)) == (True, None), "its counters began anew, and are past the old ones by now"


def test_a_server_that_has_died_and_that_the_router_has_not_missed_yet_stops_it(fleet: RolledFleet) -> None:
    planned = fleet.plan()
    assert not planned.refusals
    fleet.boxes["r3"].health = "down"
    with pytest.raises(TooFewServingError) as caught:
        fleet.roll()
    assert caught.value.evidence[0] == "r3 is down, by its own word"
    assert fleet.router.writes == []


def test_requests_that_reach_only_the_others_stop_it(fleet: RolledFleet) -> None:
    original = fleet.router.metrics

    def metrics() -> str:
        counted = original()
        fleet.router.counted.pop(WORKERS["r1"], None)
        return "\n".join(line for line in counted.splitlines() if f'worker="{WORKERS["r1"]}"' not in line)

    fleet.router.metrics = metrics  # type: ignore[method-assign]
    fleet.router.traffic = 3
    with pytest.raises(RouterError, match="reached other replicas and none r1"):
        fleet.roll()


def test_a_router_without_requests_is_told_and_no_reason_to_stop(fleet: RolledFleet) -> None:
    fleet.router.traffic = 0
    standing = fleet.roll()
    assert standing.exit_code == 0
    assert "no request came to the router" in fleet.watcher.ended[2]


def test_a_router_that_is_not_clean_is_told(fleet: RolledFleet) -> None:
    def on_ask(ask: Ask) -> None:
        fleet.router.retries = 2

    fleet.router.on_ask = on_ask
    fleet.plan()
    fleet.router.retries = 0
    fleet.router.on_ask = lambda ask: setattr(fleet.router, "retries", len(fleet.router.writes))
    standing = fleet.roll()
    assert standing.finished is not None
    grown = clients(standing)
    assert grown is not None
    assert (grown.retries, grown.clean) == (6, False)


@pytest.mark.parametrize("dies_at", INSTANTS)
def test_a_kill_before_or_after_any_record_is_taken_up_and_comes_to_the_same_end(rolled: RolledFleet, dies_at: int) -> None:
    try:
        standing = rolled.roll(dies_at=dies_at)
    except Killed:
        if not read_records(rolled.path):
            pytest.skip("nothing was begun")
        standing = rolled.resume()
    assert (standing.exit_code, rolled.serves) == (0, ALL_FAST)
    assert sorted(rolled.router.urls) == sorted(WORKERS.values())
    assert all(len(box.orders) == 1 for box in rolled.boxes.values()), "no replica is changed twice"
    assert all(box.served_out == [True] for box in rolled.boxes.values())


@pytest.mark.parametrize("dies_at", INSTANTS)
def test_a_kill_in_a_roll_that_fails_too(rolled: RolledFleet, dies_at: int) -> None:
    rolled.boxes["r2"].ends = {FAST: wire.State.RESTORED}
    try:
        standing = rolled.roll(dies_at=dies_at)
    except Killed:
        if not read_records(rolled.path):
            pytest.skip("nothing was begun")
        standing = rolled.resume()
    assert standing.exit_code == 6
    assert rolled.boxes["r3"].orders == []
    assert sorted(rolled.router.urls) == sorted(WORKERS.values())


def test_a_kill_after_a_replica_went_down_is_taken_up_to_the_same_end(rolled: RolledFleet) -> None:
    rolled.boxes["r1"].ends = {FAST: wire.State.DOWN}
    records = 2 if rolled.boxes["r1"].reaches else 3
    with pytest.raises(Killed):
        rolled.roll(dies_at=2 * records + 1)
    assert isinstance(read_records(rolled.path)[-1], Changed)
    assert rolled.resume().exit_code == 7
    assert sorted(rolled.router.urls) == [WORKERS["r2"], WORKERS["r3"]]


@pytest.mark.parametrize("write", range(1, 7))
def test_a_kill_at_any_change_of_the_routers_list(fleet: RolledFleet, write: int) -> None:
    def on_ask(ask: Ask) -> None:
        if not ask.reads and len(fleet.router.writes) + 1 == write:
            fleet.router.on_ask = lambda ask: None
            raise Killed

    fleet.router.on_ask = on_ask
    with pytest.raises(Killed):
        fleet.roll()
    assert fleet.resume().exit_code == 0
    assert (fleet.serves, len(fleet.router.urls)) == (ALL_FAST, 3)


def test_ctrl_c_while_requests_are_waited_for_puts_it_back(fleet: RolledFleet) -> None:
    fleet.boxes["r1"].raising = {"quiet": [KeyboardInterrupt()]}
    with pytest.raises(InterruptedByOperatorError) as caught:
        fleet.roll()
    assert "no replica is under way" in caught.value.message
    assert caught.value.next_step == f"fab roll --router front --resume {fleet.path.parent.name}"
    assert len(fleet.router.urls) == 3
    assert fleet.resume().exit_code == 0


def test_a_lost_box_leaves_a_roll_that_says_where_its_replica_is(fleet: RolledFleet) -> None:
    fleet.boxes["r1"].raising = {"quiet": [ConnectError("no route to host")]}
    with pytest.raises(ConnectError) as caught:
        fleet.roll()
    assert caught.value.evidence[-1] == "r1 serves and is out of the router"
    assert len(fleet.router.urls) == 2
    assert fleet.resume().exit_code == 0
    assert len(fleet.router.urls) == 3


def test_only_some_replicas_and_none_that_is_not_there(fleet: RolledFleet) -> None:
    standing = fleet.roll(services=["r3"])
    assert (standing.exit_code, fleet.serves) == (0, {"r1": "auto", "r2": "auto", "r3": FAST})
    with pytest.raises(UsageError, match="service r9 is not behind router front"):
        fleet.plan(services=["r9"])


def test_a_roll_is_found_by_its_router_and_a_finished_one_is_not_taken_up(fleet: RolledFleet) -> None:
    fleet.roll()
    assert unfinished("front") is None
    with pytest.raises(UsageError, match="has finished: 3 of 3"):
        find_roll(fleet.path.parent.name, "front")
    with pytest.raises(UsageError, match="no unfinished roll"):
        find_roll(None, "front")


def test_repair_leaves_what_does_not_serve_and_names_strangers(fleet: RolledFleet) -> None:
    fleet.router.forget(WORKERS["r1"])
    fleet.router.forget(WORKERS["r2"])
    fleet.boxes["r2"].up = False
    fleet.router.serving["http://10.9.9.9:1"] = "m"
    fleet.router.exchange(Ask("POST", "/workers", {"url": "http://10.9.9.9:1"}))
    fleet.router.exchange(Ask("GET", "/workers"))
    found = plan_repair(fleet.fleet)
    assert [item.mend for item in found.findings] == [Mend.ADD, Mend.LEAVE, Mend.NOTHING]
    assert found.left[0].advice == "fab launch --host gpu1 --service r2"
    assert found.strangers == ["http://10.9.9.9:1"]
    repair(fleet.fleet, found, Heard())
    assert sorted(fleet.router.urls) == [WORKERS["r1"], WORKERS["r3"], "http://10.9.9.9:1"]
