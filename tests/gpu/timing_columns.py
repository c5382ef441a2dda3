"""Decode timings by the program beside those of SGLang's own benchmark, on the same server in the same minutes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TimingRow:
    """One batch size: milliseconds per output token of one stream.

    `ours` are the medians of each of our runs, `theirs` those of ``sglang.bench_one_batch_server``.
    """

    batch: int
    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def ratio(self) -> float | None:
        """Ours over theirs, of the medians; None where one of the two is missing."""
        return statistics.median(self.ours) / statistics.median(self.theirs) if self.ours and self.theirs else None


def ours(reports: Iterable[Mapping[str, Any]]) -> dict[int, list[float]]:
    """Batch size -> milliseconds per output token, one a report of ``measure``; what could not be timed is left out."""
    found: dict[int, list[float]] = {}
    for report in reports:
        for batch in report["batches"]:
            interval = batch["time_per_output_token"]
            if interval is not None:
                found.setdefault(batch["batch_size"], []).append(interval["median"] * 1000.0)
    return found


def theirs(text: str) -> dict[int, list[float]]:
    """Batch size -> milliseconds per output token, by the lines that ``bench_one_batch_server`` appends to its ``--result-filename``.

    It tells ``output_throughput``: the tokens of all streams over the time from the last first token to the end (SGLang 0.5.17 and 0.5.23,
    ``run_one_case``).
    """
    found: dict[int, list[float]] = {}
    for line in filter(str.strip, text.splitlines()):
        case = json.loads(line)
        if case["output_throughput"] > 0:
            found.setdefault(case["batch_size"], []).append(case["batch_size"] / case["output_throughput"] * 1000.0)
    return found


def rows(measured: Mapping[int, Sequence[float]], benchmarked: Mapping[int, Sequence[float]]) -> list[TimingRow]:
    """Both sides by batch size, in rising order."""
    return [TimingRow(size, measured.get(size, ()), benchmarked.get(size, ())) for size in sorted({*measured, *benchmarked})]


def markdown(timings: Sequence[TimingRow]) -> list[str]:
    """The two columns and their ratio."""
    lines = ["| batch | ours, ms per token | bench_one_batch_server, ms per token | ours / theirs |", "|---|---|---|---|"]
    lines += [f"| {row.batch} | {_told(row.ours)} | {_told(row.theirs)} | {_ratio(row.ratio)} |" for row in timings]
    return lines


def _told(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values) or "-"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
