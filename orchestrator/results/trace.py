"""A decode step in a trace of PyTorch's profiler: which kernels ran, what they are for, and when none did. Pure, but for reading the file.

Kineto writes Chrome's trace format: kernels, copies and fills of a GPU as complete events (``ph`` is X) with a ``stream`` in their
``args``, and the host's calls that launched them under the same ``correlation``. SGLang 0.5.23 marks each forward on the host
(``step[DECODE bs=4]``, utils/profile_utils.py): the first kernel that a mark has launched begins the step on the GPU, and what runs until
the next one's belongs to it, sampling and all. Older versions have no marks: there each CUDA graph that is launched is a step.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator.results.kernel_classes import COPIES, kernel_class

_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_OPERATOR = "cpu_op"
_DECODE = re.compile(r"step\[(?:DECODE|VERIFY) bs=(\d+)")
_ANY_STEP = re.compile(r"step\[")
_MICROSECOND = 1e-6
_ROUNDING = 1e-7
"""Seconds: the trace's own digits."""


class TraceError(ValueError):
    """Not a trace, or one without a decode step; the message says which."""


@dataclass(frozen=True)
class Work:
    """A kernel, a copy or, on a CPU, an operator. Seconds since the trace's own zero.

    `own` is its time without that of the operators that it calls; of a kernel all of it.
    """

    name: str
    kind: str
    begin: float
    end: float
    own: float


