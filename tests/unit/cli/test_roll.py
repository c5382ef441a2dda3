"""``fab roll``: its plan, its table, its documents, its flags and its exit codes, over replicas and a router in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_router import RollLockAction, RollLockRequest
from orchestrator.cli import edge, program
from orchestrator.flows import roll_router
from tests.unit.cli.test_verbs import Done
from tests.unit.flows.rolled_fleet import SERVICES, WORKERS, RolledFleet
from tests.unit.flows.samples import CANARY

ROLL = ("roll", "--backend", "flashinfer_cutedsl")


class Desk:
    """An operator's terminal before the fleet."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.fleet = RolledFleet(folder / "inventory")
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("CANARY_KEY", CANARY)
        monkeypatch.setenv("ORCHESTRATOR_INVENTORY", str(folder / "inventory"))
        monkeypatch.setenv("ORCHESTRATOR_RUNS", str(folder / "runs"))
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("orchestrator.agent.router.POLL", 0.005)
        monkeypatch.setattr(roll_router.RollRouter.__init__, "__defaults__", (0.3, 0.01))
        monkeypatch.setattr("orchestrator.cli.roll.fleet_of", lambda call, inventory, router: self.fleet.fleet)

    def run(self, *words: str) -> Done:
        made = program.make_program()
        self._monkeypatch.setattr(edge, "front_end", made)
        self._capsys.readouterr()
        try:
            made.run(["orchestrator", *words])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *self._capsys.readouterr())

    def kept(self) -> str:
        return "\n".join(path.read_text() for path in (self.folder / "runs").rglob("*") if path.is_file())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, monkeypatch, capsys)


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_plan_changes_nothing_and_says_who_is_rolled_by_whom(desk: Desk) -> None:
    shown = desk.run(*ROLL, "--plan")
    assert shown.code == 0, shown.err
    said = words(shown.out)
    for expected in (
        "roll to flashinfer_cutedsl behind router front",
        "http://10.0.0.9:30001, asked from this machine; it counts 3 of 3 workers as healthy",
        "1 r1 gpu1/101",
        "staged, about 44.0 s from here",
        "one at a time; 2 serve meanwhile",
        "fab roll --router front --resume goes on",
    ):
        assert expected in said, expected
    assert desk.fleet.router.writes == []
    assert not (desk.folder / "runs").exists()
    document = desk.run(*ROLL, "--plan", "--json").document
    assert [item["service"] for item in document["plan"]["replicas"]] == list(SERVICES)
    assert (document["verb"], document["exit_code"]) == ("roll", 0)


def test_a_roll_has_a_line_a_step_one_table_and_the_clients_word(desk: Desk) -> None:
    ended = desk.run(*ROLL, "--yes")
    assert ended.code == 0, ended.err
    said = words(ended.out)
    for expected in (
        "1/3 r1 to flashinfer_cutedsl",
        "3 of 3 replicas were changed",
        "clean: no retry, no exhausted retries",
        "r3 DONE 4.0 s 0",
    ):
        assert expected in said, expected
    assert CANARY not in ended.out + ended.err + desk.kept()
    listed = desk.run("history", "--json").document["runs"]
    assert sorted((run["verb"], run["exit_code"]) for run in listed) == [("relaunch", 0)] * 3 + [("roll", 0)]
    again = desk.run(*ROLL, "--yes", "--json").document
    assert [item["already"] for item in again["replicas"]] == [True] * 3


def test_one_that_fails_ends_it_with_six_and_says_how_to_go_on(desk: Desk) -> None:
    desk.fleet.boxes["r2"].ends = {"flashinfer_cutedsl": wire.State.RESTORED}
    ended = desk.run(*ROLL, "--yes")
    assert ended.code == 6
    said = words(ended.out)
    assert "stopped at r2: no kernel; it was put back and is in the router again; 1 of 3 replicas were changed" in said
    assert "next: mend it, then fab roll --router front --backend flashinfer_cutedsl" in said
    document = desk.run("roll", "--backend", "flashinfer_cutedsl", "--yes", "--json").document
    assert (document["stopped_at"], document["exit_code"], document["replicas"][0]["already"]) == ("r2", 6, True)


def test_what_is_refused_for_all_is_said_once(desk: Desk) -> None:
    for box in desk.fleet.boxes.values():
        box.refused = {"flashinfer_cutedsl": "the port is held"}
    refused = desk.run(*ROLL, "--yes", "--json")
    assert refused.code == 3
    assert refused.document["error"]["evidence"] == ["r1, r2, r3: port: the port is held"]
    assert desk.fleet.router.writes == []


