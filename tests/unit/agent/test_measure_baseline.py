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
from orchestrator.agent.known_launches import record_of
from orchestrator.agent.measure_baseline import comparable, keep_scores, kept_capacity, kept_scores
from orchestrator.agent.own_session import boot_identity
from orchestrator.agent.previous import AS_FOUND
from orchestrator.agent.processes import Server, Ties
from orchestrator.agent.procfs import Process
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Observed
from orchestrator.agent.wire import Outcome
from orchestrator.agent.wire_launches import Adopted

FLAGS = ["--moe-runner-backend"]
OLD = wire.Launch("old", "svc", "auto", "/py", ["--port", "1", *FLAGS, "auto"], "127.0.0.1", 1, backend_flags=FLAGS)
NEW = dataclasses.replace(OLD, launch_id="new", backend="dsl", arguments=["--port", "1", "--moe-runner-backend", "dsl"])
SCORED = Scores({"prose": -2.0}, {"prose": 40}, ["fine"], [""])


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(str(tmp_path), "svc")
    made.create()
    return made


def server(launch: wire.Launch | None, start_time: int = 1) -> Server:
    """One that we have started, or somebody else."""
    identity = wire.ProcessId(os.getpid(), start_time)
    main = Process(identity, 1, 1, 1, 0, "S", "python", ("python",), "/")
    manager = wire.Manager(wire.ManagerKind.SESSION, "shell")
    return Server(main, [main], manager, 1, listening=True, launch_id=launch.launch_id if launch else None, ties=Ties(identity, 1, 1))


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


def adopted(folder: StateFolder) -> wire.Launch:
    """A server that somebody has started by hand, adopted."""
    found = dataclasses.replace(OLD, launch_id="found", backend=AS_FOUND, backend_flags=[], environment={"HOME": "/home/kim"})
    verified(folder, found, SCORED, 900)
    kept = Adopted(server(None).main.id, boot_identity())
    (folder.launch_folder("found") / "adopted.json").write_text(json.dumps(wire.to_json(kept)), encoding="utf-8")
    return found


def test_a_server_that_was_adopted_is_held_against_what_it_answered_then(folder: StateFolder) -> None:
    found = adopted(folder)
    record = record_of(folder, server(None))
    assert record == found

    kept = kept_scores(folder, server(None), record)

    assert kept is not None
    assert (kept.scores.greedy, kept.whose) == (["fine"], "itself when it was adopted")


def test_another_process_than_the_adopted_one_has_no_record(folder: StateFolder) -> None:
    adopted(folder)

    assert record_of(folder, server(None, start_time=2)) is None


def test_what_replaces_an_adopted_server_is_held_against_its_answers(folder: StateFolder) -> None:
    adopted(folder)
    verified(folder, NEW, dataclasses.replace(SCORED, greedy=["its own"]))

    now = server(NEW, start_time=2)
    kept = kept_scores(folder, now, record_of(folder, now))

    assert kept is not None
    assert (kept.scores.greedy, kept.whose) == (["fine"], "launch found, which was verified before it")
    assert kept_capacity(folder, now, NEW)[:2] == (900, "launch found")


def test_only_answers_that_were_scored_are_kept(folder: StateFolder) -> None:
    folder.write_launch(OLD)

    assert not keep_scores(folder, OLD.launch_id, None)
    assert not keep_scores(folder, OLD.launch_id, Scores(rejected="no log-probabilities with speculative decoding"))
    assert not folder.scores(OLD.launch_id).exists()
    assert keep_scores(folder, OLD.launch_id, SCORED)
    assert folder.scores(OLD.launch_id).stat().st_mode & 0o777 == 0o600


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
