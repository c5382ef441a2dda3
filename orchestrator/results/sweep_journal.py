"""A sweep's journal on the operator's disk: ``sweep.jsonl`` in its run folder, appended to and synced, one line a record."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import TypeAdapter, ValidationError

from orchestrator.agent.codec import to_json
from orchestrator.errors import LockedError, OrchestratorError, UsageError
from orchestrator.results.kept_runs import SWEEP_FILE
from orchestrator.results.redaction import Redactor
from orchestrator.results.runs import runs_root
from orchestrator.results.sweep import Design, Standing, stand
from orchestrator.results.sweep_records import RECORD, SCHEMA, Begun, Record

FILE = SWEEP_FILE
VERB = "sweep"
_DESIGN: TypeAdapter[Design] = TypeAdapter(Design)


class SweepJournal:
    """The journal of a sweep that is carried on by this process. A line that was cut off is dropped when it is opened.

    Attributes:
        records: all of it, oldest first.
    """

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.path = path
        self.records: list[Record] = []
        self._redactor = redactor
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Open it, and keep others from it.

        Raises:
            LockedError: another process carries this sweep on.
            OrchestratorError: it can't be written.
            UsageError: it is no journal of this program's.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sync_folder(self.path.parent)
            os.ftruncate(self._descriptor, _whole(self.path.read_bytes()))
        except BlockingIOError:
            self._close()
            raise LockedError(f"the sweep {self.path.parent.name} is carried on by another process of yours") from None
        except OSError as error:
            self._close()
            raise self._unwritable(error) from None
        self.records = read_records(self.path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._close()

    def append(self, record: Record) -> Standing:
        """Add a record, which is on the disk when this returns, and tell where the sweep stands with it.

        Raises:
            OrchestratorError: it can't be written; then nothing more is to be begun.
        """
        stamped: Record = dataclasses.replace(record, time=time.time())
        line = json.dumps(self._redactor.data(to_json(stamped)), ensure_ascii=False) + "\n"
        assert self._descriptor is not None
        try:
            os.write(self._descriptor, line.encode())
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._unwritable(error) from None
        self.records.append(stamped)
        return self.standing

    @property
    def standing(self) -> Standing:
        return stand(self.records, design_of(self.records))

    def _unwritable(self, error: OSError) -> OrchestratorError:
        return OrchestratorError(
            f"the sweep's journal {self.path} can't be written: {error.strerror or error}", next_step=f"df -h {self.path.parent}"
        )

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _whole(content: bytes) -> int:
    """The length of all whole lines."""
    return content.rfind(b"\n") + 1


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_records(path: Path) -> list[Record]:
    """A journal's records; a last line that was cut off is none.

    Raises:
        UsageError: there is no such file, or one of its lines is not this program's.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path.parent} holds no sweep: {error.strerror or error}", next_step="name a folder of fab sweep") from None
    lines = content[: _whole(content)].splitlines()
    try:
        return [RECORD.validate_json(line) for line in lines]
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise UsageError(f"{path} can't be read: {problem}", next_step="begin a new sweep") from None


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
