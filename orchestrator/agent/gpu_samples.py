"""GPUs while something runs: one nvidia-smi that repeats itself in a child, read when it is over.

It writes into memory, so that nothing of ours has to run meanwhile. Fields are those of driver 580; one that a driver doesn't know is
left out.
"""

import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Type

from orchestrator.agent.command import run_bounded
from orchestrator.agent.smi_state import Ask, ask_known
from orchestrator.agent.wire_measure import GpuSample, GpuSeries

EVERY_MS = 1000
"""Milliseconds between two looks: a query takes the driver some milliseconds for each GPU."""
_SECONDS = 20.0
_END_SECONDS = 2.0

_FIRST = ("timestamp", "index", "uuid", "name")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same mask of bits, by its name since driver 535 and before."""
_OPTIONAL = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "power.limit",
    "clocks.max.sm",
    *_REASONS,
)

REASONS: Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""nvmlClocksEventReasons of nvml.h."""

THROTTLED = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
"""What holds clocks down for heat or the hardware's protection. A power cap is somebody's setting, and is told."""


@dataclass(frozen=True)
class Row:
    """One GPU at one moment, with what doesn't change."""

    sample: GpuSample
    uuid: str
    name: str
    values: Mapping[str, float]


class GpuSampler:
    """Samples all GPUs from entry to exit. `problem` says why there is nothing."""

    def __init__(self, ask: Ask = run_bounded) -> None:
        self._ask = ask
        self._child: "Optional[subprocess.Popen[bytes]]" = None
        self._memory: Optional[int] = None
        self._fields: List[str] = []
        self.problem: Optional[str] = None
        self.rows: List[Row] = []

    def __enter__(self) -> "GpuSampler":
        answer = ask_known(self._ask, _FIRST, _OPTIONAL, _SECONDS)
        self._fields = answer.known
        if not answer.output.good or not parse_rows(answer.output.text, self._fields):
            said = (answer.output.errors + "\n" + answer.output.text).strip().splitlines()
            self.problem = said[0] if said else "nvidia-smi shows no GPU"
            return self
        self._memory = os.memfd_create("gpu-samples", os.MFD_CLOEXEC)
        query = f"--query-gpu={','.join((*_FIRST, *self._fields))}"
        try:
            self._child = _start(["nvidia-smi", query, "--format=csv,noheader,nounits", f"--loop-ms={EVERY_MS}"], self._memory)
        except OSError as error:
            self.problem = f"nvidia-smi: {error.strerror}"
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()  # and left behind if a driver that hangs keeps it: a reader of memory waits for nobody
        if self._memory is not None:
            size = os.fstat(self._memory).st_size
            self.rows = parse_rows(os.pread(self._memory, size, 0).decode("utf-8", "replace"), self._fields)
            os.close(self._memory)
            self._memory = None


def _start(argv: Sequence[str], output: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)


def parse_rows(text: str, fields: Sequence[str]) -> List[Row]:
    """Parse what the loop printed of :data:`_FIRST` and `fields`; lines that are no rows are left out."""
    return [row for row in (_row(line, fields) for line in text.splitlines()) if row is not None]


def _row(line: str, fields: Sequence[str]) -> Optional[Row]:
    cells = [cell.strip() for cell in line.split(",")]
    moment = _moment(cells[0])
    if len(cells) != len(_FIRST) + len(fields) or moment is None or not cells[1].isdigit():
        return None
    named = dict(zip(fields, cells[len(_FIRST) :]))  # noqa: B905 - equal lengths
    values = {name: number for name, number in ((name, _number(cell)) for name, cell in named.items()) if number is not None}
    sample = GpuSample(
        moment=moment,
        index=int(cells[1]),
        sm_clock=values.get("clocks.sm"),
        memory_clock=values.get("clocks.mem"),
        power=values.get("power.draw"),
        temperature=values.get("temperature.gpu"),
        reasons=_reasons([named[name] for name in _REASONS if name in named]),
        link_generation=_whole(values.get("pcie.link.gen.current")),
        link_width=_whole(values.get("pcie.link.width.current")),
        utilization=values.get("utilization.gpu"),
    )
    return Row(sample, cells[2], cells[3], values)


def _moment(text: str) -> Optional[float]:
    """Unix time of ``2026/11/29 12:18:55.123``, which is local time."""
    whole, _, part = text.partition(".")
    try:
        return time.mktime(time.strptime(whole, "%Y/%m/%d %H:%M:%S")) + (float(f"0.{part}") if part else 0.0)
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(value: Optional[float]) -> Optional[int]:
    return None if value is None else int(value)


def _reasons(masks: Sequence[str]) -> List[str]:
    for mask in masks:
        try:
            bits = int(mask, 16)
        except ValueError:
            continue
        return [name for bit, name in REASONS.items() if bits & bit]
    return []


def during(rows: Sequence[Row], windows: Sequence[Tuple[float, float]]) -> List[Row]:
    """The rows within any of the windows (Unix time); all of them where a run was so short that none is."""
    inside = [row for row in rows if any(begin <= row.sample.moment <= end for begin, end in windows)]
    return inside or list(rows)


def series(rows: Sequence[Row], uuids: Optional[Sequence[str]] = None) -> List[GpuSeries]:
    """What was sampled, by GPU. `uuids`: only these."""
    by_gpu: Dict[int, List[Row]] = {}
    for row in rows:
        if uuids is None or row.uuid in uuids:
            by_gpu.setdefault(row.sample.index, []).append(row)
    return [_series(index, found) for index, found in sorted(by_gpu.items())]


def _series(index: int, rows: Sequence[Row]) -> GpuSeries:
    reasons: Dict[str, int] = {}
    for row in rows:
        for reason in row.sample.reasons:
            reasons[reason] = reasons.get(reason, 0) + 1
    last = rows[-1]
    return GpuSeries(
        index=index,
        uuid=last.uuid,
        name=last.name,
        samples=len(rows),
        sm_clock=_three(rows, "clocks.sm"),
        memory_clock=_three(rows, "clocks.mem"),
        power=_three(rows, "power.draw"),
        temperature=_three(rows, "temperature.gpu"),
        reasons=reasons,
        link_generation=_three(rows, "pcie.link.gen.current"),
        link_width=_three(rows, "pcie.link.width.current"),
        most_link_generation=_whole(last.values.get("pcie.link.gen.max")),
        most_link_width=_whole(last.values.get("pcie.link.width.max")),
        power_limit=last.values.get("power.limit"),
        most_sm_clock=last.values.get("clocks.max.sm"),
    )


def _three(rows: Sequence[Row], name: str) -> Optional[List[float]]:
    values = [row.values[name] for row in rows if name in row.values]
    return [min(values), statistics.median(values), max(values)] if values else None
