"""What the steps on a real box conclude from answers, without a box."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import correctness, ready, survey, wire
from orchestrator.agent.box_steps import BoxSteps
from orchestrator.agent.failure_signatures import Category
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import CAPACITY_CHECK, LaunchFailed, Observed, Previous
from orchestrator.agent.wire import Outcome

LAUNCH = wire.Launch("l1", "svc", "auto", "/py", ["--port", "1"], "127.0.0.1", 1)
SCORED = correctness.Scores({"prose": -2.0}, {"prose": 40}, ["fine"], [""])


@pytest.fixture
def box(tmp_path: Path) -> BoxSteps:
    order = wire.Order("o1", wire.OrderKind.RELAUNCH, "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop")
    return BoxSteps(order, StateFolder(str(tmp_path), "svc"), tmp_path, lambda _: None)


def score(monkeypatch: pytest.MonkeyPatch, scores: correctness.Scores) -> None:
    monkeypatch.setattr(correctness, "score_texts", lambda *_: scores)


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
    assert verdicts[0].outcome == Outcome.UNKNOWN


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
