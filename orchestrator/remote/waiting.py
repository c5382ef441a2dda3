"""What this process waits for: said where the wait begins, for a screen that shows it when it takes long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LONGEST_DEAF = 0.2
"""Seconds that one wait for another thread may take. A signal that comes just before such a wait begins does not end it, so that Ctrl-C
would have to wait too (lock_PyThread_acquire_lock in CPython)."""


@dataclass(frozen=True)
class Wait:
    """One wait: for what, since when (monotonic), and for how many seconds at most."""

    what: str
    began: float
    limit: float


Listener = Callable[[Wait], Callable[[], None]]
"""Told of a wait that begins; returns what is to be called at its end."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have `listener` told of every wait that begins meanwhile, in whatever thread; the innermost one alone hears."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def waiting(what: str, limit: float | None, began: float | None = None) -> Iterator[None]:
    """Say that this is waited for, since now or since `began`. What has no limit tells of itself meanwhile."""
    wait = None if limit is None else Wait(what, time.monotonic() if began is None else began, limit)
    ended = _listeners[-1](wait) if _listeners and wait is not None else None
    try:
        yield
    finally:
        if ended is not None:
            ended()
