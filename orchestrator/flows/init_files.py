"""The files that ``fab init`` would write: whole before anything is put in its place, and taken back where that is cut off half-way."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import OrchestratorError, RefusedError, UsageError

FOLDERS = ("services", "backends", "tuning")


@dataclass(frozen=True)
class File:
    """One file of an inventory as it would be.

    Attributes:
        name: below the inventory's folder: ``services/glm5.yml``.
        before: what it holds now; None where it does not exist. A file that exists only ever gets more lines at its end.
        about: what it is, for the screen.
    """

    name: str
    text: str
    before: str | None = None
    about: str = ""

    @property
    def added(self) -> str:
        """The lines that are new in it."""
        return self.text.removeprefix(self.before or "")


def read(path: Path) -> str | None:
    """A file's text, None where there is no such file.

    Raises:
        UsageError: it can't be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", next_step=f"ls -l {path}") from None


@contextmanager
def rehearsal(directory: Path, files: Sequence[File]) -> Iterator[Path]:
    """A copy of the inventory with the files in it, to be loaded before anything is put in its place."""
    with tempfile.TemporaryDirectory(prefix="inventory-") as folder:
        copy = Path(folder) / "inventory"
        for name in FOLDERS:
            (copy / name).mkdir(parents=True)
            for path in sorted((directory / name).glob("*.y*ml")) if (directory / name).is_dir() else ():
                shutil.copyfile(path, copy / name / path.name)
        if (directory / "hosts.yml").is_file():
            shutil.copyfile(directory / "hosts.yml", copy / "hosts.yml")
        for file in files:
            (copy / file.name).write_text(file.text, encoding="utf-8")
        yield copy


def put_in_place(directory: Path, files: Sequence[File]) -> None:
    """Write the files, each at once, in an order in which the folder is a valid inventory (or none yet) at every moment.

    New files are linked to their names, which nothing that has come into being meanwhile is lost by; a file that gets more lines is
    replaced only while it holds what was read of it. Whatever ends this half-way, Ctrl-C included, what was put in place is taken back.

    Raises:
        RefusedError: a file has come into being or was changed meanwhile; nothing is left of what was written.
        UsageError: the folder can't be written.
    """
    undo: list[Callable[[], None]] = []
    try:
        for folder in (directory, *(directory / name for name in FOLDERS)):
            _make_folder(folder, undo)
        for file in sorted(files, key=_turn):
            _put(directory / file.name, file, undo)
    except BaseException as error:
        for step in reversed(undo):
            with contextlib.suppress(OSError):
                step()
        if isinstance(error, OSError):
            raise UsageError(f"{error.filename or directory} can't be written: {error.strerror}", next_step=f"ls -ld {directory}") from None
        raise


def _turn(file: File) -> int:
    """Profiles first, then the host that names one, then the service that names a host."""
    folder = file.name.partition("/")[0]
    return {"backends": 0, "tuning": 1, "known_hosts": 2, "hosts.yml": 3}.get(folder, 4)


def _make_folder(path: Path, undo: list[Callable[[], None]]) -> None:
    if not path.is_dir():
        path.mkdir(parents=True)
        undo.append(path.rmdir)


def _put(path: Path, file: File, undo: list[Callable[[], None]]) -> None:
    target = path.resolve()  # a link is followed: what it leads to is the file
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    undo.append(lambda: temporary.unlink(missing_ok=True))
    try:
        _write(temporary, file.text, sync=file.before is not None)
        if file.before is None:
            made = temporary.stat()
            undo.append(lambda: _remove(target, made))
            os.link(temporary, target)
        else:
            _replace(target, temporary, file, undo)
    except FileExistsError:
        raise _changed(path) from None
    finally:
        temporary.unlink(missing_ok=True)


def _remove(target: Path, made: os.stat_result) -> None:
    """Whether the link was made may not be known: only what is the very file that was written goes."""
    if target.exists() and os.path.samestat(target.stat(), made):
        target.unlink()


def _replace(target: Path, temporary: Path, file: File, undo: list[Callable[[], None]]) -> None:
    if read(target) != file.before:
        raise _changed(target)
    shutil.copymode(target, temporary)
    undo.append(lambda: _put_back(target, file))
    temporary.replace(target)


def _put_back(target: Path, file: File) -> None:
    if file.before is not None and read(target) == file.text:
        backup = target.with_name(f".{target.name}.{os.getpid()}")
        _write(backup, file.before, sync=True)
        shutil.copymode(target, backup)
        backup.replace(target)


def _write(path: Path, text: str, *, sync: bool) -> None:
    """Write a new file; with `sync` it is on the disk before it may take the place of somebody's."""
    path.unlink(missing_ok=True)  # left by a process of the same number that was killed
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)
        if sync:
            stream.flush()
            os.fsync(stream.fileno())


def _changed(path: Path) -> OrchestratorError:
    return RefusedError(
        f"{path} has changed or come into being meanwhile and stays as it is; nothing was written", next_step="fab init again"
    )
