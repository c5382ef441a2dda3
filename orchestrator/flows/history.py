"""history, show: what was run, from the run folders. Nothing is connected to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.flows.plan import Plan
from orchestrator.results.course import Course, read_course
from orchestrator.results.floor import Given
from orchestrator.results.history import History, Wanted, look_up
from orchestrator.results.kept_runs import SWEEP_FILE, KeptRun, NotARunError, read_run
from orchestrator.results.measurements import FILE
from orchestrator.results.run_names import find_run, shortest
from orchestrator.results.runs import runs_root

if TYPE_CHECKING:
    from orchestrator.flows.swept import Swept
    from orchestrator.results.budget import Budgeted
    from orchestrator.results.profile import Profiled

_STAMP = len("20261129T031407Z")


@dataclass(frozen=True)
class Listing:
    """Runs that were asked for. `short` has a beginning of each one's name that no other run has."""

    root: Path
    history: History
    short: dict[str, str]


@dataclass(frozen=True)
class Shown:
    """All of one run. `plan` is None where there was none or it can't be understood any more; why is among `problems`."""

    run: KeptRun
    plan: Plan | None
    course: Course | None
    problems: tuple[str, ...]
    files: tuple[tuple[str, int], ...]
    """What lies in the folder, with its size in bytes."""
    given: Given
    """What the service's file said of the floor when it was timed."""
    swept: Swept | None = None
    """What a sweep has found, finished or not."""
    account: Budgeted | Profiled | None = None
    """Where the time of a decode step goes."""


def history(wanted: Wanted, *, rebuild: bool = False, root: Path | None = None) -> Listing:
    """The runs, newest first; see :func:`orchestrator.results.history.look_up`."""
    folder = root or runs_root()
    found = look_up(folder, wanted, rebuild=rebuild)
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return Listing(folder, found, shortest(names, _STAMP))


def open_run(name: str, root: Path | None = None) -> KeptRun:
    """Read the run that is meant by a path, a name, its beginning, or ``last``.

    Raises:
        UsageError: there is none, there are several, or the folder is no run.
    """
    folder = root or runs_root()
    path = find_run(name, folder, lambda: _newest(folder))
    try:
        return read_run(path)
    except NotARunError as error:
        raise UsageError(f"{path} can't be read: {error}", next_step="fab history") from error


def _newest(root: Path) -> Path | None:
    entries = look_up(root, Wanted(limit=1)).entries
    return root / entries[0].name if entries else None


def show(name: str, root: Path | None = None) -> Shown:
    """All of one run.

    Raises:
        UsageError: see :func:`open_run`.
    """
    run = open_run(name, root)
    plan, problems = _plan(run)
    account, unread = kept_account(run)
    files = tuple((path.name, path.stat().st_size) for path in sorted(run.path.iterdir()) if path.is_file())
    return Shown(
        run=run,
        plan=plan,
        course=read_course(run),
        problems=(*run.problems, *problems, *unread),
        files=files,
        given=kept_given(run.path),
        swept=_swept(run),
        account=account,
    )


def kept_account(run: KeptRun) -> tuple[Budgeted | Profiled | None, list[str]]:
    """What a run found of a decode step's time, and why that can't be told; of one that found nothing neither."""
    from orchestrator.results.kept_accounts import read_account

    if run.account is None:
        return None, []
    try:
        return read_account(run.path), []
    except ValueError as error:
        return None, [str(error)]


def _swept(run: KeptRun) -> Swept | None:
    """Of a journal that can't be read, what is wrong with it is among the run's own problems."""
    if not (run.path / SWEEP_FILE).is_file():
        return None
    from orchestrator.flows.swept import read_swept

    try:
        return read_swept(run.path)
    except UsageError:
        return None


def kept_given(folder: Path) -> Given:
    """What ``measure`` has kept of the service's ``floor:``; nothing where it can't be read."""
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))["floor"]
        return Given(**kept)
    except (OSError, ValueError, TypeError, KeyError):
        return Given()


def _plan(run: KeptRun) -> tuple[Plan | None, list[str]]:
    """The plan as it was shown; a later version of this program may have other words for it."""
    from pydantic import TypeAdapter, ValidationError

    if run.plan is None:
        return None, []
    try:
        return TypeAdapter(Plan).validate_python(run.plan), []
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return None, [f"plan.json can't be understood: {where}: {first['msg']}"]
