"""What was run: an index over the run folders, in SQLite, that can be made again from them at any time.

Nothing writes to it when a run ends: whoever asks compares it with the folders first, reads those that are new or have changed, and
forgets those that are gone. So it never knows more than the folders, and losing it costs nothing but reading them once.

It lies in RUNS as ``history.sqlite3``, mode 600, in write-ahead mode. Its schema's number is in ``user_version``; another number, or a
file that is no database any more, is made anew. Whoever uses it holds a shared lock on RUNS, whoever replaces the file the only one:
SQLite must not lose its file under an open connection. Where it can't be kept at all, all folders are read and the answer is the same.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.agent import wire
from orchestrator.errors import UsageError
from orchestrator.results.kept_runs import SUMMARY_FILES, KeptRun, NotARunError, read_run

FILE = "history.sqlite3"
SCHEMA_VERSION = 3
"""Raised with every change of the table or of what is put into it."""
LOCK_SECONDS = 10.0
"""Somebody else reads new folders for no longer than this, or is taken to hang."""
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""Of a file that has to be made anew; the last one is a table that isn't as the schema's number says."""

_TABLE = """
CREATE TABLE runs (
    name TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    problem TEXT,
    started REAL,
    verb TEXT,
    host TEXT,
    place TEXT,
    service TEXT,
    backend TEXT,
    operator TEXT,
    exit_code INTEGER,
    ended TEXT,
    dark_seconds REAL,
    token_seconds REAL,
    token_seconds_before REAL,
    believed INTEGER
)
"""


@dataclass(frozen=True)
class Entry:
    """One run. Names are the inventory's.

    Attributes:
        started: Unix time.
        exit_code: None where nobody can tell: it was cut off, or goes on.
        ended: the final state with a failure's class, or what became of it in a word.
        dark_seconds: for how long nothing answered.
        token_seconds: time per output token at batch size 1, of what was timed or serves now.
        token_seconds_before: the same of the server before it.
        believed: whether the timing is; None where there is none, or nothing judges it.
    """

    name: str
    started: float
    verb: str
    host: str | None
    place: str | None
    service: str | None
    backend: str | None
    operator: str
    exit_code: int | None
    ended: str
    dark_seconds: float | None
    token_seconds: float | None
    token_seconds_before: float | None
    believed: bool | None


@dataclass(frozen=True)
class Wanted:
    """Which runs; None stands for any. `host` may name several, with commas. `since` is Unix time, `limit` counts from the newest."""

    service: str | None = None
    host: str | None = None
    verb: str | None = None
    backend: str | None = None
    since: float | None = None
    limit: int | None = None