@dataclass(frozen=True)
class TracedStep:
    """One decode step from its first kernel to the next step's first."""

    begin: float
    end: float
    batch_size: int | None
    work: tuple[Work, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def busy(self) -> float:
        """When anything ran: the union over all streams."""
        return union_length((max(item.begin, self.begin), min(item.end, self.end)) for item in self.work)

    @property
    def gaps(self) -> float:
        return self.seconds - self.busy

    @property
    def overlap(self) -> float:
        """What ran beside something else, or into the next step: it is in the classes' times once more than in :attr:`busy`."""
        found = sum(item.own for item in self.work) - self.busy
        return found if found > _ROUNDING else 0.0

    def by_class(self) -> dict[str, list[Work]]:
        found: dict[str, list[Work]] = {}
        for item in self.work:
            found.setdefault(item.kind, []).append(item)
        return found


@dataclass(frozen=True)
class Trace:
    """One rank's. `on_gpu` is False where only a CPU's operators are in it. `told_by` says by what the steps are told apart."""

    label: str
    on_gpu: bool
    steps: tuple[TracedStep, ...]
    told_by: str

    @property
    def middle(self) -> TracedStep:
        """The step of median length: its parts make up its whole, which medians of parts would not."""
        return sorted(self.steps, key=lambda step: step.seconds)[(len(self.steps) - 1) // 2]

    @property
    def median_seconds(self) -> float:
        return statistics.median(step.seconds for step in self.steps)


def read_trace(path: Path, label: str | None = None) -> Trace:
    """Read a file as the profiler has written it, compressed or not.

    Raises:
        TraceError: it can't be read, or holds no whole decode step.
    """
    try:
        content = path.read_bytes()
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TraceError(f"{path.name} can't be read as a trace: {error}") from error
    return trace_of(data, label or path.name)


def trace_of(data: Any, label: str) -> Trace:
    """The decode steps of a trace.

    Raises:
        TraceError: it is none, or has no whole decode step.
    """
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise TraceError(f"{label} holds no traceEvents")
    whole = [event for event in events if isinstance(event, dict) and event.get("ph") == "X" and _is_number(event.get("dur"))]
    on_gpu = any(event.get("cat") in _GPU for event in whole)
    work = _gpu_work(whole) if on_gpu else _cpu_work(whole)
    if not work:
        raise TraceError(f"{label} holds neither kernels nor operators")
    begins, told_by = _gpu_begins(whole) if on_gpu else (_marks(whole), "SGLang's marks")
    steps = _steps(begins, work)
    if not steps:
        raise TraceError(f"{label} holds no whole decode step: {len(begins)} began in it")
    return Trace(label, on_gpu, tuple(steps), told_by)


@dataclass(frozen=True)
class _Begin:
    """Where a forward begins. `decode` is False for any other kind: it ends the step before and is none itself."""

    moment: float
    batch_size: int | None
    decode: bool = True


def _marks(events: Sequence[Mapping[str, Any]]) -> list[_Begin]:
    """SGLang's own marks, on the host's clock."""
    return [_begin(event, event["ts"]) for event in _marked(events)]


def _marked(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found = [event for event in events if event.get("cat") == "user_annotation" and _ANY_STEP.match(str(event.get("name")))]
    return sorted(found, key=lambda event: float(event["ts"]))


def _begin(event: Mapping[str, Any], moment: float) -> _Begin:
    match = _DECODE.match(str(event["name"]))
    return _Begin(moment * _MICROSECOND, int(match.group(1)) if match else None, match is not None)


def _gpu_begins(events: Sequence[Mapping[str, Any]]) -> tuple[list[_Begin], str]:
    """The first kernel that each forward has launched."""
    first: dict[Any, float] = {}
    for event in events:
        if event.get("cat") in _GPU:
            correlation = _correlation(event)
            first[correlation] = min(first.get(correlation, float("inf")), float(event["ts"]))
    launches = sorted(
        (event for event in events if event.get("cat") in _LAUNCHES and _correlation(event) in first), key=lambda event: float(event["ts"])
    )
    marks = _marked(events)
    if marks:
        return _launched_within(marks, launches, first), "SGLang's marks"
    graphs = [event for event in launches if "GraphLaunch" in str(event.get("name"))]
    return [_Begin(first[_correlation(event)] * _MICROSECOND, None) for event in graphs], "launches of CUDA graphs"


def _launched_within(marks: Sequence[Mapping[str, Any]], launches: Sequence[Mapping[str, Any]], first: Mapping[Any, float]) -> list[_Begin]:
    begins = []
    for mark in marks:
        end = mark["ts"] + mark["dur"]
        inside = [event for event in launches if mark["ts"] <= event["ts"] <= end and event.get("tid") == mark.get("tid")]
        if inside:
            begins.append(_begin(mark, min(first[_correlation(event)] for event in inside)))
    return begins


def _correlation(event: Mapping[str, Any]) -> Any:
    arguments = event.get("args")
    return arguments.get("correlation") if isinstance(arguments, dict) else None


def _steps(begins: Iterable[_Begin], work: Sequence[Work]) -> list[TracedStep]:
    """From one beginning to the next; the last has no end in the trace."""
    ordered = sorted(begins, key=lambda item: item.moment)
    moments = [item.begin for item in work]
    steps = []
    for one, other in pairwise(ordered):
        if one.decode and other.moment > one.moment:
            inside = tuple(
                work[bisect_right(moments, one.moment - _MICROSECOND / 2) : bisect_right(moments, other.moment - _MICROSECOND / 2)]
            )
            steps.append(TracedStep(one.moment, other.moment, one.batch_size, inside))
    return [step for step in steps if step.work]


def _gpu_work(events: Sequence[Mapping[str, Any]]) -> list[Work]:
    found = [
        _work(event, COPIES if event["cat"] != "kernel" else kernel_class(str(event["name"])), float(event["dur"]))
        for event in events
        if event.get("cat") in _GPU
    ]
    return sorted(found, key=lambda item: item.begin)


def _cpu_work(events: Sequence[Mapping[str, Any]]) -> list[Work]:
    """Operators of the thread that has most of them, each without those that it calls."""
    by_thread: dict[Any, list[Mapping[str, Any]]] = {}
    for event in events:
        if event.get("cat") == _OPERATOR:
            by_thread.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    if not by_thread:
        return []
    found: list[Work] = []
    open_calls: list[list[Any]] = []  # the event, and the time of what it calls
    busiest = max(by_thread.values(), key=len)
    for event in sorted(busiest, key=lambda event: (float(event["ts"]), -float(event["dur"]))):
        while open_calls and open_calls[-1][0]["ts"] + open_calls[-1][0]["dur"] <= event["ts"]:
            found.append(_closed(open_calls.pop()))
        if open_calls:
            open_calls[-1][1] += event["dur"]
        open_calls.append([event, 0.0])
    found += [_closed(call) for call in open_calls]
    return sorted(found, key=lambda item: item.begin)


def _closed(call: Sequence[Any]) -> Work:
    event, called = call
    return _work(event, kernel_class(str(event["name"])), max(0.0, event["dur"] - called))


def _work(event: Mapping[str, Any], kind: str, own: float) -> Work:
    begin = float(event["ts"])
    return Work(str(event["name"]), kind, begin * _MICROSECOND, (begin + float(event["dur"])) * _MICROSECOND, own * _MICROSECOND)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of the spans lasts."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total
