"""Answers of the verbs that read run folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.agent.wire import OrderResult
from orchestrator.agent.wire_measure import MeasureReport
from orchestrator.cli.documents.timing import BudgetAccount, ProfileAccount
from orchestrator.results.course import Course
from orchestrator.results.history import Entry
from orchestrator.results.kept_runs import Ending, KeptError, RunRecord
from orchestrator.results.prep_record import PrepRecord


@dataclass(frozen=True)
class RunListed(Entry):
    """One run, with its folder. Names are the inventory's; `ended` is the final state with a failure's class, or a word."""

    path: str


@dataclass(frozen=True)
class Unreadable:
    """A folder that can't be read as a run."""

    name: str
    problem: str


@dataclass(frozen=True)
class History:
    """Runs in the folder `root`, the newest first. `remarks` are about the list as a whole."""

    root: str
    runs: list[RunListed]
    unreadable: list[Unreadable]
    remarks: list[str]


@dataclass(frozen=True)
class Shown:
    """All that was kept of a run; null for what it has not.

    Attributes:
        path: its folder.
        ending: how it ended.
        plan: as it was kept, by this version of the program or an earlier one.
        course: an order's states and phases on one time axis.
        kept_error: why its verb did not do what was asked.
        report: what it timed.
        prep: what became of each host of a prep.
        account: where a decode step's time goes, as `budget` or `profile` found it.
        problems: what could not be read.
        files: name -> bytes.
    """

    path: str
    record: RunRecord
    ending: Ending
    plan: dict[str, Any] | None
    course: Course | None
    result: OrderResult | None
    kept_error: KeptError | None
    report: MeasureReport | None
    prep: PrepRecord | None
    account: BudgetAccount | ProfileAccount | None
    problems: list[str]
    files: dict[str, int]


@dataclass(frozen=True)
class ReportWritten:
    """A page that was written to `path`: the runs that were read for it by their names, and how many of each it tells of."""

    path: str
    run_names: list[str]
    timings: int
    changes: int
    accounts: int


@dataclass(frozen=True)
class Exported:
    """Timings in the words of SGLang's own benchmark.

    Attributes:
        path: the file that was written; null where `rows` has them.
        count: how many lines there are.
        rows: each line as an object; null where there is a file.
    """

    path: str | None
    count: int
    rows: list[dict[str, Any]] | None
