"""Doing one thing for many at the same time, so that one that hangs keeps nobody else waiting, and Ctrl-C waits for none."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.errors import InterruptedByOperatorError, OrchestratorError
from orchestrator.remote.waiting import LONGEST_DEAF

T = TypeVar("T")

_PER_CORE, _MOST = 16, 64


def default_bound() -> int:
    """How many are asked at the same time where nobody says: 16 for each core that this process may use, 64 at most.

    An answer costs the operator's machine a hundredth of a second and takes a host several tenths, so most of them only wait.
    """
    return min(_MOST, _PER_CORE * len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Overdue(Generic[T]):
    """After how many `seconds` one of many is waited for no longer, and what is said of it then."""

    seconds: float
    answer: Callable[[int], T]


def side_by_side(
    count: int, work: Callable[[int], T], heard: Callable[[int, T], None], bound: int, overdue: Overdue[T] | None = None
) -> None:
    """Call `work`, which must raise nothing, for 0 to `count` - 1, at most `bound` at a time; `heard` is called here as each is done.

    One that is overdue is heard of as such, its place is given to the next, and what it may still say is dropped.

    What interrupts `heard` or the wait for it (KeyboardInterrupt) is raised at once, after what is done already was heard: nothing more is
    begun then, and what runs is left to itself, in threads that the end of the process does not wait for.
    """
    board = _Board(count, work)
    try:
        for _ in range(min(bound, count)):
            board.add_thread()
        for _ in range(count):
            heard(*board.next(overdue))
    except KeyboardInterrupt:
        board.abandon()
        for answered in board.finished():
            heard(*answered)
        raise
    finally:
        board.abandon()


class _Board(Generic[T]):
    """What waits, what is at work since when, and what is done."""

    def __init__(self, count: int, work: Callable[[int], T]) -> None:
        self._work = work
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
        self._begun: dict[int, float] = {}
        self._lock = threading.Lock()
        self._abandoned = threading.Event()
        for index in range(count):
            self._waiting.put(index)

    def add_thread(self) -> None:
        threading.Thread(target=self._serve, name="side-by-side", daemon=True).start()

    def abandon(self) -> None:
        """Begin nothing more."""
        self._abandoned.set()

    def next(self, overdue: Overdue[T] | None) -> tuple[int, T]:
        """Wait in short pieces, so that Ctrl-C is heard."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._finished.get(timeout=LONGEST_DEAF)
            late = None if overdue is None else self._give_up_on_one(overdue.seconds)
            if overdue is not None and late is not None:
                self.add_thread()
                return late, overdue.answer(late)

    def finished(self) -> list[tuple[int, T]]:
        """What was done and not heard of yet."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._finished.get_nowait())
        return found

    def _serve(self) -> None:
        while not self._abandoned.is_set():
            try:
                index = self._waiting.get_nowait()
            except queue.Empty:
                return
            with self._lock:
                self._begun[index] = time.monotonic()
            answer = self._work(index)
            with self._lock:
                if self._begun.pop(index, None) is None:
                    return  # given up: another thread serves in this one's place
                self._finished.put((index, answer))

    def _give_up_on_one(self, seconds: float) -> int | None:
        before = time.monotonic() - seconds
        with self._lock:
            late = next((index for index, begun in self._begun.items() if begun < before), None)
            if late is not None:
                del self._begun[late]
        return late


class Gate:
    """Lets requests out until it is closed, and knows whose went out."""

    def __init__(self) -> None:
        self._closed = False
        self._entered: set[int] = set()
        self._lock = threading.Lock()

    def enter(self, index: int) -> None:
        """Raises InterruptedByOperatorError when it is closed."""
        with self._lock:
            if self._closed:
                raise InterruptedByOperatorError("interrupted before it was asked")
            self._entered.add(index)

    def close(self) -> set[int]:
        """Those that went out before; none goes out from now on."""
        with self._lock:
            self._closed = True
            return set(self._entered)


@dataclass(frozen=True)
class Endings(Generic[T]):
    """What is said of one of many whose work gave no answer.

    Attributes:
        failed: its work raised this.
        interrupted: Ctrl-C came first; whether it had been asked already.
    """

    failed: Callable[[int, BaseException], T]
    interrupted: Callable[[int, bool], T]


def all_of(
    count: int,
    work: Callable[[int, Callable[[], None]], T],
    endings: Endings[T],
    heard: Callable[[int, T], None],
    bound: int,
    overdue: Overdue[T] | None = None,
) -> list[T]:
    """The answers of 0 to `count` - 1 in that order, one for each whatever happens; `heard` gets each as it comes.

    `work` gets a function to call right before its request goes out: after Ctrl-C that raises, so that nothing more is begun anywhere.
    """
    gate = Gate()
    done: dict[int, T] = {}

    def guarded(index: int) -> T:
        try:
            return work(index, lambda: gate.enter(index))
        except BaseException as error:  # noqa: BLE001 - one's fault is its own answer: the others are not lost for it
            return endings.failed(index, error)

    def remember(index: int, answer: T) -> None:
        done[index] = answer
        heard(index, answer)

    try:
        side_by_side(count, guarded, remember, bound, overdue)
    except KeyboardInterrupt:
        asked = gate.close()
        for index in set(range(count)) - set(done):
            done[index] = endings.interrupted(index, index in asked)
    return [done[index] for index in range(count)]


def unforeseen(label: str, error: BaseException) -> OrchestratorError:
    """An error of no kind that is known, as one; the cause keeps its traceback."""
    known = OrchestratorError(f"{label}: failed in a way that was not foreseen: {type(error).__name__}: {error}")
    known.__cause__ = error
    return known
