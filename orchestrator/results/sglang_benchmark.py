"""Decode timings in the words of SGLang's own benchmark, for whoever has tools for its files. Pure.

A line is one case, as ``python -m sglang.bench_one_batch_server --result-filename`` appends it: the names, their order and the
digits are those of ``BenchOneCaseResult.dump_to_jsonl`` in sglang/benchmark/one_batch_server.py, and what each means is from
``run_one_case`` there (SGLang 0.5.23). Each of our repeats is one of its cases.
"""

from __future__ import annotations

from typing import Any

from orchestrator.agent.wire_measure import BatchTiming, MeasureReport, RepeatTiming
from orchestrator.results.measurements import Measurement

_UNKNOWN = -1
"""What the benchmark itself writes where a server does not tell."""


def cases(item: Measurement) -> list[dict[str, Any]]:
    """Every repeat of a timing, in the order of its batch sizes. `run_name` is the run folder's name."""
    return [_case(item, batch, repeat) for batch in item.report.batches for repeat in batch.repeats]


def _case(item: Measurement, batch: BatchTiming, repeat: RepeatTiming) -> dict[str, Any]:
    last_first_token = max(repeat.time_to_first_token, default=0.0)
    return {
        "run_name": item.label,
        "batch_size": batch.batch_size,
        "input_len": item.report.input_tokens,
        "output_len": item.report.output_tokens,
        "latency": round(repeat.seconds, 4),
        "input_throughput": _rate(repeat.input_tokens, last_first_token),
        "output_throughput": _rate(repeat.output_tokens, repeat.seconds - last_first_token),
        "overall_throughput": _rate(repeat.input_tokens + repeat.output_tokens, repeat.seconds),
        "last_ttft": round(last_first_token, 4),
        "last_gen_throughput": _UNKNOWN,
        "acc_length": _UNKNOWN,
        "total_output_tokens": repeat.output_tokens,
        "num_early_stopped": _early_stopped(item.report, batch, repeat),
        "steady_state_output_throughput": round(repeat.tokens_per_second, 2),
        "steady_state_window_s": round(repeat.window, 4),
        "cache_hit_rate": None,
    }


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 2) if seconds > 0 else _UNKNOWN


def _early_stopped(report: MeasureReport, batch: BatchTiming, repeat: RepeatTiming) -> int | None:
    """None where tokens are missing: how many streams lack them was not kept."""
    return 0 if repeat.output_tokens >= batch.batch_size * report.output_tokens else None
