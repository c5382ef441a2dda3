"""The stand-in's HTTP answers: readiness, streams, counts, log-likelihoods, keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.lab.conftest import Answer, Standin

Start = Callable[..., Standin]


def events(answer: Answer) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_port_answers_everything_but_health_until_the_warm_up_is_done(start: Start) -> None:
    server = start("--enable-metrics", time_scale=0.4)
    seen: list[int] = []

    def information_answers() -> bool:
        seen.append(server.ask("/model_info").status)
        return seen[-1] == 200

    server.wait_for(information_answers, "port")
    assert set(seen) == {0, 200}
    assert server.ask("/health").status == 503
    assert [server.ask(path).status for path in ("/server_info", "/v1/models", "/metrics")] == [200, 200, 200]
    server.wait_ready()
    assert server.ask("/health").status == 200
    assert server.log.index("Uvicorn running on") < server.log.index("fired up")


def test_generate_streams_cumulative_text_and_true_counts(start: Start) -> None:
    server = start().wait_ready()
    prompt = "about after again air all also animal another answer"
    body = {"text": prompt, "stream": True, "sampling_params": {"max_new_tokens": 12, "ignore_eos": True, "temperature": 0}}
    chunks = events(server.ask("/generate", body))
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == list(range(1, 13))
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in pairwise(chunks))
    final = chunks[-1]["meta_info"]
    assert final["finish_reason"] == {"type": "length", "length": 12}
    assert final["prompt_tokens"] == 9
    assert final["cached_tokens"] == 0
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:-1]] == [None] * 11
    again = server.ask("/generate", {**body, "stream": False}).json()
    assert again["text"] == chunks[-1]["text"]
    assert again["meta_info"]["cached_tokens"] == 8
    assert server.ask("/flush_cache", {}).status == 200
    assert server.ask("/generate", {**body, "stream": False}).json()["meta_info"]["cached_tokens"] == 0


def test_incremental_streaming_sends_pieces(start: Start) -> None:
    server = start("--incremental-streaming-output").wait_ready()
    body = {"text": "after", "stream": True, "sampling_params": {"max_new_tokens": 5, "ignore_eos": True, "temperature": 0}}
    chunks = events(server.ask("/generate", body))
    assert [len(chunk["output_ids"]) for chunk in chunks] == [1] * 5
    whole = server.ask("/generate", {**body, "stream": False}).json()
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]


def test_openai_streams_with_usage(start: Start) -> None:
    server = start().wait_ready()
    body = {"prompt": "about", "max_tokens": 6, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(server.ask("/v1/completions", body))
    assert len(chunks) == 7
    assert chunks[-1]["usage"]["completion_tokens"] == 6
    assert chunks[-1]["choices"] == []
    assert chunks[5]["choices"][0]["finish_reason"] == "length"
    chat = {"messages": [{"role": "user", "content": "about"}], "max_tokens": 3, "ignore_eos": True, "stream": True}
    deltas = [chunk["choices"][0]["delta"] for chunk in events(server.ask("/v1/chat/completions", chat))]
    assert deltas[0]["role"] == "assistant"
    assert len(deltas) == 1 + 3 + 1


def test_given_tokens_are_scored_and_garbage_is_far_off(start: Start) -> None:
    tokens = [1001, 1050, 1100, 1200]
    body = {"input_ids": tokens, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 1}}
    means: dict[bool, float] = {}
    for garbage in (False, True):
        meta = start(garbage=garbage).wait_ready().ask("/generate", body).json()["meta_info"]
        scored = meta["input_token_logprobs"]
        assert [entry[1] for entry in scored] == tokens
        assert scored[0][0] is None
        assert len(meta["output_token_logprobs"]) == 1
        means[garbage] = sum(entry[0] for entry in scored[1:]) / 3
    assert means[True] < means[False] - 5


def test_a_key_guards_all_but_health_readiness_and_metrics(start: Start) -> None:
    server = start("--api-key", "s3cret", "--enable-metrics").wait_ready()
    key = {"Authorization": "Bearer s3cret"}
    for path in ("/health", "/ready", "/metrics"):
        assert server.ask(path).status == 200, path
    for path in ("/ping", "/model_info", "/server_info", "/v1/models", "/v1/loads"):
        assert (server.ask(path).status, server.ask(path, headers=key).status) == (401, 200), path
    assert server.ask("/generate", {"text": "about"}, {"Authorization": "Bearer wrong"}).status == 401
    assert "'api_key': 's3cret'" in server.log


def test_server_info_says_what_was_asked_for(start: Start) -> None:
    info = start("--max-total-tokens", "5000", "--served-model-name", "mine").wait_ready().ask("/server_info").json()
    assert (info["version"], info["status"], info["max_total_num_tokens"]) == ("0.5.23", "ready", 5000)
    assert info["served_model_name"] == "mine"
    assert info["launch_command"].endswith("--served-model-name mine")


def test_abort_all_ends_a_stream(start: Start) -> None:
    server = start(tokens_per_second=50).wait_ready()
    answers: list[Answer] = []
    body = {"text": "about", "stream": True, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    stream = threading.Thread(target=lambda: answers.append(server.ask("/generate", body)))
    stream.start()
    server.wait_for(lambda: server.ask("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1, "running")
    assert server.ask("/flush_cache", {}).status == 400
    assert server.ask("/abort_request", {"abort_all": True}).status == 200
    stream.join()
    assert events(answers[0])[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.ask("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/generate", {}, 400),
        ("/generate", {"text": "about " * 5000}, 400),
        ("/generate", {"text": "about", "sampling_params": {"max_new_tokens": 9999}}, 400),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/nope", {}, 404),
    ],
)
def test_bad_requests(shared: Standin, path: str, body: Any, status: int) -> None:
    assert shared.ask(path, body).status == status


@pytest.fixture
def shared(start: Start) -> Standin:
    return start().wait_ready()
