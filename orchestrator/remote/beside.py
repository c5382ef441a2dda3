"""Asking one thing while another is asked, or so that Ctrl-C need not wait for the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from orchestrator.remote.waiting import LONGEST_DEAF

T = TypeVar("T")


class Beside(Generic[T]):
    """A question in a thread of its own. Nobody has to wait for it: it ends with the process."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is wanted
            self._error = error

    def result(self, seconds: float | None = None) -> T:
        """The answer.

        Args:
            seconds: how much longer it may take from now on; None: as long as its own deadlines let it.

        Raises:
            TimeoutError: it takes longer.
            Exception: whatever the question raised.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while self._thread.is_alive():
            left = LONGEST_DEAF if end is None else end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer within {seconds:g} s")
            self._thread.join(min(left, LONGEST_DEAF))
        if self._error is not None:
            raise self._error
        return self._answers[0]
