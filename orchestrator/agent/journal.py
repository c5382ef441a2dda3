"""An order's journal: one synced JSON line a state; and its progress file, which is not synced.

The journal is what everybody believes: it is written before a step whose effect can't be taken back, and a reader drops a
torn last line. Its room on the disk is reserved before anything is touched, as zeros behind its last line, so that a disk that fills up
can't silence it. Who holds the service's lock is alive; an order whose last state is not final and which nobody holds was
interrupted there.
"""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, TextIO, Tuple

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.private_files import sync_folder
from orchestrator.agent.state_folder import NOTICE_FILE, StateFolder, read_record

JOURNAL = "journal.jsonl"
PROGRESS = "progress.jsonl"
RESERVED = 512 * 1024
"""Bytes kept free behind the journal's last line: some twenty states, each with its argument vector and verdicts."""

Scrub = Callable[[Any], Any]
"""Takes secret values out of anything JSON can hold."""


class Journal:
    """The writing end; one a supervisor. Everything passes `scrub` first."""

    def __init__(self, folder: Path, scrub: Scrub = lambda value: value) -> None:
        self._scrub = scrub
        self._journal, self._end = _open_whole(folder / JOURNAL)
        self._progress = _open_append(folder / PROGRESS)
        sync_folder(folder)
        self._sequence = len(read_journal(folder / JOURNAL))
        self._state = ""
        self._state_began = time.monotonic()
        self._phase = ("", self._state_began)

    def reserve(self) -> None:
        """Take the room that the rest of the journal may need.

        Raises:
            OSError: there is not enough (ENOSPC, EDQUOT).
        """
        os.posix_fallocate(self._journal, 0, self._end + RESERVED)
        os.fsync(self._journal)

    def state(self, state: str, reason: str, data: Optional[Dict[str, Any]] = None) -> wire.StateEntry:
        """Append one state and return when it is on the disk."""
        entry = wire.StateEntry(
            self._sequence + 1, state, time.time(), time.monotonic(), self._scrub(reason), self._scrub(wire.to_json(data or {}))
        )
        line = (json.dumps(wire.to_json(entry)) + "\n").encode()
        self._append(line)
        self._sequence += 1
        self._state = state
        self._state_began = time.monotonic()
        self._phase = ("", self._state_began)
        return entry

    def _append(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._journal, line[written:], self._end + written)
            os.fsync(self._journal)
        except OSError:
            # Only beyond the reserved room can it come to this; a later, shorter line must not end in the rest of this one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._journal, self._end)
            raise
        self._end += len(line)

    def progress(self, phase: str, detail: str = "") -> None:
        """Append one line on what goes on inside the present state; losing it costs nothing, so errors are swallowed."""
        now = time.monotonic()
        if phase != self._phase[0]:
            self._phase = (phase, now)
        elapsed, in_phase = (round(now - began, 3) for began in (self._state_began, self._phase[1]))
        entry = wire.Progress(self._state, phase, elapsed, self._scrub(detail), self._sequence, in_phase)
        try:
            self._progress.write(json.dumps(wire.to_json(entry)) + "\n")
            self._progress.flush()
        except OSError:
            return

    def close(self) -> None:
        """Give back what was reserved and not needed."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._journal, self._end)
        os.close(self._journal)
        self._progress.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_whole(path: Path) -> Tuple[int, int]:
    """Open for writing behind the last whole line, and where that is. A torn line is wiped first; what was reserved stays reserved."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    text = path.read_bytes()
    end = len(whole_lines(text))
    torn = len(text[end:].rstrip(b"\0"))
    if torn:
        os.pwrite(descriptor, bytes(torn), end)
    return descriptor, end


def whole_lines(text: bytes) -> bytes:
    """What of a growing file is certain: its whole lines, up to the zeros of reserved room."""
    written = text.partition(b"\0")[0]
    return written[: written.rfind(b"\n") + 1]


