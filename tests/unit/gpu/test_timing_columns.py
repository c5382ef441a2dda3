"""Our timings beside those of SGLang's own benchmark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gpu.timing_columns import markdown, ours, rows, theirs


def report(**medians: float | None) -> dict[str, Any]:
    """A report of `measure` with these medians in seconds, by batch size (``b4=0.002``)."""
    return {
        "batches": [
            {"batch_size": int(name[1:]), "time_per_output_token": None if median is None else {"median": median}}
            for name, median in medians.items()
        ]
    }


def case(batch: int, output_throughput: float) -> str:
    return json.dumps({"batch_size": batch, "output_throughput": output_throughput}) + "\n"


def test_ours_are_milliseconds_of_each_run_without_what_was_not_timed() -> None:
    assert ours([report(b1=0.002, b4=None), report(b1=0.0022, b4=0.003)]) == {1: [2.0, 2.2], 4: [3.0]}


def test_theirs_is_the_time_of_one_stream() -> None:
    assert theirs(case(1, 500.0) + "\n" + case(4, 1600.0)) == {1: [2.0], 4: [2.5]}


def test_a_case_without_a_speed_is_left_out() -> None:
    assert theirs(case(1, -1.0)) == {}


def test_the_ratio_is_that_of_medians_and_missing_sides_are_told() -> None:
    timings = rows({1: [2.0, 2.2], 16: [4.0]}, {1: [2.0], 64: [8.0]})
    assert [row.ratio for row in timings] == [pytest.approx(1.05), None, None]
    assert markdown(timings)[2:] == [
        "| 1 | 2.000, 2.200 | 2.000 | 1.050 |",
        "| 16 | 4.000 | - | - |",
        "| 64 | - | 8.000 | - |",
    ]
