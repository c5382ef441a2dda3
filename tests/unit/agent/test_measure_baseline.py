"""What a timed server is held against: the launch verified before it, else itself as it was then."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from orchestrator.agent import correctness, wire
from orchestrator.agent.correctness import Scores
from orchestrator.agent.expectations import Answer
from orchestrator.agent.measure_baseline import comparable, kept_capacity, kept_scores
from orchestrator.agent.processes import Server, Ties
from orchestrator.agent.procfs import Process
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Observed
from orchestrator.agent.wire import Outcome

FLAGS = ["--moe-runner-backend"]
OLD = wire.Launch("old", "svc", "auto", "/py", ["--port", "1", *FLAGS, "auto"], "127.0.0.1", 1, backend_flags=FLAGS)
NEW = dataclasses.replace(OLD, launch_id="new", backend="dsl", arguments=["--port", "1", "--moe-runner-backend", "dsl"])
SCORED = Scores({"prose": -2.0}, {"prose": 40}, ["fine"], [""])


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(str(tmp_path), "svc")
    made.create()
    return made


def server(launch: wire.Launch) -> Server:
    identity = wire.ProcessId(os.getpid(), 1)
    main = Process(identity, 1, 1, 1, 0, "S", "python", ("python",), "/")
    manager = wire.Manager(wire.ManagerKind.SESSION, "shell")
    return Server(main, [main], manager, 1, listening=True, launch_id=launch.launch_id, ties=Ties(identity, 1, 1))


def verified(folder: StateFolder, launch: wire.Launch, scores: Scores | None, capacity: int = 1000) -> None:
    folder.write_launch(launch)
    folder.mark_verified(launch.launch_id, Observed(capacity))
    if scores is not None:
        folder.scores(launch.launch_id).write_text(json.dumps(wire.to_json(scores)), encoding="utf-8")


def test_the_launch_verified_before_it_counts_where_only_the_backend_differs(folder: StateFolder) -> None:
    verified(folder, OLD, SCORED, 900)
    verified(folder, NEW, dataclasses.replace(SCORED, greedy=["its own"]))

    found = kept_scores(folder, server(NEW), NEW)

    assert found is not None
    assert (found.scores.greedy, found.whose) == (["fine"], "launch old, which was verified before it")
    assert kept_capacity(folder, server(NEW), NEW)[:2] == (900, "launch old")


def test_a_model_that_was_changed_on_purpose_is_held_against_itself(folder: StateFolder) -> None:
    other = dataclasses.replace(NEW, arguments=[*NEW.arguments, "--model-path", "/models/other"])
    verified(folder, OLD, SCORED)
    verified(folder, other, dataclasses.replace(SCORED, greedy=["its own"]))

    found = kept_scores(folder, server(other), other)

    assert found is not None
    assert (found.scores.greedy, found.whose) == (["its own"], "itself when it was verified")


def test_launches_of_before_scores_were_kept_are_no_baseline(folder: StateFolder) -> None:
    verified(folder, OLD, None)
    verified(folder, NEW, None)

    assert kept_scores(folder, server(NEW), NEW) is None
    assert kept_scores(folder, server(NEW), None) is None


def test_texts_that_became_less_likely_are_refused_and_likelier_ones_are_told() -> None:
    for change, outcome in ((-1.0, Outcome.REFUSE), (0.0, Outcome.PASS), (1.0, Outcome.WARN)):
        now = dataclasses.replace(SCORED, likelihoods={"prose": -2.0 + change})
        assert correctness.compare(comparable(SCORED, now), now, wire.Policy())[0].outcome == outcome


def test_expectations_that_are_others_now_are_not_compared() -> None:
    kept = dataclasses.replace(SCORED, expected=[Answer("2 + 2 =", "5", "it does not contain '4'")])

    assert comparable(kept, dataclasses.replace(SCORED, expected=[Answer("3 + 3 =", "6")])).expected == []
    assert comparable(kept, dataclasses.replace(SCORED, expected=[Answer("2 + 2 =", "4")])).expected == kept.expected
