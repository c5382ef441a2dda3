from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import decode, wire
from orchestrator.agent.http import BrokenError, StatusError
from orchestrator.agent.stream import Arrival, StreamEvent, parse_stream

CAPTURES = Path(__file__).parents[2] / "data/captures"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(**data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def test_events_carry_the_time_of_their_last_byte() -> None:
    first, second = chunk(event(n=1)), chunk(event(n=2))
    arrivals = [
        (10.1, HEAD),
        (10.2, first + second[:9]),
        (10.5, second[9:]),
        (10.6, chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"),
    ]

    events = parse_stream("/generate", arrivals, sent=10.0)

    assert [(round(item.moment, 3), item.data) for item in events] == [(0.2, {"n": 1}), (0.5, {"n": 2})]


def test_an_event_over_two_chunks_and_two_events_in_one_read() -> None:
    whole = event(n=1)
    arrivals = [(0.1, HEAD + chunk(whole[:7])), (0.4, chunk(whole[7:]) + chunk(event(n=2)) + chunk(b"data: [DONE]\n\n"))]

    assert [round(item.moment, 3) for item in parse_stream("/generate", arrivals, 0.0)] == [0.4, 0.4]


def test_every_byte_alone() -> None:
    raw = HEAD + chunk(event(n=1)) + chunk(event(n=2)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    arrivals: list[Arrival] = [(float(index), raw[index : index + 1]) for index in range(len(raw))]

    events = parse_stream("/generate", arrivals, 0.0)

    assert [item.data["n"] for item in events] == [1, 2]
    assert raw[: int(events[0].moment) + 1].endswith(b"}\n\n")
    assert raw[: int(events[1].moment) + 1].endswith(b"}\n\n")


def test_a_stream_that_is_cut_off_is_no_stream() -> None:
    with pytest.raises(BrokenError, match="1 events without"):
        parse_stream("/generate", [(0.1, HEAD + chunk(event(n=1)) + b"40\r\ndata: {")], 0.0)


def test_an_error_inside_the_stream() -> None:
    with pytest.raises(BrokenError, match="too long"):
        parse_stream("/generate", [(0.1, HEAD + chunk(event(error={"message": "too long"})) + chunk(b"data: [DONE]\n\n"))], 0.0)


def test_a_refusal_with_a_status() -> None:
    raw = b'HTTP/1.1 401 Unauthorized\r\nContent-Length: 24\r\n\r\n{"error":"Unauthorized"}'

    with pytest.raises(StatusError) as caught:
        parse_stream("/generate", [(0.1, raw)], 0.0)

    assert (caught.value.status, caught.value.body) == (401, '{"error":"Unauthorized"}')


def test_what_is_not_http() -> None:
    with pytest.raises(BrokenError, match="not HTTP"):
        parse_stream("/generate", [(0.1, b"SSH-2.0-OpenSSH_9.2\r\n")], 0.0)


def captured_stream(folder: str) -> list[StreamEvent]:
    events = []
    for line in (CAPTURES / folder / "generate_stream_64.txt").read_text(encoding="utf-8").splitlines():
        moment, _, text = line.partition(" ")
        if text.startswith("data: {"):
            events.append(StreamEvent(float(moment), json.loads(text[6:])))
    return events


@pytest.mark.parametrize("folder", ["cpu-0.5.23", "cpu-0.5.9"])
def test_a_captured_stream_is_a_sample(folder: str) -> None:
    events = captured_stream(folder)

    sample = decode.read_sample(events, 64)

    assert sample.tokens == 64
    assert sample.time_to_first_token == events[0].moment
    assert 0.0005 < sample.time_per_output_token < 0.02


def stream(*counts: int, reason: str | None = "length", **meta: Any) -> list[StreamEvent]:
    """One event for each count of tokens, 0.1 s apart, the first at 1 s."""
    events = [StreamEvent(1.0 + 0.1 * index, {"meta_info": {"completion_tokens": count}}) for index, count in enumerate(counts)]
    final = {"completion_tokens": counts[-1], "finish_reason": reason and {"type": reason}, "prompt_tokens": 256, **meta}
    return [*events[:-1], StreamEvent(events[-1].moment, {"meta_info": final})]


def test_tokens_are_counted_not_events() -> None:
    sample = decode.read_sample(stream(2, 4, 8), 8)

    assert sample.time_per_output_token == pytest.approx(0.2 / 6)
    assert sample.time_to_first_token == pytest.approx(1.0)


def test_the_last_token_came_with_the_first_event_that_counts_it() -> None:
    assert decode.read_sample(stream(1, 5, 5), 5).time_per_output_token == pytest.approx(0.1 / 4)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (stream(1, 4, 8, reason="abort"), "abort"),
        (stream(1, 4, 7), "7 tokens came, 8 were asked for"),
        (stream(1, 4, 8, cached_tokens=200), "200 tokens of its prompt were cached"),
        (stream(1, 4, 8, num_retractions=1), "retracted"),
        (stream(1, 4, 8, total_retractions=1), "retracted"),
        (stream(8), "at once"),
        ([StreamEvent(1.0, event.data) for event in stream(1, 4, 8)], "at once"),
        (stream(0), "no tokens"),
    ],
)
def test_unusable_samples(events: list[StreamEvent], reason: str) -> None:
    with pytest.raises(decode.UnusableSample, match=reason):
        decode.read_sample(events, 8)


def test_a_few_cached_tokens_are_fine() -> None:
    assert decode.read_sample(stream(1, 4, 8, cached_tokens=3), 8).cached_tokens == 3


def test_summary_is_of_medians_and_tells_a_wide_spread() -> None:
    samples = [wire.DecodeSample(ttft, per_token, 128, 2.0) for ttft, per_token in [(0.1, 0.010), (0.2, 0.011), (0.9, 0.020)]]

    timing = decode.summarize(samples, [255, 256, 257], wire.Policy(), [])

    assert (timing.time_to_first_token, timing.time_per_output_token, timing.input_tokens) == (0.2, 0.011, 256)
    assert timing.tokens_per_second == pytest.approx(1 / 0.011)
    assert any("spread by 91%" in remark for remark in timing.remarks)
    assert any("3 of 5 samples" in remark for remark in timing.remarks)


def test_prompts_are_never_the_same() -> None:
    prompts = {decode.fresh_prompt(50) for _ in range(20)}

    assert len({prompt[:8] for prompt in prompts}) == 20
    assert all(len(prompt.split()) == 50 for prompt in prompts)


def test_log_remarks() -> None:
    alone = "Decode batch, #running-req: 1, #token: 46, token usage: 0.00, cuda graph: True, gen throughput (token/s): 2.72, #queue-req: 0"

    assert decode.log_remarks([alone, "Uvicorn running"]) == []
    assert "others" in decode.log_remarks([alone.replace("#running-req: 1", "#running-req: 2")])[0]
    assert "CUDA graphs" in decode.log_remarks([alone, alone.replace("True", "False")])[0]
    assert decode.log_remarks([alone.replace("cuda graph: True", "cpu graph: False")]) == []
