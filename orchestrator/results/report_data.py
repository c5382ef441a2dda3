"""What a report is about, worked out from kept runs: timings by backend and batch size, changes with their course. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from orchestrator.agent.wire_measure import BatchTiming
from orchestrator.results.budget import Budgeted
from orchestrator.results.course import Course
from orchestrator.results.differing import Varying, varying
from orchestrator.results.kept_runs import KeptRun
from orchestrator.results.measurements import Measurement
from orchestrator.results.profile import Profiled

UNKNOWN_BACKEND = "unknown backend"


@dataclass(frozen=True)
class Timing:
    """A kept decode timing. `number` names it in the report, from 1, oldest first; `doubts` say why it is not to be believed."""

    number: int
    measurement: Measurement
    doubts: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        return self.measurement.report.covariates.backend or UNKNOWN_BACKEND


@dataclass(frozen=True)
class Mark:
    """One timing of one batch size, as the chart draws it: time per output token in seconds, with the interval that holds the median."""

    number: int
    median: float
    low: float
    high: float
    believed: bool


@dataclass(frozen=True)
class Bar:
    """A backend at a batch size. `median` is that of its timings' medians, of the believed ones unless there is none."""

    backend: str
    median: float
    believed: bool
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class BatchBars:
    """All backends at one batch size."""

    batch_size: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Change:
    """A relaunch, launch, rollback or teardown. `course` is None where nothing was heard of it."""

    run: KeptRun
    course: Course | None


@dataclass(frozen=True)
class AccountedRun:
    """A run that says where a decode step's time goes. `account` is None where it can't be understood any more; `problem` says why."""

    run: KeptRun
    account: Budgeted | Profiled | None
    problem: str = ""


@dataclass(frozen=True)
class ServiceReport:
    """Everything that is told of one service in one place; `changes` and `accounts` are newest first."""

    service: str
    place: str
    timings: tuple[Timing, ...]
    changes: tuple[Change, ...]
    accounts: tuple[AccountedRun, ...] = ()

    @property
    def backends(self) -> list[str]:
        """In the order in which they were first timed: each has its colour by it."""
        return list(dict.fromkeys(timing.backend for timing in self.timings))

    @property
    def differing(self) -> list[Varying]:
        """What the timings differ in besides their figures."""
        return varying([[timing.measurement] for timing in self.timings])


@dataclass(frozen=True)
class Report:
    """A whole report. `made` is Unix time, `unreadable` names runs that could not be read, with why."""

    services: tuple[ServiceReport, ...]
    made: float
    version: str
    unreadable: tuple[tuple[str, str], ...] = ()


def batch_bars(report: ServiceReport) -> list[BatchBars]:
    """What the decode chart draws, by batch size; backends that were not timed at one are left out there."""
    timed = sorted({batch.batch_size for timing in report.timings for batch in timing.measurement.report.batches})
    bars = [BatchBars(size, tuple(_bars(report, size))) for size in timed]
    return [item for item in bars if item.bars]


def _bars(report: ServiceReport, size: int) -> list[Bar]:
    found = []
    for backend in report.backends:
        marks = [mark for timing in report.timings if timing.backend == backend for mark in _marks(timing, size)]
        believed = [mark for mark in marks if mark.believed]
        if marks:
            middle = statistics.median(mark.median for mark in believed or marks)
            found.append(Bar(backend, middle, bool(believed), tuple(marks)))
    return found


def _marks(timing: Timing, size: int) -> list[Mark]:
    return [_mark(timing, batch) for batch in timing.measurement.report.batches if batch.batch_size == size and batch.time_per_output_token]


def _mark(timing: Timing, batch: BatchTiming) -> Mark:
    interval = batch.time_per_output_token
    assert interval is not None
    return Mark(timing.number, interval.median, interval.low, interval.high, believed(timing, batch))


def believed(timing: Timing, batch: BatchTiming) -> bool:
    """Whether nothing speaks against a timing's batch size; what holds for the whole timing speaks against each."""
    return not any(item.batch_size in (None, batch.batch_size) for item in timing.measurement.report.invalid)
