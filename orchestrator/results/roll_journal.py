"""A roll's journal on the operator's disk: ``roll.jsonl`` in its run folder."""

from __future__ import annotations

import fcntl
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.results.kept_runs import ROLL_FILE
from orchestrator.results.redaction import Redactor
from orchestrator.results.roll import Standing, stand
from orchestrator.results.roll_records import RECORD, SCHEMA, Begun, Record
from orchestrator.results.runs import runs_root
from orchestrator.results.synced_journal import SyncedJournal, read_journal

FILE = ROLL_FILE
VERB = "roll"


class RollJournal(SyncedJournal[Record]):
    """The journal of a roll that is carried on by this process; see :class:`SyncedJournal`."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        super().__init__(path, redactor, VERB, read_records)

    @property
    def standing(self) -> Standing:
        return _standing(self.records)


def read_records(path: Path) -> list[Record]:
    """A journal's records. Raises as :func:`read_journal`."""
    return read_journal(path, RECORD, VERB)


def find_roll(name: str | None, router: str, root: Path | None = None) -> Path:
    """The run folder of a roll to be taken up again: the named one, else the newest of the router that has not finished.

    Raises:
        UsageError: there is none, it has finished, or it is of another router.
    """
    root = root or runs_root()
    if name is None:
        return _newest_unfinished(root, router)
    candidates = (Path(name).expanduser(), root / name)
    folder = next((path.absolute() for path in candidates if (path / FILE).is_file()), None)
    if folder is None:
        raise UsageError(f"no roll {name}, neither here nor in {root}", next_step=f"ls -d {root}/*-{VERB}-*")
    standing = _standing(read_records(folder / FILE))
    if standing.begun.router != router:
        raise UsageError(f"{folder.name} is a roll behind router {standing.begun.router}, not {router}")
    if standing.finished is not None:
        raise UsageError(f"{folder.name} has finished: {standing.finished.said}", next_step="begin a new roll")
    return folder


def unfinished(router: str, root: Path | None = None) -> Path | None:
    """The newest roll of a router that has not finished, None where there is none."""
    for path in sorted((root or runs_root()).glob(f"*-{VERB}-{router}*/{FILE}"), reverse=True):
        try:
            standing = _standing(read_records(path))
        except UsageError:
            continue
        if standing.begun.router == router:
            return path.parent.absolute() if standing.finished is None else None
    return None


def is_cut_off(name: str, token: str, root: Path | None = None) -> bool:
    """Whether the roll of that name and token was begun here and no process carries it on."""
    path = (root or runs_root()) / name / FILE
    if not name or not path.is_file():
        return False
    try:
        begun = _standing(read_records(path)).begun
    except UsageError:
        return False
    return begun.token == token and not _is_carried_on(path)


def _is_carried_on(path: Path) -> bool:
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _newest_unfinished(root: Path, router: str) -> Path:
    found = unfinished(router, root)
    if found is None:
        raise UsageError(f"no unfinished roll behind router {router} in {root}", next_step="name its folder, or begin a new roll")
    return found


def _standing(records: list[Record]) -> Standing:
    """Where it stands.

    Raises:
        UsageError: it does not say how it began, or another version of this program wrote it.
    """
    first = records[0] if records else None
    if not isinstance(first, Begun) or first.schema != SCHEMA:
        raise UsageError("the roll's journal does not begin as this program writes it", next_step="begin a new roll")
    return stand(records)
