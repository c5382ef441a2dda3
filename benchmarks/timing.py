"""Timing whole processes in interleaved pairs: whatever else the machine does hits both sides alike."""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Run = Callable[[], object]


@dataclass(frozen=True)
class Pair:
    """Seconds that two things took, one after the other, again and again."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """Median of ours over median of theirs."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def excess(self) -> float:
        """Median of ours minus median of theirs."""
        return statistics.median(self.ours) - statistics.median(self.theirs)


def seconds(run: Run) -> float:
    """How long one call takes."""
    begin = time.monotonic()
    run()
    return time.monotonic() - begin


def interleave(ours: Run, theirs: Run, repeats: int) -> Pair:
    """Time both `repeats` times, in turns, the order swapped every time; a first turn is not counted."""
    pair = Pair([], [])
    ours()
    theirs()
    for turn in range(repeats):
        sides = [(ours, pair.ours), (theirs, pair.theirs)]
        for run, kept in sides if turn % 2 else reversed(sides):
            kept.append(seconds(run))
    return pair


def command(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """A call that runs `argv` to its end.

    Raises:
        CalledProcessError: when called, if it exits with anything but 0.
    """

    def run() -> None:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, env=environment)

    return run


class EndWatch:
    """Notices when the last of some processes has ended, within a millisecond, by pidfd."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._descriptors = [os.pidfd_open(pid) for pid in pids]

    def wait(self) -> float:
        """Wait for all of them; the monotonic time at which the last one had gone."""
        left = set(self._descriptors)
        poll = select.poll()
        for descriptor in left:
            poll.register(descriptor, select.POLLIN)
        while left:
            for descriptor, _ in poll.poll():
                poll.unregister(descriptor)
                left.discard(descriptor)
        end = time.monotonic()
        for descriptor in self._descriptors:
            os.close(descriptor)
        return end