@dataclass(frozen=True)
class History:
    """What is known. `unreadable` are folders that are no runs, with why; `remarks` what is odd about the index itself."""

    entries: tuple[Entry, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()


_COLUMNS = tuple(column.name for column in dataclasses.fields(Entry))


def look_up(root: Path, wanted: Wanted | None = None, *, rebuild: bool = False) -> History:
    """The runs below `root`, newest first.

    Args:
        rebuild: read every folder anew, also those that haven't changed.

    Raises:
        UsageError: `root` can't be read.
    """
    wanted = wanted or Wanted()
    if not root.is_dir():
        return History()
    try:
        return _look_up_kept(root, wanted, rebuild=rebuild)
    except (sqlite3.Error, OSError) as error:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
            found = _look_up_in(database, root, wanted, rebuild=False)
        return dataclasses.replace(found, remarks=(f"{root / FILE} can't be kept, every folder was read: {error}",))


def _look_up_kept(root: Path, wanted: Wanted, *, rebuild: bool) -> History:
    if not (root / FILE).exists():
        _replace(root)
    try:
        return _look_up_locked(root, wanted, rebuild=rebuild)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BROKEN:
            raise
    _replace(root)
    found = _look_up_locked(root, wanted, rebuild=rebuild)
    return dataclasses.replace(found, remarks=(f"{root / FILE} was broken and was made anew from the run folders",))


def _look_up_locked(root: Path, wanted: Wanted, *, rebuild: bool) -> History:
    with _locked(root, fcntl.LOCK_SH), closing(_connect(root / FILE)) as database:
        return _look_up_in(database, root, wanted, rebuild=rebuild)


def _replace(root: Path) -> None:
    """Make the file anew, unless somebody else just did."""
    with _locked(root, fcntl.LOCK_EX):
        if _is_sound(root / FILE):
            return
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{root / FILE}{suffix}")
        os.close(os.open(root / FILE, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with closing(_connect(root / FILE)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            _ensure_table(database)


def _is_sound(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with closing(_connect(path)) as database:
            database.execute(f"SELECT fingerprint, problem, {', '.join(_COLUMNS)} FROM runs").fetchall()  # noqa: S608 - our own names
            return bool(database.execute("PRAGMA quick_check").fetchall() == [("ok",)])
    except sqlite3.DatabaseError:
        return False


@contextmanager
def _locked(root: Path, kind: int) -> Iterator[None]:
    """Hold a lock on the folder itself, so that nothing has to be left in it.

    Raises:
        OSError: this file system has no locks.
        TimeoutError: somebody else holds it for too long.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"another process has used it for {LOCK_SECONDS:g} s") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)


def _look_up_in(database: sqlite3.Connection, root: Path, wanted: Wanted, *, rebuild: bool) -> History:
    """Bring the table up to the folders, and ask it. What is asked is what was brought up: both are one transaction."""
    known = {} if rebuild or _version(database) != SCHEMA_VERSION else dict(database.execute("SELECT name, fingerprint FROM runs"))
    there = {folder.name: _fingerprint(folder) for folder in _folders(root)}
    rows = [_row(root / name, fingerprint) for name, fingerprint in there.items() if known.get(name) != fingerprint]
    database.execute("BEGIN IMMEDIATE")
    try:
        _ensure_table(database)
        if rebuild:
            database.execute("DELETE FROM runs")
        database.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in known if name not in there])
        database.executemany(_insertion(), rows)
        found = _select(database, wanted)
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    return found


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _ensure_table(database: sqlite3.Connection) -> None:
    if _version(database) == SCHEMA_VERSION:
        return
    database.execute("DROP TABLE IF EXISTS runs")
    database.execute(_TABLE)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError as error:
        raise UsageError(f"{root} can't be read: {error.strerror or error}", next_step=f"ls -ld {root}") from error


def _fingerprint(folder: Path) -> str:
    """Another one whenever a file that is read here was written."""
    parts = []
    for name in SUMMARY_FILES:
        with suppress(OSError):
            status = (folder / name).stat()
            parts.append(f"{name}:{status.st_size}:{status.st_mtime_ns}")
    return " ".join(parts)


def _row(folder: Path, fingerprint: str) -> dict[str, Any]:
    try:
        run = read_run(folder)
    except NotARunError as error:
        empty: dict[str, Any] = dict.fromkeys(_COLUMNS)
        return {**empty, "name": folder.name, "fingerprint": fingerprint, "problem": str(error)}
    problem = "; ".join(run.problems) or None
    return {**dataclasses.asdict(entry_of(run)), "fingerprint": fingerprint, "problem": problem}


def _insertion() -> str:
    columns = ("fingerprint", "problem", *_COLUMNS)
    return f"INSERT OR REPLACE INTO runs ({', '.join(columns)}) VALUES ({', '.join(f':{column}' for column in columns)})"  # noqa: S608


def _select(database: sqlite3.Connection, wanted: Wanted) -> History:
    where = {name: getattr(wanted, name) for name in ("service", "host", "verb", "backend")}
    named = [name for name, value in where.items() if value is not None]
    conditions = [
        "verb IS NOT NULL",
        *("instr(',' || :host || ',', ',' || host || ',') > 0" if name == "host" else f"{name} = :{name}" for name in named),
        *(["started >= :since"] if wanted.since is not None else []),
    ]
    rows = database.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM runs WHERE {' AND '.join(conditions)}"  # noqa: S608 - our own names
        " ORDER BY started DESC, name DESC LIMIT :limit",
        {**where, "since": wanted.since, "limit": -1 if wanted.limit is None else wanted.limit},
    ).fetchall()
    problems = database.execute("SELECT name, problem FROM runs WHERE problem IS NOT NULL ORDER BY name").fetchall()
    return History(tuple(map(_entry, rows)), tuple((str(name), str(problem)) for name, problem in problems))


def _entry(row: Sequence[Any]) -> Entry:
    values = dict(zip(_COLUMNS, row, strict=True))
    believed = values.pop("believed")
    return Entry(**values, believed=None if believed is None else bool(believed))


def entry_of(run: KeptRun) -> Entry:
    """A run in one line."""
    token, before, believed = _timing(run)
    return Entry(
        name=run.name,
        started=run.record.started,
        verb=run.record.verb,
        host=run.host,
        place=run.place,
        service=run.service,
        backend=run.backend,
        operator=run.record.operator,
        exit_code=run.ending.exit_code,
        ended=run.ending.told,
        dark_seconds=run.result.dark_seconds if run.result is not None else None,
        token_seconds=token,
        token_seconds_before=before,
        believed=believed,
    )


def _timing(run: KeptRun) -> tuple[float | None, float | None, bool | None]:
    """Batch size 1: of what was timed, of what was there before, and whether that is believed."""
    if run.measurement is not None:
        single = next((batch.time_per_output_token for batch in run.measurement.report.batches if batch.batch_size == 1), None)
        return (single.median if single is not None else None), None, run.measurement.valid
    if run.result is None:
        return None, None, None
    return _token_seconds(run.result.measured), _token_seconds(run.result.baseline), None


def _token_seconds(timing: wire.DecodeTiming | None) -> float | None:
    return None if timing is None or timing.skipped or not timing.time_per_output_token else timing.time_per_output_token