def test_nobody_to_ask_is_no_yes(desk: Desk) -> None:
    assert desk.run(*ROLL).code == 2
    assert desk.fleet.router.writes == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("roll",), "which backend?"),
        (("roll", "--backend", "auto", "--router", "back"), "there is no router 'back'"),
        (("roll", "--backend", "auto", "--service", "r9"), "there is no service 'r9'"),
        (("roll", "--resume", "--backend", "auto"), "--backend can't be given with it"),
        (("roll", "--repair", "--backend", "auto"), "--backend can't be given with it"),
        (("roll", "--resume"), "no unfinished roll behind router front"),
    ],
)
def test_wrong_usage_is_told(desk: Desk, given: tuple[str, ...], message: str) -> None:
    ended = desk.run(*given)
    assert ended.code == 2
    assert message in words(ended.err)


def test_a_router_that_is_dead_is_an_error_with_a_next_step(desk: Desk) -> None:
    desk.fleet.router.down = 10_000
    dead = desk.run(*ROLL, "--yes", "--json")
    assert (dead.code, dead.document["error"]["exit_code"]) == (4, 4)
    assert "url:" in dead.document["error"]["next_step"]


def test_an_interrupted_roll_is_taken_up_and_its_plan_changes_nothing(desk: Desk) -> None:
    desk.fleet.boxes["r2"].raising = {"quiet": [KeyboardInterrupt()]}
    stopped = desk.run(*ROLL, "--yes")
    assert stopped.code == 130
    assert "fab roll --router front --resume" in words(stopped.err)
    shown = desk.run("roll", "--resume", "--plan")
    assert (shown.code, desk.fleet.boxes["r2"].orders) == (0, [])
    assert "taken up again" in shown.out
    done = desk.run("roll", "--resume", "--yes", "--json")
    assert (done.code, [item["state"] for item in done.document["replicas"]]) == (0, ["DONE"] * 3)


def test_a_roll_of_somebody_else_is_told_with_who_and_when_and_ended_by_force_only(desk: Desk) -> None:
    theirs = RollLockRequest("r1", "", RollLockAction.TAKE, "front", "20261130T120000Z-roll-front", "theirs", "ann@laptop")
    desk.fleet.boxes["r1"].on_rolling(theirs)
    refused = desk.run(*ROLL, "--yes", "--json")
    assert (refused.code, refused.document["error"]["category"]) == (5, "locked")
    assert "20261130T120000Z-roll-front by ann@laptop, since 20" in refused.document["error"]["message"]
    shown = desk.run("roll", "--repair", "--plan")
    assert "a roll stands behind it: 20261130T120000Z-roll-front by ann@laptop" in words(shown.out)
    desk.fleet.router.forget(WORKERS["r2"])
    assert desk.run("roll", "--repair", "--yes").code == 5
    ended = desk.run("roll", "--repair", "--force", "--yes", "--json")
    assert (ended.code, ended.document["mended"], ended.document["repair"]["rolling"]["operator"]) == (0, ["r2"], "ann@laptop")
    assert desk.run(*ROLL, "--yes").code == 0


def test_repair_shows_both_lists_and_mends(desk: Desk) -> None:
    desk.fleet.router.forget(WORKERS["r2"])
    shown = desk.run("roll", "--repair", "--plan")
    assert (shown.code, desk.fleet.router.writes) == (0, [])
    assert "r2 http://10.0.0.2:30000 not in the list serving had in again" in words(shown.out)
    mended = desk.run("roll", "--repair", "--yes", "--json")
    assert (mended.code, mended.document["mended"]) == (0, ["r2"])
    assert sorted(desk.fleet.router.urls) == sorted(WORKERS.values())
    desk.fleet.router.forget(WORKERS["r2"])
    desk.fleet.boxes["r2"].up = False
    assert desk.run("roll", "--repair", "--yes").code == 7


def test_a_relaunch_of_a_replica_says_that_its_router_is_not_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_place(*_: Any, **__: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr("orchestrator.remote.place.open_place", open_place)
    monkeypatch.setattr("orchestrator.remote.agent_client.AgentClient", lambda place: desk.fleet.boxes["r1"])
    shown = desk.run("relaunch", "--backend", "flashinfer_cutedsl", "--service", "r1", "--plan")
    assert "router front is not told" in words(shown.out)
    assert "fab roll --router front --service r1" in words(shown.out)


def test_requests_whose_clients_did_not_wait_are_no_answers(desk: Desk) -> None:
    from orchestrator.cli.roll_text import roll_blocks
    from orchestrator.results.roll import Standing
    from orchestrator.results.roll_records import Begun, Counted, Finished

    before, after = Counted(33, 31, 0, 0, 0, 0), Counted(2945, 2627, 0, 0, 0, 0)
    standing = Standing(Begun("front", "fast", [], "kim@laptop", before), finished=Finished(0, "0 of 0", after))
    said = " ".join(str(block) for block in roll_blocks(standing, "fab roll"))
    assert "2912 requests came to the router, 2596 were answered by a replica, 0 failed, 316 were still at work or their clients" in said
