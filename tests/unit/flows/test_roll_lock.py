"""Two rolls behind one router: the second is refused by name, a cut-off one keeps its place until it is taken up or given up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_router import RollLockAction, RollLockRequest
from orchestrator.errors import LockedError
from orchestrator.flows import roll_router
from orchestrator.flows.roll_lock import RouterLock
from orchestrator.flows.roll_repair import plan_repair, repair
from orchestrator.results.redaction import Redactor
from orchestrator.results.roll_journal import RollJournal
from tests.unit.flows.fake_agent import Heard
from tests.unit.flows.rolled_fleet import SERVICES, Killed, RolledFleet
from tests.unit.flows.samples import CANARY

FAST = "flashinfer_cutedsl"
AFTER_BEGUN = 1


@pytest.fixture(autouse=True)
def short_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(roll_router.RollRouter.__init__, "__defaults__", (0.3, 0.01))
    monkeypatch.setattr("orchestrator.agent.router.POLL", 0.005)


@pytest.fixture
def fleet(tmp_path: Path) -> RolledFleet:
    return RolledFleet(tmp_path / "inventory")


def taken_by_ann(fleet: RolledFleet) -> None:
    """Somebody else's machine rolls."""
    request = RollLockRequest("r1", "", RollLockAction.TAKE, "front", "20261130T120000Z-roll-front", "theirs", "ann@laptop")
    fleet.boxes["r1"].on_rolling(request)


def holder(fleet: RolledFleet) -> str | None:
    standing = RouterLock(fleet.fleet).standing()
    return None if standing is None else standing.operator


def test_while_somebody_rolls_no_other_replica_is_even_planned(fleet: RolledFleet) -> None:
    taken_by_ann(fleet)
    with pytest.raises(LockedError) as caught:
        fleet.plan(services=["r3"])
    assert caught.value.exit_code == 5
    assert "20261130T120000Z-roll-front by ann@laptop, since 20" in caught.value.message
    assert "fab roll --router front --resume 20261130T120000Z-roll-front" in str(caught.value.next_step)
    assert "fab roll --router front --repair --force" in str(caught.value.next_step)
    assert fleet.router.asked == []


def test_of_two_that_were_planned_at_once_the_second_begins_with_nothing(fleet: RolledFleet) -> None:
    planned = fleet.plan()
    taken_by_ann(fleet)
    fleet.plan = lambda *words, **named: planned  # type: ignore[method-assign]
    with pytest.raises(LockedError, match="ann@laptop"):
        fleet.roll()
    assert fleet.router.writes == []
    assert [box.orders for box in fleet.boxes.values()] == [[], [], []]


def test_a_roll_holds_it_from_its_first_replica_to_its_end(fleet: RolledFleet) -> None:
    seen: set[str | None] = set()
    fleet.boxes["r1"].loads = [0]
    fleet.router.on_ask = lambda ask: seen.add(holder(fleet)) if not ask.reads else None
    assert fleet.roll().exit_code == 0
    assert len(seen) == 1
    assert None not in seen
    assert holder(fleet) is None


def test_one_that_stops_at_a_failure_lets_it_go_too(fleet: RolledFleet) -> None:
    fleet.boxes["r2"].ends = {FAST: wire.State.RESTORED}
    assert fleet.roll().exit_code == 6
    assert holder(fleet) is None


def test_a_kill_leaves_it_and_resume_goes_on_under_it(fleet: RolledFleet) -> None:
    with pytest.raises(Killed):
        fleet.roll(dies_at=2 * 2 + 1)
    assert holder(fleet) is not None
    assert fleet.resume().exit_code == 0
    assert holder(fleet) is None


def test_one_that_was_cut_off_here_is_given_up_for_a_new_one(fleet: RolledFleet) -> None:
    with pytest.raises(Killed):
        fleet.roll(dies_at=2 * AFTER_BEGUN)
    fleet.path.rename(fleet.path.with_name("kept"))
    with pytest.raises(LockedError):
        fleet.plan()
    fleet.path.with_name("kept").rename(fleet.path)
    assert fleet.plan().refusals == []
    with RollJournal(fleet.path, Redactor()), pytest.raises(LockedError):
        fleet.plan()


def test_a_repair_leaves_a_router_alone_that_somebody_rolls_unless_that_is_given_up(fleet: RolledFleet) -> None:
    taken_by_ann(fleet)
    fleet.router.forget(fleet.boxes["r2"].worker)
    found = plan_repair(fleet.fleet)
    assert found.rolling is not None
    assert found.rolling.operator == "ann@laptop"
    with pytest.raises(LockedError):
        repair(fleet.fleet, found, Heard())
    assert fleet.router.writes == []
    repair(fleet.fleet, found, Heard(), give_up=True)
    assert (len(fleet.router.urls), holder(fleet)) == (3, None)


def test_it_lies_where_every_inventory_of_these_replicas_finds_it(fleet: RolledFleet) -> None:
    router = fleet.fleet.router
    turned = router.model_copy(update={"replicas": list(reversed(router.replicas))})
    taken_by_ann(fleet)
    other = RouterLock(dataclasses.replace(fleet.fleet, router=turned)).standing()
    assert other is not None
    assert [replica.service for replica in turned.replicas] == list(reversed(SERVICES))
