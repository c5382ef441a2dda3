"""From events to figures, the server's own word beside them, and what speaks against a result."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import measure_validity, server_word
from orchestrator.agent.capacity import Known
from orchestrator.agent.measure_events import TokenStream, counts_tokens, is_cumulative, read_tokens, request_body
from orchestrator.agent.measure_window import NoWindowError, interval, quantile, time_batch
from orchestrator.agent.phases import parse_line
from orchestrator.agent.stream import StreamEvent
from orchestrator.agent.wire_measure import Endpoint, GpuSeries, Reason, RepeatTiming, Source

CAPTURES = Path(__file__).parents[2] / "data/captures"


def captured(name: str) -> list[StreamEvent]:
    events = []
    for line in (CAPTURES / name).read_text(encoding="utf-8").splitlines():
        moment, _, text = line.partition(" ")
        if text.startswith("data: {"):
            events.append(StreamEvent(float(moment), json.loads(text[6:])))
    return events


def evenly(tokens: int, step: float, first: float, start: float = 0.0, chunk: int = 1, **more: Any) -> TokenStream:
    """A stream whose first token comes at `first` and that then gets `chunk` tokens every `chunk` steps."""
    counts = [1, *range(1 + chunk, tokens + 1, chunk)]
    return TokenStream([(start + first + (count - 1) * step, count) for count in counts], "length", 10, **more)


def timed(streams: list[TokenStream]) -> RepeatTiming:
    return time_batch(streams, [0.0] * len(streams), 1000.0, max(stream.points[-1][0] for stream in streams), 0.0, None)


@pytest.mark.parametrize("folder", ["cpu-0.5.23", "cpu-0.5.9"])
def test_a_captured_generate_stream_is_cumulative_and_counted(folder: str) -> None:
    events = captured(f"{folder}/generate_stream_64.txt")

    stream = read_tokens(Endpoint.CUMULATIVE, events)

    assert is_cumulative(events)
    assert (stream.tokens, stream.finish) == (64, "length")
    assert counts_tokens(stream, 64)
    assert stream.prompt_tokens == events[-1].data["meta_info"]["prompt_tokens"]
    assert stream.text == events[-1].data["text"]
    assert stream.points[0][0] == events[0].moment


def test_a_captured_completions_stream_with_continuous_usage_is_counted() -> None:
    stream = read_tokens(Endpoint.COMPLETIONS, captured("cpu-0.5.23/completions_usage_40.txt"))

    assert [count for _, count in stream.points] == list(range(1, 41))
    assert (stream.finish, stream.prompt_tokens, stream.cached_tokens) == ("length", 43, None)


def test_without_continuous_usage_the_events_do_not_count() -> None:
    events = captured("cpu-0.5.23/completions_usage_40.txt")
    silent = [StreamEvent(item.moment, {**item.data, "usage": None} if item.data["choices"] else item.data) for item in events]

    assert not counts_tokens(read_tokens(Endpoint.COMPLETIONS, silent), 40)


def test_an_incremental_generate_stream() -> None:
    events = [
        StreamEvent(0.1 * number, {"text": f" w{number}", "output_ids": [number], "meta_info": {"completion_tokens": number}})
        for number in (1, 2, 3)
    ]

    assert not is_cumulative(events)
    assert read_tokens(Endpoint.GENERATE, events, 5.0).text == " w1 w2 w3"
    assert [moment for moment, _ in read_tokens(Endpoint.GENERATE, events, 5.0).points] == pytest.approx([5.1, 5.2, 5.3])


def test_merged_chunks_and_a_repeated_last_count() -> None:
    events = [StreamEvent(0.1 * index, {"meta_info": {"completion_tokens": count}}) for index, count in enumerate((1, 4, 8, 8))]

    assert [count for _, count in read_tokens(Endpoint.GENERATE, events).points] == [1, 4, 8]


@pytest.mark.parametrize("endpoint", [Endpoint.GENERATE, Endpoint.COMPLETIONS, Endpoint.CUMULATIVE])
def test_a_request_asks_for_exactly_so_many_tokens(endpoint: str) -> None:
    body = request_body(endpoint, "words", 77, 0.5)
    sampling = body.get("sampling_params", body)

    assert body["stream"] is True
    assert (sampling.get("max_new_tokens") or sampling["max_tokens"], sampling["temperature"], sampling["ignore_eos"]) == (77, 0.5, True)


def test_one_stream_is_timed_from_its_first_to_its_last_token() -> None:
    timing = timed([evenly(101, 0.02, first=0.5)])

    assert timing.time_to_first_token == pytest.approx([0.5])
    assert timing.time_per_output_token == pytest.approx(0.02)
    assert timing.tokens_per_second == pytest.approx(50)
    assert timing.window == pytest.approx(2.0)
    assert [timing.gaps.p50, timing.gaps.max] == pytest.approx([0.02, 0.02])
    assert (timing.window_tokens, timing.gaps.count) == (100, 100)


def test_only_the_window_counts_in_which_all_decode() -> None:
    early = TokenStream([(0.1, 1), (1.1, 2), (2.0, 3), (2.02, 4), (2.04, 5), (2.06, 6)], "length", 10)
    late = TokenStream([(2.0, 1), (2.02, 2), (2.04, 3), (2.06, 4), (9.0, 5)], "length", 10)

    timing = timed([early, late])

    assert timing.time_per_output_token == pytest.approx(0.02)
    assert timing.window == pytest.approx(0.06)
    assert timing.window_tokens == 6
    assert timing.tokens_per_second == pytest.approx(100)
    assert timing.gaps.max == pytest.approx(0.02)
    assert timing.output_tokens == 11


def test_several_tokens_a_chunk_are_tokens() -> None:
    timing = timed([evenly(101, 0.01, first=0.1, chunk=4)])

    assert timing.time_per_output_token == pytest.approx(0.01)
    assert timing.gaps.p50 == pytest.approx(0.04)
    assert timing.events == 26


@pytest.mark.parametrize(
    ("streams", "reason"),
    [
        ([TokenStream([(1.0, 64)], "length", 10)], "at once"),
        ([TokenStream([], "length", 10)], "no tokens"),
        ([evenly(10, 0.01, first=0.1), evenly(10, 0.01, first=5.0)], "ask for more"),
    ],
)
def test_no_window_no_time(streams: list[TokenStream], reason: str) -> None:
    with pytest.raises(NoWindowError, match=reason):
        time_batch(streams, [0.0] * len(streams), 0.0, 9.0, 0.0, None)


def test_six_repeats_are_the_fewest_for_95_percent() -> None:
    values = [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]

    found, fewer = interval(values), interval(values[:5])

    assert found is not None
    assert (found.median, found.low, found.high, found.count) == (3.5, 1.0, 6.0, 6)
    assert found.coverage == pytest.approx(1 - 2 / 64)
    assert fewer is not None
    assert fewer.coverage == pytest.approx(0.9375)
    assert interval([]) is None


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """Every order of ten values above or below the median, each as likely."""
    count = 10
    held = 0
    for signs in itertools.product((-1.0, 1.0), repeat=count):
        values = [sign * (index + 1) for index, sign in enumerate(signs)]
        found = interval(values)
        assert found is not None
        held += found.low <= 0.0 <= found.high
    found = interval([float(number) for number in range(count)])
    assert found is not None
    assert held / 2**count == pytest.approx(found.coverage)
    assert found.coverage >= 0.95


def test_quantiles_lie_between_the_nearest() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([1.0, 2.0], 0.9) == pytest.approx(1.9)


PREFILL = (
    "[2026-11-29 12:00:00] Prefill batch, #new-seq: 1, #new-token: {}, #cached-token: {}, token usage: 0.00, #running-req: 0, "
    "#queue-req: 0, cuda graph: True, input throughput (token/s): 9.90"
)
DECODE = (
    "[2026-11-29 12:00:00] Decode batch, #running-req: {}, #token: {}, token usage: 0.00, cuda graph: {}, "
    "gen throughput (token/s): {}, #queue-req: 0"
)


def log(*lines: str) -> server_word.BatchLog:
    return server_word.read_batches([parse_line(line) for line in lines])


def busy_log(running: int, *throughputs: float, tokens: int = 20, graph: bool = True) -> server_word.BatchLog:
    """A prefill and then a line each 40 steps; the first holds the pause."""
    lines = [DECODE.format(running, tokens + index * 40 * running, graph, value) for index, value in enumerate((1.5, *throughputs))]
    return log(PREFILL.format(10, 0), *lines)


def test_the_line_after_a_pause_or_a_prefill_is_dropped() -> None:
    found = log(DECODE.format(1, 50, True, 2.7), PREFILL.format(8, 2), DECODE.format(1, 90, True, 60), DECODE.format(1, 130, True, 100))

    assert [(line.clean, line.throughput, line.tokens) for line in found.decode] == [(False, 2.7, 50), (False, 60, 90), (True, 100, 130)]
    assert (found.prefills, found.prompt_tokens, found.cached_tokens) == (1, 10, 2)


@pytest.mark.parametrize("name", ["cpu-0.5.23/main.log", "cpu-0.5.9/main.log"])
def test_captured_logs_tell_a_throughput_without_pauses(name: str) -> None:
    lines = [parse_line(line) for line in (CAPTURES / name).read_text(encoding="utf-8").splitlines()]

    found = server_word.read_batches(lines)

    clean = [line.throughput for line in found.decode if line.clean]
    assert len(clean) > 3
    assert min(clean) > 100
    assert min(line.throughput for line in found.decode) < 10
    assert not found.without_graph  # on a CPU the label is another one
    assert not found.retracted


def repeat(ours: float, running: int, *throughputs: float, **more: Any) -> server_word.Repeat:
    streams = [evenly(200, ours, first=0.1) for _ in range(running)]
    return server_word.Repeat(timed(streams), streams, busy_log(running, *throughputs), **more)


def test_the_servers_word_is_compared_repeat_by_repeat() -> None:
    """The pace doubles from one repeat to the next; within each both sides agree."""
    words = server_word.words(2, [repeat(0.01, 2, 200, 200, 200), repeat(0.02, 2, 100, 100, 100)], {})

    [word] = words
    assert (word.source, word.count) == (Source.LOG, 6)
    assert word.difference == pytest.approx(0.0, abs=1e-9)


def test_a_pace_that_differs_from_the_lines_is_a_difference() -> None:
    words = server_word.words(1, [repeat(0.0104, 1, 100, 100, 100)], {})

    assert words[0].difference == pytest.approx(0.04)


def test_ours_is_taken_between_the_tokens_that_the_lines_name() -> None:
    """The last 70 tokens come at half the pace, after the last line: they are no part of what is compared."""
    points = [(0.01 * count if count <= 130 else 1.3 + 0.02 * (count - 130), count) for count in range(1, 201)]
    stream = TokenStream(points, "length", 10)
    one = server_word.Repeat(timed([stream]), [stream], busy_log(1, 100.0, 100.0, tokens=50))

    assert one.timing.time_per_output_token > 0.013
    assert server_word.words(1, [one, one], {})[0].difference == pytest.approx(0.0, abs=1e-9)


def test_step_times_are_aligned_with_the_lines() -> None:
    """The first entry holds the pause, as the first line does."""
    words = server_word.words(1, [repeat(0.01, 1, 100, 100, 100, steps=[0.7, 0.01, 0.01, 0.01])], {})

    assert [(word.source, round(word.difference, 9)) for word in words] == [(Source.LOG, 0.0), (Source.STEP_TIME, 0.0)]


def test_step_times_without_a_log_leave_out_the_first() -> None:
    streams = [evenly(200, 0.01, first=0.1)]
    one = server_word.Repeat(timed(streams), streams, steps=[0.7, 0.01, 0.01, 0.01])

    [word] = server_word.words(1, [one], {})
    assert (word.source, word.count, round(word.difference, 9)) == (Source.STEP_TIME, 3, 0.0)


def test_speculation_makes_a_step_several_tokens() -> None:
    streams = [evenly(200, 0.005, first=0.1, chunk=2)]
    line = DECODE.replace("cuda graph", "accept len: 2.00, cuda graph")
    lines = [line.format(1, 20 + index * 80, True, value) for index, value in enumerate((1.5, 200, 200))]
    one = server_word.Repeat(timed(streams), streams, log(*lines), [0.9, 0.01, 0.01])

    by_source = {word.source: word.difference for word in server_word.words(1, [one, one], {})}
    assert by_source == {Source.LOG: pytest.approx(0.0, abs=1e-9), Source.STEP_TIME: pytest.approx(0.0, abs=1e-9)}


def test_meta_info_and_metrics_speak_at_batch_1() -> None:
    meta = {"response_sent_to_client_ts": 100.0, "request_finished_ts": 101.99}
    streams = [evenly(200, 0.01, first=0.1, meta=meta)]
    grown = {"inter_token_latency_seconds_sum": 1.99, "inter_token_latency_seconds_count": 199.0}

    words = server_word.words(1, [server_word.Repeat(timed(streams), streams)], grown)

    assert [(word.source, round(word.difference, 9)) for word in words] == [(Source.META_INFO, 0.0), (Source.METRICS, 0.0)]


def test_several_data_parallel_ranks_tell_no_whole() -> None:
    lines = [DECODE.format(1, 20 + index * 40, True, 100).replace("] D", f" DP{index % 2} TP0] D") for index in range(6)]
    streams = [evenly(200, 0.01, first=0.1)]

    assert log(*lines).ranks == 2
    assert server_word.words(1, [server_word.Repeat(timed(streams), streams, log(*lines))], {}) == []


def test_counters_of_a_metrics_answer() -> None:
    text = 'sglang:num_requests_total{model_name="m"} 3.0\nsglang:num_running_reqs{model_name="m"} 7.0\nsglang:x_bucket{le="1"} 9.0\n'

    assert server_word.counters(text) == {"num_requests_total": 3.0}
    assert server_word.growth({"num_requests_total": 1.0}, server_word.counters(text)) == {"num_requests_total": 2.0}


def reasons(found: list[tuple[str, str]]) -> list[str]:
    return [reason for reason, _ in found]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (evenly(9, 0.01, first=0.1), Reason.SHORT),
        (TokenStream([(0.1, 1), (0.2, 10)], "stop", 10), Reason.SHORT),
        (TokenStream([(0.1, 1), (0.2, 10)], "abort", 10), Reason.ABORTED),
        (evenly(10, 0.01, first=0.1, cached_tokens=200), Reason.CACHED),
        (evenly(10, 0.01, first=0.1, retractions=1), Reason.RETRACTED),
    ],
)
def test_streams_that_speak_against_a_result(stream: TokenStream, reason: str) -> None:
    assert reasons(measure_validity.against_streams([evenly(10, 0.01, first=0.1), stream], 10)) == [reason]


def test_good_streams() -> None:
    assert measure_validity.against_streams([evenly(10, 0.01, first=0.1, cached_tokens=3)], 10) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([PREFILL.format(18, 2), DECODE.format(2, 30, True, 100)], []),
        ([PREFILL.format(18, 2), PREFILL.format(1, 0)], [Reason.OTHERS]),
        ([PREFILL.format(20, 0), DECODE.format(3, 30, True, 100)], [Reason.OTHERS]),
        ([PREFILL.format(2, 18 * 2)], [Reason.OTHERS, Reason.CACHED]),
        ([DECODE.format(2, 30, False, 100)], [Reason.NO_GRAPH]),
        (["[2026-11-29 12:00:00] KV cache pool is full. Retract requests. #retracted_reqs: 1"], [Reason.RETRACTED]),
    ],
)
def test_what_the_log_says_against_a_result(lines: list[str], expected: list[str]) -> None:
    assert reasons(measure_validity.against_log(log(*lines), 2, [10, 10], 1, graphs=True)) == expected


def test_whole_pages_are_no_requests_of_others() -> None:
    assert measure_validity.against_log(log(PREFILL.format(128, 0)), 2, [10, 10], 64, graphs=True) == []


def test_graphs_that_are_turned_off_are_not_missed() -> None:
    assert measure_validity.against_log(log(DECODE.format(1, 30, False, 100)), 1, [10], 1, graphs=False) == []


def test_what_the_counters_say() -> None:
    assert measure_validity.against_metrics({"num_requests_total": 6.0, "prompt_tokens_total": 60.0}, 6, 60) == []
    assert reasons(measure_validity.against_metrics({"num_requests_total": 7.0}, 6, 60)) == [Reason.OTHERS]
    assert reasons(measure_validity.against_metrics({"num_aborted_requests_total": 1.0}, 6, 60)) == [Reason.ABORTED]


def test_heat_and_a_narrow_link_speak_against_it_and_a_power_cap_does_not() -> None:
    capped = GpuSeries(0, "GPU-0", "B200", 5, reasons={"sw_power_cap": 5}, link_width=[16, 16, 16], most_link_width=16)
    hot = GpuSeries(1, "GPU-1", "B200", 5, reasons={"hw_thermal_slowdown": 2}, link_width=[8, 8, 8], most_link_width=16)

    assert measure_validity.against_gpus([capped]) == []
    assert [item.reason for item in measure_validity.against_gpus([capped, hot])] == [Reason.THROTTLED, Reason.LINK]


@pytest.mark.parametrize(
    ("known", "now", "speaks"),
    [
        (Known(1000, "launch a"), 990, False),
        (Known(1000, "launch a"), 800, True),
        (Known(1000, "launch a", ["--mem-fraction-static"]), 800, False),
        (Known(None, ""), 800, False),
        (Known(1000, "launch a"), None, False),
    ],
)
def test_less_room_than_the_baseline(known: Known, now: int | None, speaks: bool) -> None:
    found = measure_validity.against_capacity(known, now, 0.95)

    assert (found is not None) == speaks
    assert found is None or found.reason == Reason.CAPACITY
