"""Timings in the words of SGLang's own benchmark: the names are the source's own, and the figures belong together."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.wire_measure import BatchTiming
from orchestrator.results.measurements import Measurement
from orchestrator.results.sglang_benchmark import cases
from tests.rig.sglang import find_environment
from tests.unit.results.kept_samples import LAB_RUNS, MEASURED
from tests.unit.results.test_comparison import asked, measurement, repeat

NAMES = [
    "run_name",
    "batch_size",
    "input_len",
    "output_len",
    "latency",
    "input_throughput",
    "output_throughput",
    "overall_throughput",
    "last_ttft",
    "last_gen_throughput",
    "acc_length",
    "total_output_tokens",
    "num_early_stopped",
    "steady_state_output_throughput",
    "steady_state_window_s",
    "cache_hit_rate",
]
"""SGLang 0.5.23, benchmark/one_batch_server.py, BenchOneCaseResult.dump_to_jsonl, in its order."""


def of_one(**changes: object) -> Measurement:
    values = {"time_to_first_token": [0.4, 0.5], "seconds": 3.0, "input_tokens": 500, "output_tokens": 512, "window": 2.4, **changes}
    item = dataclasses.replace(repeat(0.01), tokens_per_second=199.987, **values)  # type: ignore[arg-type]
    return asked(measurement("one"), batches=[BatchTiming(2, [item])])


def test_a_case_has_the_names_in_their_order_and_figures_that_belong_together() -> None:
    [case] = cases(of_one())
    assert list(case) == NAMES
    assert case == {
        "run_name": "run-one-1000",
        "batch_size": 2,
        "input_len": 256,
        "output_len": 256,
        "latency": 3.0,
        "input_throughput": 1000.0,
        "output_throughput": 204.8,
        "overall_throughput": 337.33,
        "last_ttft": 0.5,
        "last_gen_throughput": -1,
        "acc_length": -1,
        "total_output_tokens": 512,
        "num_early_stopped": 0,
        "steady_state_output_throughput": 199.99,
        "steady_state_window_s": 2.4,
        "cache_hit_rate": None,
    }


def test_missing_tokens_are_not_called_early_stops() -> None:
    [case] = cases(of_one(output_tokens=500))
    assert (case["total_output_tokens"], case["num_early_stopped"]) == (500, None)


def test_a_stream_without_a_first_token_makes_no_division_by_zero() -> None:
    [case] = cases(of_one(time_to_first_token=[], seconds=0.0))
    assert (case["input_throughput"], case["output_throughput"], case["overall_throughput"]) == (-1, -1, -1)


def test_each_repeat_of_a_real_timing_is_a_case() -> None:
    from orchestrator.results.measurements import load

    item = load(LAB_RUNS / MEASURED)
    found = cases(item)
    assert [case["batch_size"] for case in found] == [1] * 6 + [4] * 6 + [16] * 6
    for case in found:
        decode = (case["latency"] - case["last_ttft"]) / (case["output_len"] - 1)
        assert case["steady_state_output_throughput"] == pytest.approx(case["batch_size"] / decode, rel=0.1)


def test_the_names_are_those_of_the_real_sglang() -> None:
    environment = find_environment()
    if environment is None:
        pytest.skip("no SGLang environment: make sglang-cpu")
    [source] = Path(environment.python).parents[1].glob("lib/python3*/site-packages/sglang/benchmark/one_batch_server.py")
    assert list(_written_names(source)) == NAMES


def _written_names(source: Path) -> Iterator[str]:
    """The keys of the dictionary in BenchOneCaseResult.dump_to_jsonl."""
    kind = next(node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef) and node.name == "BenchOneCaseResult")
    written = next(node for node in ast.walk(kind) if isinstance(node, ast.Dict))
    yield from (key.value for key in written.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
