"""What a case is, what it came to, and how many of them are run on several boxes beside each other."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tests.faults.ending import Ending
from tests.faults.lane import Lane


@dataclass(frozen=True)
class Case:
    """One case. `run` does it on a box, and its ending must be one of `states`, for one of `categories` where these are named.

    `exit_code` is the operator's, where it is not the one that goes with the state.
    """

    section: str
    name: str
    run: Callable[[Lane], Ending]
    states: Sequence[str]
    categories: Sequence[str] = ()
    exit_code: int | None = None
    how: str = ""
    lane: str = ""
    """Only on the box of this name; empty: on any."""
    real: bool = False
    """With the real SGLang."""


@dataclass(frozen=True)
class Row:
    """A case and what it came to."""

    case: Case
    ending: Ending
    seconds: float
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems


def carry_out(lane: Lane, case: Case) -> Row:
    """Run one case and judge it; a box with a problem is swept clean for the next one."""
    began = time.monotonic()
    ending = Ending()
    problems: list[str] = []
    try:
        ending = case.run(lane)
        problems = [*ending.problems, *_unexpected(case, ending)]
    except Exception:  # noqa: BLE001 - one case that breaks is told, and the others go on
        problems = [traceback.format_exc(limit=-4)]
    if problems:
        _sweep(lane, problems)
    return Row(case, ending, time.monotonic() - began, problems)


def _unexpected(case: Case, ending: Ending) -> list[str]:
    problems = []
    if ending.state not in case.states:
        problems.append(f"it ended as {ending.state}, not as {' or '.join(case.states)}")
    if case.categories and ending.category not in case.categories:
        problems.append(f"the class is {ending.category or 'none'}, not {' or '.join(case.categories)}")
    if case.exit_code is not None and ending.exit_code != case.exit_code:
        problems.append(f"the exit code is {ending.exit_code}, not {case.exit_code}")
    return problems


def _sweep(lane: Lane, problems: list[str]) -> None:
    try:
        lane.clear()
        if lane.missing_bystanders():
            lane.repopulate()
    except Exception:  # noqa: BLE001 - the case has its problem already
        problems.append(f"and the box could not be swept: {traceback.format_exc(limit=-3)}")


class Campaign:
    """Boxes that take cases from one queue until there are none."""

    def __init__(self, lanes: Sequence[Lane], told: Callable[[Row], None] = lambda row: None) -> None:
        self._lanes = lanes
        self._told = told
        self._queues: dict[str, queue.SimpleQueue[tuple[Case, Future[Row]] | None]] = {
            name: queue.SimpleQueue() for name in ("", *_names(lanes))
        }
        self._threads: list[threading.Thread] = []

    def submit(self, cases: Iterable[Case]) -> list[Future[Row]]:
        """Queue cases; each one's row comes with its future."""
        futures = []
        for case in cases:
            future: Future[Row] = Future()
            self._queues[case.lane].put((case, future))
            futures.append(future)
        return futures

    def start(self) -> None:
        for lane in self._lanes:
            thread = threading.Thread(target=self._work, args=(lane,), name=lane.name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Wait until every box has found its queue empty."""
        for thread in self._threads:
            thread.join()

    def _work(self, lane: Lane) -> None:
        while True:
            taken = self._take(lane)
            if taken is None:
                return
            case, future = taken
            row = carry_out(lane, case)
            self._told(row)
            future.set_result(row)

    def _take(self, lane: Lane) -> tuple[Case, Future[Row]] | None:
        names = (lane.name,) if lane.real else (lane.name, "")
        for name in names:
            try:
                return self._queues[name].get_nowait()
            except queue.Empty:
                continue
        return None


def _names(lanes: Sequence[Lane]) -> list[str]:
    return [lane.name for lane in lanes]
