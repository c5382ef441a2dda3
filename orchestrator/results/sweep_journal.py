"""A sweep's journal on the operator's disk: ``sweep.jsonl`` in its run folder, appended to and synced, one line a record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import UsageError
from orchestrator.results.kept_runs import SWEEP_FILE
from orchestrator.results.redaction import Redactor
from orchestrator.results.runs import runs_root
from orchestrator.results.sweep import Design, Standing, stand
from orchestrator.results.sweep_records import RECORD, SCHEMA, Begun, Record
from orchestrator.results.synced_journal import SyncedJournal, read_journal

FILE = SWEEP_FILE
VERB = "sweep"
_DESIGN: TypeAdapter[Design] = TypeAdapter(Design)


class SweepJournal(SyncedJournal[Record]):
    """The journal of a sweep that is carried on by this process; see :class:`SyncedJournal`."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        super().__init__(path, redactor, VERB, read_records)

    @property
    def standing(self) -> Standing:
        return stand(self.records, design_of(self.records))


def read_records(path: Path) -> list[Record]:
    """A journal's records. Raises as :func:`read_journal`."""
    return read_journal(path, RECORD, VERB)


def design_of(records: Sequence[Record]) -> Design:
    """What a journal's sweep tries.

    Raises:
        UsageError: it does not say, or another version of this program wrote it.
    """
    first = records[0] if records else None
    if not isinstance(first, Begun) or first.schema != SCHEMA:
        raise UsageError("the sweep's journal does not begin as this program writes it", next_step="begin a new sweep")
    try:
        return _DESIGN.validate_python(first.design)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise UsageError(f"the sweep's journal can't be read: {where}: {problem['msg']}", next_step="begin a new sweep") from None


def find_sweep(name: str | None, host: str, service: str, root: Path | None = None) -> Path:
    """The run folder of a sweep to be taken up again: the named one, else the newest of the service that has not finished.

    Raises:
        UsageError: there is none, it has finished, or it is of another service.
    """
    root = root or runs_root()
    if name is None:
        return _newest_unfinished(root, host, service)
    candidates = (Path(name).expanduser(), root / name)
    folder = next((path.absolute() for path in candidates if (path / FILE).is_file()), None)
    if folder is None:
        raise UsageError(f"no sweep {name}, neither here nor in {root}", next_step=f"ls -d {root}/*-{VERB}-*")
    records = read_records(folder / FILE)
    standing = stand(records, design_of(records))
    if (standing.begun.host, standing.begun.service) != (host, service):
        raise UsageError(f"{folder.name} is a sweep of {standing.begun.service} on {standing.begun.host}, not of {service} on {host}")
    if standing.finished is not None:
        raise UsageError(f"{folder.name} has finished: {standing.finished.said}", next_step="begin a new sweep")
    return folder


def _newest_unfinished(root: Path, host: str, service: str) -> Path:
    for path in sorted(root.glob(f"*-{VERB}-{host}-{service}*/{FILE}"), reverse=True):
        try:
            records = read_records(path)
            standing = stand(records, design_of(records))
        except UsageError:
            continue
        if (standing.begun.host, standing.begun.service) == (host, service) and standing.finished is None:
            return path.parent.absolute()
    raise UsageError(f"no unfinished sweep of {service} on {host} in {root}", next_step="name its folder, or begin a new sweep")
