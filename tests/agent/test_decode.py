"""Decode timing and text scoring against a stand-in on loopback whose token rate is set."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.correctness import compare, score
from orchestrator.agent.decode import time_decode
from orchestrator.agent.http import Client
from tests.agent.serving import free_port
from tests.agent.standin_sglang import StandIn, stand_in

POLICY = wire.Policy(measure_input_tokens=100, measure_output_tokens=20, measure_repeats=3, measure_seconds=20.0)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in() as started:
        yield started


def measure(server: StandIn, policy: wire.Policy = POLICY, **more: object) -> wire.DecodeTiming:
    return time_decode("127.0.0.1", server.port, None, policy, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_rate_that_is_set_is_measured(server: StandIn) -> None:
    server.token_seconds = 0.01

    timing = measure(server)

    assert timing.skipped is None
    assert len(timing.samples) == 3
    assert timing.output_tokens == 20
    assert 0.010 <= timing.time_per_output_token < 0.020
    assert timing.time_to_first_token >= 0.010
    assert timing.tokens_per_second == pytest.approx(1 / timing.time_per_output_token)


def test_prompts_come_out_at_the_length_that_is_asked_for(server: StandIn) -> None:
    assert measure(server).input_tokens == 100


def test_every_prompt_is_fresh_and_the_cache_is_left_alone(server: StandIn) -> None:
    measure(server)

    prompts = [body["text"] for body in server.bodies]
    assert len(set(prompts)) == len(prompts) == 5
    assert {request for request in server.asked if request.startswith("POST")} == {"POST /generate"}
    assert not any("flush" in request for request in server.asked)


def test_warm_up_has_the_sampling_parameters_that_are_timed(server: StandIn) -> None:
    measure(server)

    assert all(body["sampling_params"] == server.bodies[-1]["sampling_params"] for body in server.bodies)


@pytest.mark.slow
def test_skipped_while_others_use_the_server(server: StandIn) -> None:
    server.load = 2

    timing = measure(server)

    assert timing.skipped == "others use it: 2 requests running or queued"
    assert server.bodies == []


def test_samples_that_come_short_are_dropped(server: StandIn) -> None:
    server.missing_tokens = 3

    timing = measure(server)

    assert "17 tokens came, 20 were asked for" in str(timing.skipped)


def test_cached_prompts_are_dropped(server: StandIn) -> None:
    server.cached_tokens = 90

    assert "90 tokens of its prompt were cached" in str(measure(server).skipped)


@pytest.mark.slow
def test_the_limit_bounds_the_whole_timing(server: StandIn) -> None:
    server.token_seconds = 0.05
    begun = time.monotonic()

    timing = measure(server, wire.Policy(measure_output_tokens=20, measure_repeats=50, measure_seconds=6.0))

    assert time.monotonic() - begun < 8.0
    assert 2 <= len(timing.samples) < 50
    assert any("of 50 samples within 6 s" in remark for remark in timing.remarks)


@pytest.mark.slow
def test_a_warm_up_that_never_ends_is_given_up(server: StandIn) -> None:
    server.token_seconds = 30.0
    begun = time.monotonic()

    timing = measure(server, wire.Policy(measure_seconds=1.0))

    assert timing.skipped is not None
    assert time.monotonic() - begun < 4.0


def test_a_server_that_refuses_or_is_gone_is_a_reason_not_an_error(server: StandIn) -> None:
    server.generate_status = 400

    assert "HTTP 400" in str(measure(server).skipped)
    assert "nobody listens" in str(time_decode("127.0.0.1", free_port(), None, POLICY).skipped)


def test_not_asked_for(server: StandIn) -> None:
    assert measure(server, wire.Policy(measure=False)).skipped == "not asked for"
    assert server.asked == []


def test_requests_of_others_in_the_log_are_remarked(server: StandIn, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("[2026-11-29 12:00:00] Decode batch, #running-req: 9, cuda graph: False, #queue-req: 0\n")
    line = "[2026-11-29 12:00:01] Decode batch, #running-req: 3, cuda graph: True, #queue-req: 0\n"

    def write() -> None:
        with log.open("a") as stream:
            stream.write(line)

    timer = threading.Timer(0.05, write)
    timer.start()
    timing = measure(server, log=log)
    timer.join()

    assert "the server's log shows requests of others meanwhile" in timing.remarks
    assert "decode ran without CUDA graphs" not in timing.remarks


def test_scores_tell_a_server_that_computes_something_else(server: StandIn) -> None:
    old = score(Client(server.port), 60.0)
    same = compare(old, score(Client(server.port), 60.0), wire.Policy())
    server.logprob = -3.0
    other = compare(old, score(Client(server.port), 60.0), wire.Policy())

    assert [verdict.outcome for verdict in same] == ["pass", "pass"]
    assert [verdict.outcome for verdict in other] == ["refuse", "pass"]


def test_a_server_that_refuses_to_score_is_unknown_not_wrong(server: StandIn) -> None:
    old = score(Client(server.port), 60.0)
    server.generate_status = 400

    verdicts = compare(old, score(Client(server.port), 60.0), wire.Policy())

    assert [verdict.outcome for verdict in verdicts] == ["warn", "unknown"]
    assert "HTTP 400" in verdicts[0].detail