def _open_append(path: Path) -> TextIO:
    """Open for appending whole lines: a torn last line, left by a crash, is cut off first."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, len(whole_lines(path.read_bytes())))
    return os.fdopen(descriptor, "a", encoding="utf-8")


class Tail:
    """Reads whole new lines of a growing file, as JSON objects; a torn line waits for its rest."""

    def __init__(self, path: Path, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> List[Any]:
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                text = stream.read()
        except OSError:
            return []
        whole = whole_lines(text)
        self._offset += len(whole)
        return [value for line in whole.splitlines() for value in _parse(line)]


def _parse(line: bytes) -> List[Any]:
    try:
        return [json.loads(line)]
    except ValueError:
        return []


def read_journal(path: Path) -> List[wire.StateEntry]:
    """All whole lines of a journal, in order."""
    entries = []
    for data in Tail(path).read():
        try:
            entries.append(wire.from_json(wire.StateEntry, data))
        except wire.WireError:
            continue
    return entries


class ServiceLock:
    """The kernel's lock on a service's state folder: it ends with its holder, and no child inherits it."""

    def __init__(self, folder: StateFolder) -> None:
        self._path = folder.lock
        self._descriptor: Optional[int] = None

    def take(self, order_id: str, seconds: float = 1.0) -> bool:
        """Take the lock and name its holder in the file.

        A reader's probe holds the lock for a moment, so a refusal counts only when it lasts for `seconds`.
        """
        descriptor = os.open(str(self._path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not wait_until(lambda: try_lock(descriptor, fcntl.LOCK_EX), Deadline(seconds)):
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, order_id.encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(folder: StateFolder) -> Optional[str]:
    """The id of the order that a living supervisor holds, or None."""
    try:
        descriptor = os.open(str(folder.lock), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if try_lock(descriptor, fcntl.LOCK_SH):
            return None
        return os.read(descriptor, 200).decode("utf-8", "replace").strip() or "unknown"
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int) -> bool:
    """Take a kernel's lock (fcntl.LOCK_SH, fcntl.LOCK_EX) if nobody stands against it now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def order_status(folder: StateFolder, order_id: Optional[str] = None) -> Optional[wire.OrderStatus]:
    """Where an order stands (when not named: the one at work, else the newest); None when there is none."""
    holder = lock_holder(folder)
    identifiers = folder.order_ids()
    at_work = holder if holder in identifiers else None
    chosen = order_id or at_work or (identifiers[-1] if identifiers else None)
    if chosen is None:
        return None
    from orchestrator.agent.history import is_touched, times_resumed

    order = read_record(wire.Order, folder.order_folder(chosen) / "order.json")
    # Before the journal: an order that ends between the two looks would seem to have been cut off in its last state but one.
    live = holder == chosen
    entries = read_journal(folder.order_folder(chosen) / JOURNAL)
    if order is None and not entries:
        return None
    state = entries[-1].state if entries else "SUBMITTED"
    if state not in wire.State.FINAL and not live:
        state = f"INTERRUPTED({state})"
    return wire.OrderStatus(
        order_id=chosen,
        kind="order" if order is None else order.kind,
        state=state,
        live=live,
        since=entries[-1].time if entries else 0.0,
        operator="somebody" if order is None else order.operator,
        reason="its order.json can't be read" if order is None else order.reason,
        service=folder.path.name,
        began=entries[0].time if entries else 0.0,
        resumed=times_resumed(entries),
        touched=is_touched(entries),
        notice=read_record(wire.Fate, folder.order_folder(chosen) / NOTICE_FILE),
    )


def orders_at_work(root: str) -> List[wire.OrderStatus]:
    """The orders of all services of a state root that a living supervisor holds."""
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []
    found = [(folder, lock_holder(folder)) for folder in (StateFolder(root, name) for name in names)]
    statuses = [order_status(folder, holder) for folder, holder in found if holder is not None]
    return [status for status in statuses if status is not None and status.live]
