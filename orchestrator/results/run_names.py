"""Naming runs: by path, by name, by the beginning of a name, or the last one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.errors import UsageError

LAST = "last"
MAKES_A_RUN = "relaunch, launch, teardown, rollback, roll, sweep, prep, measure, budget, profile and runbook.run keep one each"
FIRST_RUN = "fab measure   # times the server that runs and changes nothing; ORCHESTRATOR_RUNS names another folder of runs"
"""What to type for a first run."""


def no_runs(root: Path) -> UsageError:
    """There is none at all yet."""
    return UsageError(f"there are no runs in {root.absolute()} yet", evidence=[MAKES_A_RUN], next_step=FIRST_RUN)


def find_run(name: str, root: Path, newest: Callable[[], Path | None]) -> Path:
    """The run folder that is meant.

    Args:
        name: a folder, its name below `root`, a beginning that only one has, or ``last``.
        newest: the run that began last; asked only for ``last``.

    Raises:
        UsageError: there is none, or there are several.
    """
    if name == LAST:
        found = newest()
        if found is None:
            raise no_runs(root)
        return found
    for path in (Path(name).expanduser(), root / name):
        if name and path.is_dir():
            return path
    fitting = _beginning_with(name, root)
    if len(fitting) == 1:
        return root / fitting[0]
    if fitting:
        raise UsageError(f"{len(fitting)} runs begin with {name}", evidence=fitting[:10], next_step="fab show, with more of the name")
    raise UsageError(f"no run {name}, neither here nor in {root}", next_step="fab history")


def any_kept(root: Path) -> bool:
    """Whether any folder of a run lies there."""
    return root.is_dir() and any(path.is_dir() for path in root.iterdir())


def _beginning_with(name: str, root: Path) -> Sequence[str]:
    if not root.is_dir() or not name:
        return []
    return sorted((path.name for path in root.iterdir() if path.is_dir() and path.name.startswith(name)), reverse=True)


def shortest(names: Sequence[str], least: int) -> dict[str, str]:
    """A beginning of each name that no other has, at least `least` characters long."""
    ordered = sorted(names)
    shared = [0, *(_common(one, other) for one, other in itertools.pairwise(ordered)), 0]
    needed = [max(least, before + 1, after + 1) for before, after in itertools.pairwise(shared)]
    return {name: name[:length] for name, length in zip(ordered, needed, strict=True)} if ordered else {}


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    return next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
