"""A monotonic deadline that is passed down every wait."""

import time
from typing import Callable, Optional


class Deadline:
    """A moment on the monotonic clock. `seconds` None never comes."""

    def __init__(self, seconds: Optional[float]) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the moment, never below zero; a large number when it never comes."""
        return 1e9 if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.left() == 0.0

    def earlier(self, seconds: float) -> "Deadline":
        """The earlier of this and `seconds` from now."""
        return Deadline(min(self.left(), seconds))


def wait_until(condition: Callable[[], bool], deadline: Deadline, interval: float = 0.05) -> bool:
    """Ask `condition` until it holds (True) or the deadline has passed (False); it is asked at least once."""
    while True:
        if condition():
            return True
        if deadline.passed:
            return False
        time.sleep(min(interval, deadline.left()))
