"""A journal on the operator's disk: appended to and synced, one line a record, carried on by one process at a time."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.agent.codec import to_json
from orchestrator.errors import LockedError, OrchestratorError, UsageError
from orchestrator.results.redaction import Redactor

R = TypeVar("R")


class SyncedJournal(Generic[R]):
    """The journal that this process carries on, of a run that the screen calls a `kind`. A line that was cut off is dropped on opening.

    Records are data classes with a field `time`, which is filled in here.

    Attributes:
        records: all of it, oldest first.
    """

    def __init__(self, path: Path, redactor: Redactor, kind: str, read: Callable[[Path], list[R]]) -> None:
        self.path = path
        self.records: list[R] = []
        self._redactor = redactor
        self._kind = kind
        self._read = read
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Open it, and keep others from it.

        Raises:
            LockedError: another process carries it on.
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
            raise LockedError(f"the {self._kind} {self.path.parent.name} is carried on by another process of yours") from None
        except OSError as error:
            self._close()
            raise self._unwritable(error) from None
        self.records = self._read(self.path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._close()

    def append(self, record: R) -> None:
        """Add a record, which is on the disk when this returns.

        Raises:
            OrchestratorError: it can't be written; then nothing more is to be begun.
        """
        fields: Any = record
        stamped = dataclasses.replace(fields, time=time.time())
        line = json.dumps(self._redactor.data(to_json(stamped)), ensure_ascii=False) + "\n"
        assert self._descriptor is not None
        try:
            os.write(self._descriptor, line.encode())
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._unwritable(error) from None
        self.records.append(stamped)

    def _unwritable(self, error: OSError) -> OrchestratorError:
        return OrchestratorError(
            f"the {self._kind}'s journal {self.path} can't be written: {error.strerror or error}", next_step=f"df -h {self.path.parent}"
        )

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_journal(path: Path, adapter: TypeAdapter[R], kind: str) -> list[R]:
    """A journal's records; a last line that was cut off is none.

    Raises:
        UsageError: there is no such file, or one of its lines is not this program's.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path.parent} holds no {kind}: {error.strerror or error}", next_step=f"name a folder of fab {kind}") from None
    lines = content[: _whole(content)].splitlines()
    try:
        return [adapter.validate_json(line) for line in lines]
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise UsageError(f"{path} can't be read: {problem}", next_step=f"begin a new {kind}") from None


def _whole(content: bytes) -> int:
    """The length of all whole lines."""
    return content.rfind(b"\n") + 1


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
