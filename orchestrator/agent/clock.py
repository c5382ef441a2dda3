"""A steady clock and deadlines on it, and the moment at which the kernel was booted.

CLOCK_MONOTONIC runs on while a container is frozen (a backup, a snapshot) or a virtual machine stands still. Whoever was waiting then
finds its time gone, and so would a healthy load. The steady clock leaves such gaps out: a heartbeat touches it every half second, and
whoever finds it untouched for longer than 5 s knows that nothing of this process ran meanwhile.
"""

import os
import threading
import time
from typing import Callable, List, NamedTuple, Optional

BOOTED_SOURCE = "clock_gettime(CLOCK_BOOTTIME)"

GAP_SECONDS = 5.0
"""Untouched for longer, the process did not run. A busy machine makes a thread wait for tenths of a second."""
BEAT_SECONDS = 0.5


class Gap(NamedTuple):
    """A time in which this process did not run. `ended` is Unix time."""

    ended: float
    seconds: float


class SteadyClock:
    """The monotonic clock without the gaps that were seen since :meth:`start`; before, nobody watches and nothing is left out."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._touched = 0.0
        self._lost = 0.0
        self._gaps: List[Gap] = []
        self._stop: Optional[threading.Event] = None

    def now(self) -> float:
        """Seconds on this clock. Reading it touches it; whoever comes first after a gap leaves it out for all."""
        with self._lock:
            real = self._read()
            away = real - self._touched
            if self._stop is not None and away > GAP_SECONDS:
                self._lost += away
                self._gaps.append(Gap(time.time(), away))
            self._touched = real
            return real - self._lost

    def gaps(self, after: int = 0) -> List[Gap]:
        """The gaps seen so far, without the first `after`."""
        with self._lock:
            return self._gaps[after:]

    def start(self) -> None:
        """Start the heartbeat, in a thread that ends with the process; does nothing where it beats already."""
        with self._lock:
            if self._stop is not None:
                return
            self._stop = threading.Event()
            self._touched = self._read()
            threading.Thread(target=self._beat, args=(self._stop,), name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """End the heartbeat; what was left out stays left out."""
        with self._lock:
            if self._stop is not None:
                self._stop.set()
            self._stop = None

    def _beat(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.now()
            time.sleep(BEAT_SECONDS)

    def after_fork(self) -> None:
        """In a child: its parent's heartbeat is no thread of its own, and the lock may have been held."""
        self._lock = threading.Lock()
        self._stop = None


steady = SteadyClock()
"""The clock of this process: deadlines run on it."""

os.register_at_fork(after_in_child=steady.after_fork)


class Deadline:
    """A moment on the steady clock. `seconds` None never comes."""

    def __init__(self, seconds: Optional[float]) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else steady.now() + seconds

    def left(self) -> float:
        """Seconds until the moment, never below zero; a large number when it never comes."""
        return 1e9 if self._end is None else max(0.0, self._end - steady.now())

    @property
    def passed(self) -> bool:
        return self.left() == 0.0

    def earlier(self, seconds: float) -> "Deadline":
        """The earlier of this and `seconds` from now."""
        return Deadline(min(self.left(), seconds))


def boot_moment() -> float:
    """Unix time at which the kernel was booted, to about a millisecond: one for a host and its container, another on each machine.

    The boot_id is not: LXC binds one of the container's own over it (lxc_setup_boot_id, seen with 5.0.2). Clocks are slewed
    alike, so the moment changes only when somebody sets the time. A time namespace's offset is taken out (time_namespaces(7)).
    """
    readings = []
    for _ in range(5):  # the closest pair counts: this process may be put aside between two clocks
        before, since_boot, after = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        readings.append((after - before, before - since_boot))
    return min(readings)[1] + _namespace_offset()


def _namespace_offset() -> float:
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as stream:
            rows = [line.split() for line in stream]
    except OSError:  # before Linux 5.6
        return 0.0
    return next((int(row[1]) + int(row[2]) / 1e9 for row in rows if row[0] in ("boottime", "7") and len(row) == 3), 0.0)


def wait_set(event: threading.Event, seconds: float) -> bool:
    """Wait for an event; whether it is set.

    Event.wait() with a time measures it by the wall clock before Python 3.11, and lasts for hours when that is set back meanwhile.
    """
    return wait_until(event.is_set, Deadline(seconds), 0.01)


def wait_until(condition: Callable[[], bool], deadline: Deadline, interval: float = 0.05) -> bool:
    """Ask `condition` until it holds (True) or the deadline has passed (False); it is asked at least once."""
    while True:
        if condition():
            return True
        if deadline.passed:
            return False
        time.sleep(min(interval, deadline.left()))
