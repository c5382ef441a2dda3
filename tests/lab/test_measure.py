"""The verb `measure` on a stand-in whose decode speed is set, and whose every step it therefore knows."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.adopt import adopt
from orchestrator.agent.correctness import Scores, score
from orchestrator.agent.http import Client
from orchestrator.agent.measure import measure
from orchestrator.agent.processes import MARKER
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire_launches import AdoptRequest
from orchestrator.agent.wire_measure import Endpoint, MeasureReport, MeasureRequest, Reason, Source
from tests.lab.conftest import Standin

Start = Callable[..., Standin]
RATE = 100.0


def ask(server: Standin, root: Path, listen: Callable[[str, Any], None] = lambda kind, data: None, **more: Any) -> MeasureReport:
    asked: dict[str, Any] = {"batch_sizes": [1, 4], "input_tokens": 32, "output_tokens": 100, "repeats": 3, "seconds": 120.0, **more}
    return measure(MeasureRequest("lab", str(root), server.port, **asked), listen)


def test_the_step_time_that_is_set_is_measured(start: Start, tmp_path: Path) -> None:
    server = start("--decode-log-interval", "20", tokens_per_second=RATE, environment={"SGLANG_RECORD_STEP_TIME": "1"}).wait_ready()

    report = ask(server, tmp_path)

    assert report.endpoint == Endpoint.COMPLETIONS
    assert report.output_tokens == 100
    for batch in report.batches:
        assert batch.skipped is None
        assert batch.time_per_output_token is not None
        assert batch.time_per_output_token.median >= 0.98 / RATE
        assert [item.output_tokens for item in batch.repeats] == [100 * batch.batch_size] * 3
        kept = next(word for word in batch.own_words if word.source == Source.STEP_TIME)
        assert kept.difference == pytest.approx(0.0, abs=0.01)  # on a starved machine it can't hold the pace that is set


def test_the_server_says_the_same(start: Start, tmp_path: Path) -> None:
    server = start("--decode-log-interval", "20", tokens_per_second=RATE, environment={"SGLANG_RECORD_STEP_TIME": "1"}).wait_ready()

    report = ask(server, tmp_path, batch_sizes=[1, 3])

    for batch in report.batches:
        assert {word.source for word in batch.own_words} == {Source.STEP_TIME, Source.LOG}
        assert batch.disagreements == []
    assert report.covariates.decode_log_interval == 20
    assert report.invalid == []


def test_a_client_of_somebody_else_is_told(start: Start, tmp_path: Path) -> None:
    server = start(tokens_per_second=RATE).wait_ready()
    body = {"text": "about", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
    over = threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            server.ask("/generate", body)

    other = threading.Thread(target=keep_asking)

    def listen(kind: str, data: Any) -> None:
        if getattr(data, "phase", "") == "timing" and not other.is_alive():
            other.start()

    report = ask(server, tmp_path, listen, batch_sizes=[2], repeats=1)
    over.set()
    other.join()

    assert Reason.OTHERS in {item.reason for item in report.invalid}
    assert len(report.batches[0].repeats) == 1


def test_garbage_is_told_and_timed_all_the_same(start: Start, tmp_path: Path) -> None:
    server = start(tokens_per_second=400, garbage=True).wait_ready()

    report = ask(server, tmp_path, batch_sizes=[1], repeats=2)

    assert {item.reason for item in report.invalid} == {Reason.OUTPUT}
    assert len(report.batches[0].repeats) == 2


def test_more_than_the_server_runs_at_once_is_left_out(start: Start, tmp_path: Path) -> None:
    server = start("--max-running-requests", "2", tokens_per_second=400).wait_ready()

    report = ask(server, tmp_path, batch_sizes=[2, 3], repeats=1)

    assert [batch.skipped is None for batch in report.batches] == [True, False]
    assert [(item.reason, item.batch_size) for item in report.invalid] == [(Reason.INCOMPLETE, 3)]


def test_the_limit_ends_it(start: Start, tmp_path: Path) -> None:
    server = start(tokens_per_second=50).wait_ready()
    began = time.monotonic()

    report = ask(server, tmp_path, batch_sizes=[1, 2], repeats=50, seconds=12.0)

    assert time.monotonic() - began < 40
    assert Reason.INCOMPLETE in {item.reason for item in report.invalid}


def test_a_sampled_first_request_compiles_in_the_warm_up(start: Start, tmp_path: Path) -> None:
    server = start(tokens_per_second=400, first_sampled_seconds=2.0).wait_ready()

    report = ask(server, tmp_path, batch_sizes=[1], repeats=2, temperature=0.8)

    first_tokens = report.batches[0].time_to_first_token
    assert first_tokens is not None
    assert report.warm_up[0] > 2.0
    assert first_tokens.high < 1.0


@pytest.mark.parametrize(("flags", "endpoint"), [((), Endpoint.COMPLETIONS), (("--incremental-streaming-output",), Endpoint.GENERATE)])
def test_with_a_key_over_the_endpoint_whose_events_stay_small(start: Start, tmp_path: Path, flags: tuple[str, ...], endpoint: str) -> None:
    server = start("--api-key", "canary-7Qx", *flags, tokens_per_second=400).wait_ready()

    report = ask(server, tmp_path, batch_sizes=[2], repeats=2)

    assert report.endpoint == endpoint
    assert report.batches[0].skipped is None
    assert "canary-7Qx" not in repr(report)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(AgentRefusal, match="no server listens on port 9"):
        measure(MeasureRequest("lab", str(tmp_path), 9), lambda kind, data: None)


@pytest.mark.parametrize(("change", "doubted"), [(0.0, False), (1.0, True)])
def test_what_a_server_that_was_started_by_hand_answers_is_held_against_what_it_answered_when_it_was_adopted(
    start: Start, tmp_path: Path, change: float, doubted: bool
) -> None:
    server = start(tokens_per_second=400).wait_ready()
    root = str(tmp_path / "state")

    adopted = adopt(AdoptRequest("lab", root, server.port, "found"), lambda kind, data: None)

    assert adopted.answers_kept
    assert {item.outcome for item in adopted.answers} == {wire.Outcome.PASS}
    path = StateFolder(root, "lab").scores("found")
    then = wire.from_json(Scores, json.loads(path.read_text(encoding="utf-8")))
    shifted = dataclasses.replace(then, likelihoods={name: value + change for name, value in then.likelihoods.items()})
    path.write_text(json.dumps(wire.to_json(shifted)), encoding="utf-8")
    report = ask(server, Path(root), batch_sizes=[1], repeats=1)
    against = [item.detail for item in report.invalid if item.reason == Reason.OUTPUT]
    assert [detail.startswith("against itself when it was adopted: fixed texts: largest change") for detail in against] == [True] * doubted


@pytest.mark.parametrize(("change", "doubted"), [(0.0, False), (1.0, True)])
def test_what_it_answers_is_held_against_what_it_answered_when_it_was_verified(
    start: Start, tmp_path: Path, change: float, doubted: bool
) -> None:
    launch = wire.Launch("L", "lab", "auto", sys.executable, [], "127.0.0.1", 1)
    server = start(tokens_per_second=400, environment={MARKER: launch.launch_id}).wait_ready()
    now = score(Client(server.port), 20.0)
    folder = StateFolder(str(tmp_path / "state"), "lab")
    folder.create()
    folder.write_launch(launch)
    then = dataclasses.replace(now, likelihoods={name: value + change for name, value in now.likelihoods.items()})
    folder.scores(launch.launch_id).write_text(json.dumps(wire.to_json(then)), encoding="utf-8")

    report = ask(server, tmp_path / "state", batch_sizes=[1], repeats=1)

    against = [item.detail for item in report.invalid if item.reason == Reason.OUTPUT]
    assert [detail.startswith("against itself when it was verified: fixed texts: largest change") for detail in against] == [True] * doubted
