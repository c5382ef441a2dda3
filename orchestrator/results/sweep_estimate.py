"""How long a sweep may take, by what is kept of earlier relaunches and timings of the service. Read from run folders."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import wire
from orchestrator.errors import UsageError
from orchestrator.results.measurements import FILE, load
from orchestrator.results.runs import runs_root
from orchestrator.results.sweep import Timing

_NEWEST = 10


@dataclass(frozen=True)
class Pace:
    """Seconds of one relaunch, from its first state to its last, and of one timing; None where none is kept that is like it.

    `relaunches` and `timings` are how many are known.
    """

    relaunch: float | None = None
    relaunches: int = 0
    timing: float | None = None
    timings: int = 0

    def seconds(self, launches: int) -> float | None:
        """Of so many launches, each with its timing."""
        if self.relaunch is None or self.timing is None:
            return None
        return launches * (self.relaunch + self.timing)


def pace(host: str, service: str, timing: Timing, root: Path | None = None) -> Pace:
    """What the newest run folders of the service tell. What can't be read is left out."""
    root = root or runs_root()
    changes = [seconds for folder in _folders(root, "relaunch", host, service) if (seconds := _relaunch_seconds(folder)) is not None]
    timings = [seconds for folder in _folders(root, "measure", host, service) if (seconds := _timing_seconds(folder, timing)) is not None]
    return Pace(
        statistics.median(changes) if changes else None,
        len(changes),
        statistics.median(timings) if timings else None,
        len(timings),
    )


def _folders(root: Path, verb: str, host: str, service: str) -> list[Path]:
    return sorted(root.glob(f"*-{verb}-{host}-{service}*"), reverse=True)[:_NEWEST]


def _relaunch_seconds(folder: Path) -> float | None:
    """Only of one that went well: a way back is another load."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads((folder / "result.json").read_text(encoding="utf-8"))["state"] != wire.State.DONE:
            return None
        times = list(_state_times(folder / "journal.jsonl"))
        return times[-1] - times[0] if len(times) > 1 else None
    return None


def _state_times(journal: Path) -> Iterator[float]:
    for line in journal.read_text(encoding="utf-8").splitlines():
        yield float(json.loads(line)["time"])


def _timing_seconds(folder: Path, timing: Timing) -> float | None:
    """Only of one that timed the same."""
    if not (folder / FILE).is_file():
        return None
    with contextlib.suppress(UsageError):
        report = load(folder).report
        repeats = {len(batch.repeats) for batch in report.batches}
        sizes = [batch.batch_size for batch in report.batches]
        if sizes == timing.batch_sizes and repeats == {timing.repeats} and report.output_tokens == timing.output_tokens:
            return report.seconds
    return None
