"""Timing against a server that knows when it wrote each token."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.batch_runs import BatchRuns, Load, Run
from orchestrator.agent.clock import Deadline
from orchestrator.agent.http import Client
from orchestrator.agent.measure_events import TokenStream
from orchestrator.agent.measure_window import time_batch
from orchestrator.agent.wire_measure import Endpoint

PROGRAM = Path(__file__).with_name("paced_server.py")


@contextlib.contextmanager
def paced(step: float, tokens_a_chunk: int = 1) -> Iterator[Client]:
    """A paced server on loopback."""
    process = subprocess.Popen([sys.executable, str(PROGRAM), str(step), str(tokens_a_chunk)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Client(int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def timed(client: Client, streams: int, tokens: int) -> tuple[Run, float]:
    """One run, and the time per output token that comes out of the server's own record of when it wrote, in place of our stamps."""
    runs = BatchRuns(client, Load(256, tokens, 0.0, "m"), None)
    assert runs.choose_endpoint(incremental=False, deadline=Deadline(30)) > 0
    assert runs.endpoint == Endpoint.COMPLETIONS
    client.get_json("/reference")
    run = runs.run(streams, Deadline(60))
    reference: list[dict[str, Any]] = client.get_json("/reference")
    assert len(reference) == streams
    written = [TokenStream(list(zip(item["moments"], item["counts"], strict=True))) for item in reference]
    truth = time_batch(written, [0.0] * streams, 0.0, 0.0, 0.0, None)
    return run, truth.time_per_output_token


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "rate"), [(1, 309.0), (4, 100.0), (64, 309.0)])
def test_many_fast_streams_are_timed_undistorted(streams: int, rate: float) -> None:
    with paced(1 / rate) as client:
        run, reference = timed(client, streams, 400)

    assert run.problems == []
    assert run.timing is not None
    assert run.timing.time_per_output_token == pytest.approx(reference, rel=0.01)
    assert run.timing.output_tokens == streams * 400


@pytest.mark.slow
def test_several_tokens_a_chunk() -> None:
    with paced(0.02, tokens_a_chunk=4) as client:
        run, reference = timed(client, 2, 200)

    assert run.timing is not None
    assert run.timing.time_per_output_token == pytest.approx(reference, rel=0.01)
    assert run.timing.time_per_output_token == pytest.approx(0.005, rel=0.25)
    assert run.timing.events == 2 * 50
    assert run.timing.gaps.p50 == pytest.approx(0.02, rel=0.25)
