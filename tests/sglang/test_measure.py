"""Timing the real SGLang, on CPU: it must say the same as the server itself, and work with a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.measure import measure
from orchestrator.agent.wire_measure import Endpoint, MeasureReport, MeasureRequest, Source
from tests.rig.local_sglang import LocalServer, local_sglang
from tests.rig.sglang import find_environment

KEY = "canary-7Qx"
RANDOM_WEIGHTS = wire.Policy(garbage=wire.Garbage.WARN, likelihood_floor=-50.0)
"""They generate nonsense, which is not what is tested."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    environment = find_environment()
    assert environment is not None, "the tier is skipped without one"
    with local_sglang(
        environment, tmp_path_factory.mktemp("sglang"), "--api-key", KEY, variables={"SGLANG_RECORD_STEP_TIME": "1"}
    ) as started:
        yield started


def ask(server: LocalServer, root: Path, **more: Any) -> MeasureReport:
    asked: dict[str, Any] = {"input_tokens": 64, "output_tokens": 200, "repeats": 4, "seconds": 450.0, "policy": RANDOM_WEIGHTS, **more}
    return measure(MeasureRequest("tiny", str(root), server.port, **asked), lambda kind, data: None)


def test_it_says_what_the_server_says(server: LocalServer, tmp_path: Path) -> None:
    report = ask(server, tmp_path, batch_sizes=[1, 4])

    assert report.endpoint == Endpoint.COMPLETIONS
    assert report.invalid == []
    for batch in report.batches:
        words = {word.source: word.difference for word in batch.own_words}
        assert {Source.LOG, Source.STEP_TIME} <= set(words)
        assert words[Source.LOG] == pytest.approx(0.0, abs=0.03)
        assert words[Source.STEP_TIME] == pytest.approx(0.0, abs=0.03)
    assert Source.METRICS in {word.source for word in report.batches[0].own_words}


def test_what_it_depends_on_is_read_and_the_key_is_not_told(server: LocalServer, tmp_path: Path) -> None:
    report = ask(server, tmp_path, batch_sizes=[1], repeats=1)

    found = report.covariates
    assert (found.main_pid, found.max_total_num_tokens, found.decode_log_interval) == (server.pid, 8192, 40)
    assert found.sglang == found.packages["sglang"]
    assert "torch" in found.packages
    assert found.metrics["num_requests_total"] == 1
    assert (report.floor.config["hidden_size"], report.floor.tensor_parallel) == (64, 1)
    assert KEY not in repr(report)
