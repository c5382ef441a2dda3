"""Doing one thing for many at the same time, so that one that hangs keeps nobody else waiting, and Ctrl-C waits for none."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from orchestrator.remote.waiting import LONGEST_DEAF

T = TypeVar("T")


def side_by_side(count: int, work: Callable[[int], T], heard: Callable[[int, T], None], bound: int) -> None:
    """Call `work`, which must raise nothing, for 0 to `count` - 1, at most `bound` at a time; `heard` is called here as each is done.

    What interrupts `heard` or the wait for it (KeyboardInterrupt) is raised at once: nothing more is begun then, and what runs
    is left to itself, in threads that the end of the process does not wait for.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    finished: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
    abandoned = threading.Event()

    def serve() -> None:
        while not abandoned.is_set():
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            finished.put((index, work(index)))

    for index in range(count):
        waiting.put(index)
    try:
        for number in range(min(bound, count)):
            threading.Thread(target=serve, name=f"side-by-side-{number}", daemon=True).start()
        for _ in range(count):
            heard(*_next(finished))
    finally:
        abandoned.set()


def _next(finished: queue.SimpleQueue[tuple[int, T]]) -> tuple[int, T]:
    """Wait in short pieces, so that Ctrl-C is heard."""
    while True:
        with contextlib.suppress(queue.Empty):
            return finished.get(timeout=LONGEST_DEAF)
