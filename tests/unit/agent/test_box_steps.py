"""What the steps on a real box conclude from answers, without a box."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.agent import correctness, ready, survey, wire
from orchestrator.agent.box_steps import BoxSteps
from orchestrator.agent.failure_signatures import Category
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.steps import CAPACITY_CHECK, LaunchFailed, Observed, Previous
from orchestrator.agent.wire import Outcome

LAUNCH = wire.Launch("l1", "svc", "auto", "/py", ["--port", "1"], "127.0.0.1", 1)
SCORED = correctness.Scores({"prose": -2.0}, {"prose": 40}, ["fine"], [""])


@pytest.fixture
def box(tmp_path: Path) -> BoxSteps:
    order = wire.Order("o1", wire.OrderKind.RELAUNCH, "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop")
    return BoxSteps(order, StateFolder(str(tmp_path), "svc"), tmp_path, lambda _: None)


def score(monkeypatch: pytest.MonkeyPatch, scores: correctness.Scores) -> None:
    monkeypatch.setattr(correctness, "score", lambda *_: scores)


def test_a_server_that_does_not_score_must_prove_again_that_it_serves(box: BoxSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_: Any, **__: Any) -> None:
        raise LaunchFailed(wire.Failure(Category.KILLED, "a scheduler was killed"))

    score(monkeypatch, correctness.Scores(rejected="/generate: connection reset"))
    monkeypatch.setattr(ready, "wait_ready", dead)
    with pytest.raises(LaunchFailed, match="killed"):
        box.verify(LAUNCH, Observed(), Observed(), lambda *_: None)


def test_a_server_that_scores_is_not_asked_again(box: BoxSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    score(monkeypatch, SCORED)
    verdicts = box.verify(LAUNCH, Observed(), Observed(), lambda *_: None)
    assert verdicts[0].outcome == Outcome.PASS


def test_an_old_server_that_did_not_serve_is_not_said_to_have_been_absent(box: BoxSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "_found", lambda: None)
    monkeypatch.setattr(survey, "health_of", lambda *_: "unhealthy")
    box.observe(Previous(LAUNCH))
    score(monkeypatch, SCORED)
    verdicts = box.verify(LAUNCH, Observed(), Observed(), lambda *_: None)
    assert "it did not serve, it was unhealthy" in verdicts[0].detail


def test_less_kv_cache_fails_a_launch_only_where_nothing_but_the_backend_changed(
    box: BoxSteps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    folder.write_launch(LAUNCH)
    folder.mark_verified("l1", Observed(1000))
    score(monkeypatch, SCORED)
    lowered = dataclasses.replace(LAUNCH, launch_id="l2", arguments=[*LAUNCH.arguments, "--mem-fraction-static", "0.5"])
    for launch, outcome in ((LAUNCH, Outcome.REFUSE), (lowered, Outcome.WARN)):
        verdict = box.verify(launch, Observed(), Observed(440), lambda *_: None)[-1]
        assert (verdict.check, verdict.outcome) == (CAPACITY_CHECK, outcome)


def test_a_verified_launch_is_kept_with_the_kernel_it_ran_on(box: BoxSteps, tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    folder.write_launch(LAUNCH)
    box.mark_verified(LAUNCH, Observed(7, [wire.Fact("phase.loading", 1.0, "server log")]))
    kept = folder.verified_facts("l1")
    assert kept is not None
    assert kept["capacity"] == 7
    facts = {fact["name"]: fact["value"] for fact in kept["facts"]}
    assert set(facts) == {"phase.loading", "kernel", "driver"}
    assert facts["kernel"] == os.uname().release


def test_what_a_launch_answered_is_kept_once_it_is_verified(box: BoxSteps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    other = dataclasses.replace(LAUNCH, launch_id="l2")
    for launch in (LAUNCH, other):
        folder.write_launch(launch)
    score(monkeypatch, SCORED)
    box.verify(LAUNCH, Observed(), Observed(), lambda *_: None)
    assert not folder.scores("l1").exists()

    for launch in (LAUNCH, other):
        box.mark_verified(launch, Observed(7))

    assert read_record(correctness.Scores, folder.scores("l1")) == SCORED
    assert folder.scores("l1").stat().st_mode & 0o777 == 0o600
    assert not folder.scores("l2").exists(), "nobody has asked it"


@pytest.mark.parametrize("unit", [None, "sglang.service"])
def test_somebodys_unit_is_remembered_when_the_way_back_is_kept(
    box: BoxSteps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str | None
) -> None:
    StateFolder(str(tmp_path), "svc").create()
    monkeypatch.setattr(box, "_found", lambda: None)
    monkeypatch.setattr("orchestrator.agent.previous.capture", lambda *_: Previous(LAUNCH, unit))
    box.capture()
    kept = tmp_path / "svc" / "somebodys-unit"
    assert (kept.read_text() if kept.exists() else None) == (None if unit is None else unit + "\n")


@pytest.mark.parametrize(("armed", "ended"), [(True, ["l1"]), (False, [])])
def test_a_launch_that_came_back_while_it_was_looked_at_is_ended_before_the_next_starts(
    box: BoxSteps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, armed: bool, ended: list[str]
) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    folder.write_launch(LAUNCH)
    if armed:
        (folder.path / "boot").write_text("l1\n")
    new = dataclasses.replace(LAUNCH, launch_id="l2")
    servers = [SimpleNamespace(launch_id=name) for name in ("l1", None, "of-another-service", "l2")]
    runners = {"l1": SimpleNamespace(members="l1")}
    events: list[str] = []

    def start() -> Any:
        events.append("start")
        return SimpleNamespace(name="unit", main=None, facts=[])

    module = "orchestrator.agent.box_steps"
    monkeypatch.setattr(f"{module}.scan", dict)
    monkeypatch.setattr(f"{module}.find_servers", lambda _: servers)
    monkeypatch.setattr(f"{module}.runner_of", lambda _, launch: runners[launch.launch_id])
    monkeypatch.setattr(f"{module}.stopping.stop_members", lambda members, *_: events.append(members))
    monkeypatch.setattr(f"{module}.choose_runner", lambda *_: SimpleNamespace(members=list, start=start))
    monkeypatch.setattr("orchestrator.agent.systemd.is_available", lambda: False)
    box.start(new)
    assert events == [*ended, "start"]


def test_the_way_back_has_an_id_of_its_own_though_the_clock_comes_to_the_same_second_twice(
    box: BoxSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.agent.box_steps.time.gmtime", lambda: time.struct_time((2026, 1, 2, 3, 4, 5, 4, 2, 0)))
    ids = {box.new_launch_id() for _ in range(3)}
    assert len(ids) == 3
    assert all(identifier.startswith("20260102T030405Z-") and identifier.endswith("-back") for identifier in ids)


def test_an_old_server_that_died_and_was_started_again_by_systemd_does_not_keep_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = wire.Order("o1", "relaunch", "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop", old=wire.ProcessId(1, 5), new=LAUNCH)
    folder = StateFolder(str(tmp_path), "svc")
    folder.write_launch(dataclasses.replace(LAUNCH, launch_id="old"))
    folder.write_launch(LAUNCH)
    servers = [SimpleNamespace(launch_id=name, main=SimpleNamespace(id=wire.ProcessId(7, 7))) for name in ("old", "l1", None)]
    monkeypatch.setattr("orchestrator.agent.box_steps.find_servers", lambda *_: servers)
    monkeypatch.setattr("orchestrator.agent.box_steps.runner_of", lambda _, launch: SimpleNamespace(members=launch.launch_id))
    ended: list[str] = []
    monkeypatch.setattr("orchestrator.agent.stopping.stop_members", lambda members, *_: ended.append(members))
    steps = BoxSteps(order, folder, tmp_path, lambda _: None)
    assert not steps.old_lives()
    steps.stop(lambda *_: None, lambda *_: None)
    assert ended == ["old"]
