"""What a sweep has found so far, by its journal and the timings that it names. Nothing is connected to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.flows.sweep_words import serves_words
from orchestrator.results import measurements, sweep_choice
from orchestrator.results.sweep import Standing, stand
from orchestrator.results.sweep_choice import Choice, PointFound
from orchestrator.results.sweep_journal import FILE, design_of, read_records
from orchestrator.results.sweep_records import Ordered, Record


@dataclass(frozen=True)
class Swept:
    """What a sweep has found. Of one that has not finished `exit_code` and `said` are as if it ended now."""

    standing: Standing
    points: list[PointFound]
    choice: Choice
    said: str
    exit_code: int


def read_swept(folder: Path) -> Swept:
    """What the sweep of a run folder has found.

    Raises:
        UsageError: there is none in it, or it can't be read.
    """
    return swept(read_records(folder / FILE), folder.parent)


def swept(records: Sequence[Record], root: Path) -> Swept:
    """What a journal's sweep has found; `root` holds the run folders of its timings."""
    standing = stand(records, design_of(records))
    sides = load_sides(standing, root)
    choice = choose(records, standing, sides)
    said = f"{choice.why}; {serves_words(standing)}"
    return Swept(standing, sweep_choice.found(standing, sides), choice, said, sweep_choice.exit_code(standing, sides))


def choose(records: Sequence[Record], standing: Standing, sides: sweep_choice.Sides) -> Choice:
    """The best point by what served when all had been tried, so that it stays the same once it was launched."""
    closing = (item for item in reversed(records) if isinstance(item, Ordered) and item.step == standing.last_step)
    chosen = next((item.point for item in closing), None)
    serves = standing.point if chosen is None else chosen
    return sweep_choice.choose(sides, standing.design.points, standing.design.best_at, serves)


def load_sides(standing: Standing, root: Path) -> dict[int, list[measurements.Measurement]]:
    """The timings to be believed of each point, from the run folders under `root`. One that was taken away since is left out."""
    sides: dict[int, list[measurements.Measurement]] = {}
    for point, timings in standing.timings().items():
        for timed in timings:
            if timed.invalid or not (root / timed.run / measurements.FILE).is_file():
                continue
            sides.setdefault(point, []).append(measurements.load(root / timed.run))
    return sides
