"""`fab roll` with SGLang's real router before stand-in servers, under four requests a second that are judged one by one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.results.roll_records import Changed, Ordered, Record, Removing
from orchestrator.results.runs import operator_name
from tests.lab.rolled_lab import FAILING, GOOD, PATIENCE, RolledLab, rolled_lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
exhaustive = pytest.mark.exhaustive

FAST = "flashinfer_cutedsl"
OTHER = "flashinfer_cutlass"
ROLL = ("roll", "--yes")


@pytest.fixture(scope="module", params=["sglang-router", "smg"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolledLab]:
    with rolled_lab(tmp_path_factory.mktemp("roll"), request.param, (GOOD, FAILING, GOOD)) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(lab: RolledLab) -> Iterator[None]:
    """Every test begins and ends with all replicas serving and in the router."""
    lab.asked_from(None)
    yield
    assert lab.router.serving() == set(lab.workers.values())


def other_than(lab: RolledLab, service: str) -> str:
    """A backend that a replica does not serve with and that works there."""
    return "marlin" if lab.backend(service) == OTHER else OTHER


def test_a_roll_from_here_is_missed_by_no_client(lab: RolledLab) -> None:
    with lab.load() as load:
        document = lab.ask(*ROLL, "--backend", OTHER)
    assert load.failed == []
    assert len(load.sent) > 40
    assert [(item["state"], item["by"]) for item in document["replicas"]] == [("DONE", "operator")] * 3
    assert {lab.backend(name) for name in lab.ports} == {OTHER}
    assert document["clean"] is True
    assert document["clients"]["requests"] > 40
    assert all(item["requests_since"] > 0 for item in document["replicas"])


def test_a_roll_by_the_supervisors_is_missed_by_no_client_and_one_that_fails_is_back_in(lab: RolledLab) -> None:
    lab.asked_from(GOOD)
    before = {name: lab.backend(name) for name in lab.ports}
    with lab.load() as load:
        document = lab.ask(*ROLL, "--backend", FAST, code=6)
    assert load.failed == []
    assert [(item["state"], item["by"]) for item in document["replicas"]] == [
        ("DONE", "supervisor"),
        ("RESTORED", "operator"),
        (None, "supervisor"),
    ]
    assert document["stopped_at"] == "r2"
    assert document["clean"] is True
    assert {name: lab.backend(name) for name in lab.ports} == {**before, "r1": FAST}


@pytest.mark.parametrize("state", [pytest.param("removing", marks=exhaustive), "ordered", pytest.param("changed", marks=exhaustive)])
def test_an_operator_that_is_killed_leaves_a_roll_that_goes_on(lab: RolledLab, state: str) -> None:
    kind: type[Record] = {"removing": Removing, "ordered": Ordered, "changed": Changed}[state]
    backend = other_than(lab, "r1")
    with lab.load() as load:
        lab.killed(lambda records: any(isinstance(record, kind) for record in records), "--backend", backend, "--service", "r1")
        document = lab.ask("roll", "--resume", "--yes")
    assert load.failed == []
    assert [item["state"] for item in document["replicas"]] == ["DONE"]
    assert lab.backend("r1") == backend
    assert sum(isinstance(record, Changed) for record in lab.records()) == 1


def test_a_second_roll_from_another_machine_is_refused_with_who_rolls_since_when(lab: RolledLab, tmp_path: Path) -> None:
    elsewhere = dataclasses.replace(lab, runs=tmp_path / "runs")
    backend = other_than(lab, "r1")
    with lab.load(), lab.beginning(is_ordered, "--backend", backend, "--service", "r1") as process:
        refused = elsewhere.ask("roll", "--yes", "--backend", backend, "--service", "r3", code=5)
        first = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert f"{operator_name()}, since 20" in refused["error"]["message"]
    assert (refused["run"], list(elsewhere.runs.glob("*"))) == (None, [])
    assert [item["state"] for item in first["replicas"]] == ["DONE"]


def is_ordered(records: list[Record]) -> bool:
    return any(isinstance(record, Ordered) for record in records)


@exhaustive
def test_what_a_supervisor_has_taken_out_it_has_in_again_though_nobody_is_there_any_more(lab: RolledLab) -> None:
    lab.asked_from(GOOD)
    backend = other_than(lab, "r3")
    with lab.load() as load:
        lab.killed(lambda records: "LEAVING" in lab.states(records), "--backend", backend, "--service", "r3")
        assert wait_until(lambda: lab.states(lab.records())[-1:] == ["DONE"], Deadline(PATIENCE), 0.1)
        assert len(lab.router.serving()) == 3, "it is in before the order has ended"
        document = lab.ask("roll", "--resume", "--yes")
    assert load.failed == []
    assert lab.backend("r3") == backend
    assert [(item["state"], item["by"]) for item in document["replicas"]] == [("DONE", "supervisor")]


@exhaustive
def test_a_worker_that_is_killed_meanwhile_stops_the_roll_and_cuts_no_more_than_its_own(lab: RolledLab) -> None:
    backend = other_than(lab, "r1")
    with lab.load() as load, lab.beginning(is_ordered, "--backend", backend) as process:
        lab.kill_server("r3")
        document = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert (process.returncode, document["error"]["exit_code"]) == (3, 3), document
    assert "so none is taken out" in document["error"]["message"]
    assert {item.outcome for item in load.failed} <= {"cut"}, "what ran on it; all else was tried again elsewhere"
    assert lab.backend("r1") == backend
    assert lab.backend("r2") is not None

    lab.launch("r3", backend)
    assert wait_until(lambda: len(lab.router.serving()) == 3, Deadline(PATIENCE), 0.2)
    with lab.load():  # an open breaker closes with the requests that come after its time
        assert wait_until(lab.router.sends_to_all, Deadline(PATIENCE), 0.2)
        document = lab.ask("roll", "--resume", "--yes")
    assert [item["state"] for item in document["replicas"]] == ["DONE", "DONE", None]
    assert document["replicas"][2]["already"] is True


@exhaustive
def test_a_router_that_dies_meanwhile_has_a_name_and_the_roll_goes_on_with_the_next_one(lab: RolledLab) -> None:
    backend = other_than(lab, "r1")
    lab.killed(lambda records: "STOPPING" in lab.states(records), "--backend", backend, "--service", "r1,r3")
    lab.router.kill()
    dead = lab.ask("roll", "--resume", "--yes", code=4)
    assert "router front" in dead["error"]["message"]
    assert any("may not be in the router yet" in line for line in dead["error"]["evidence"])
    lab.router.start([lab.workers["r2"]])
    restarted = lab.ask("roll", "--resume", "--yes", code=3)
    assert restarted["error"]["evidence"] == [f"{lab.workers['r3']} is not in the router's list"]
    assert "--repair" in restarted["error"]["next_step"]
    shown = lab.ask("roll", "--repair", "--plan", code=0)
    assert [item["mend"] for item in shown["repair"]["findings"]].count("add") == 1
    mended = lab.ask("roll", "--repair", "--yes")
    assert mended["mended"] == ["r3"]
    with lab.load() as load:
        document = lab.ask("roll", "--resume", "--yes")
    assert load.failed == []
    assert [item["state"] for item in document["replicas"]] == ["DONE", "DONE"]
    assert document["router_restarted"] is True
