"""Reading what a supervisor wrote: follow an order, read logs, collect what an order left."""

import contextlib
import os
import time
from pathlib import Path
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.history import RESULT, UNTOUCHED, has_left_router, is_only_staged
from orchestrator.agent.journal import JOURNAL, PROGRESS, Tail, order_status, read_journal
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import Scrubber, launch_scrubber
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.wire import State

Emit = Callable[[str, Any], None]

_POLL = 0.05
_RESTARTED_WITHIN = 5.0
_ENDED_EVERY = 1.0
"""Seconds between two looks at whether a launch whose log is followed has ended: each reads all of /proc."""
_BEGUN_SECONDS = 30.0
"""A launch that has said nothing and has no process for this long was never started."""
_CHUNK = 1024 * 1024
_COLLECT_LIMIT = 512 * 1024
"""Bytes of the head and of the tail of a file that `collect` brings back."""


def follow(reference: wire.OrderReference, emit: Emit) -> wire.OrderResult:
    """Emit an order's states and progress from where the caller left off, until it has ended, then what it left.

    Raises:
        AgentRefusal: there is no such order.
    """
    folder = StateFolder(reference.state_root, reference.service)
    path = folder.order_folder(reference.order_id)
    if not (path / "order.json").exists():
        what = f"there is no order {reference.order_id} of {reference.service} in {folder.orders}"
        raise AgentRefusal("refused", what, next_step="fab status")
    reader = _Reader(path, reference.after)
    held = Deadline(_restart_seconds())
    while True:
        status = order_status(folder, reference.order_id)
        reader.read(emit)
        if status is None or status.live:
            held = Deadline(_restart_seconds())
        elif status.state != "INTERRUPTED(SUBMITTED)" and (held.passed or not status.state.startswith("INTERRUPTED")):
            emit(wire.EventKind.COLLECTED, collect(folder, reference.order_id))
            return _ended(path, status)
        time.sleep(_POLL)


def _restart_seconds() -> float:
    """How long nobody may hold an order before it counts as cut off: systemd starts a supervisor that was killed again."""
    from orchestrator.agent import systemd

    return _RESTARTED_WITHIN if systemd.is_available() else 0.0


class _Reader:
    """Merges the two files: what went on inside a state comes after that state and before the next."""

    def __init__(self, path: Path, after: int) -> None:
        self._after = after
        self._journal = Tail(path / JOURNAL)
        self._progress = Tail(path / PROGRESS, from_end=after > 0)
        self._waiting: List[Any] = []

    def read(self, emit: Emit) -> None:
        entries = self._journal.read()
        self._waiting += self._progress.read()
        for entry in entries:
            self._emit_progress_before(entry, emit)
            if entry.get("sequence", 0) > self._after:
                emit(wire.EventKind.STATE, entry)
        for item in self._waiting:
            emit(wire.EventKind.PROGRESS, item)
        self._waiting = []

    def _emit_progress_before(self, entry: Any, emit: Emit) -> None:
        earlier = [item for item in self._waiting if item.get("sequence", 0) < entry.get("sequence", 0)]
        self._waiting = self._waiting[len(earlier) :]
        for item in earlier:
            emit(wire.EventKind.PROGRESS, item)


_EXIT_CODES = {State.DONE: 0, State.REFUSED: 3, State.RESTORED: 6}
_CUT_OFF = {
    State.DRAINING: "the old server was being stopped",
    State.STOPPING: "the old server was being stopped",
    State.ACTIVATING: "a server had been started and may come up unwatched",
    State.LOADING: "a server had been started and may come up unwatched",
    State.ANSWERING: "a server had been started and may come up unwatched",
    State.VERIFIED: "the new server served",
    State.MEASURED: "the new server served",
}


def _ended(path: Path, status: wire.OrderStatus) -> wire.OrderResult:
    """The result that was kept; where there is none (a full disk, a killed supervisor), what the journal alone tells."""
    result = read_record(wire.OrderResult, path / "result.json")
    return told_by_journal(status.order_id, read_journal(path / JOURNAL), status.state) if result is None else result


def told_by_journal(order_id: str, entries: List[wire.StateEntry], state: str = "") -> wire.OrderResult:
    """The result of an order that left none. `state` is how its state reads (``INTERRUPTED(...)``) where it has not ended."""
    last = entries[-1]
    if RESULT in last.data:
        with contextlib.suppress(wire.WireError):
            return wire.from_json(wire.OrderResult, last.data[RESULT])
    if last.state in State.FINAL:
        service = str(last.data.get("service", "unchanged" if last.state == State.REFUSED else "unknown"))
        return wire.OrderResult(order_id, last.state, _EXIT_CODES.get(last.state, 7), last.reason, service, next_step="fab status")
    if last.state in UNTOUCHED:
        summary = "the program that carried out this order is gone; it had not touched anything"
        step = "fab status"
        if has_left_router(entries):
            summary += " but the router, which may have lost the server"
            step = "fab roll --repair"
        return wire.OrderResult(order_id, state or last.state, 3, summary, "unchanged", next_step=step)
    if is_only_staged(entries):
        summary = "the program that carried out this order is gone; the old server was left alone, and a launch beside it may be left"
        return wire.OrderResult(order_id, state or last.state, 5, summary, "unchanged", next_step="fab resume")
    summary = "the program that carried out this order is gone; its journal says how to go on"
    service = f"unknown; when it was cut off, {_CUT_OFF.get(last.state, 'nothing served')}"
    return wire.OrderResult(order_id, state or last.state, 7, summary, service, next_step="fab resume")


def logs(request: wire.LogRequest, emit: Emit) -> wire.LogEnd:
    """Emit the last lines of a launch's log and, when asked, what is added to it.

    A named launch is followed until it has ended. Without a name the service is followed: when its launch has ended, that is said,
    and the next one's log is read as soon as there is one.
    """
    folder = StateFolder(request.state_root, request.service)
    passed = set(folder.launch_ids())
    launch_id = request.launch_id or _newest_launch(folder)
    log = _Log(folder, launch_id)
    log.last_lines(request.lines, emit, whole=request.follow)
    if not request.follow:
        return wire.LogEnd(launch_id, str(log.path))
    while True:
        log.follow(emit)
        _tell(emit, "ended", f"launch {launch_id} has ended{log.exit_status()}")
        if request.launch_id is not None:
            return wire.LogEnd(launch_id, str(log.path))
        launch_id = _next_launch(folder, passed)
        passed.add(launch_id)
        log = _Log(folder, launch_id)
        _tell(emit, "launched", f"launch {launch_id} has begun")


def _tell(emit: Emit, phase: str, detail: str) -> None:
    emit(wire.EventKind.PROGRESS, wire.Progress("LOGS", phase, 0.0, detail))


def _next_launch(folder: StateFolder, passed: AbstractSet[str]) -> str:
    """Wait for a launch that was not there before and that has a log."""
    while True:
        for identifier in folder.launch_ids():
            if identifier not in passed and (folder.launch_folder(identifier) / "server.log").exists():
                return identifier
        time.sleep(_ENDED_EVERY)


class _Log:
    """A launch's log, read by whole lines: a secret may not be cut in two before it is taken out."""

    def __init__(self, folder: StateFolder, launch_id: str) -> None:
        self.path = folder.launch_folder(launch_id) / "server.log"
        self._folder = folder
        self._launch_id = launch_id
        self._scrubber = _scrubber(folder, launch_id)
        self._begun_by = Deadline(_BEGUN_SECONDS)
        self._offset = 0

    def last_lines(self, count: int, emit: Emit, *, whole: bool) -> None:
        """Emit the last lines so far; only `whole` ones where the rest of the last is still to be read."""
        try:
            stream = self.path.open("rb")
        except OSError as error:
            what = f"no log of launch {self._launch_id}: {error.strerror} ({self.path})"
            raise AgentRefusal("refused", what, next_step="fab rollback --list   # the launches that the box remembers") from None
        with stream:
            start = max(0, stream.seek(0, os.SEEK_END) - max(_CHUNK // 16, 400 * count))
            stream.seek(start)
            text = stream.read()
        text = text[: text.rfind(b"\n") + 1] if whole else text
        self._offset = start + len(text)
        lines = text.decode("utf-8", "replace").splitlines()
        lines = lines[1:] if start and len(lines) > 1 else lines  # the first one was cut in two
        self._emit(lines[-count:] if count else [], emit)

    def follow(self, emit: Emit) -> None:
        """Emit what is added until the launch has ended, that included."""
        looked, gone = time.monotonic(), False
        while True:
            ended = gone
            if self._read(emit, whole=not ended):
                continue
            if ended:
                return
            time.sleep(_POLL)
            if time.monotonic() - looked >= _ENDED_EVERY:
                looked, gone = time.monotonic(), self._has_ended()

    def exit_status(self) -> str:
        """For the end of a sentence: how it ended, where that was recorded."""
        from orchestrator.agent.launch_files import read_exit_status

        status = read_exit_status(self._folder.launch_folder(self._launch_id) / "exit")
        return "" if status is None else f": {status.code} {status.status}"

    def _has_ended(self) -> bool:
        """Whether it was started and nothing of it is left."""
        from orchestrator.agent.runner import runner_of

        launch = self._folder.read_launch(self._launch_id)
        if launch is None:
            return True
        started = self.exit_status() or self.path.stat().st_size > 0 or self._begun_by.passed
        return bool(started) and not runner_of(self._folder, launch).members()

    def _read(self, emit: Emit, *, whole: bool) -> bool:
        """Emit what was added, only `whole` lines or all of it; whether there was anything."""
        with self.path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size < self._offset:
                self._offset = 0  # it was cut down to its limit
            stream.seek(self._offset)
            text = stream.read(_CHUNK)
        if whole or len(text) == _CHUNK:
            text = text[: text.rfind(b"\n") + 1] or (text if len(text) == _CHUNK else b"")
        self._offset += len(text)
        self._emit(text.decode("utf-8", "replace").splitlines(), emit)
        return bool(text)

    def _emit(self, lines: List[str], emit: Emit) -> None:
        for line in lines:
            emit(wire.EventKind.LOG, {"text": self._scrubber.text(line)})


def _newest_launch(folder: StateFolder) -> str:
    identifiers = folder.launch_ids()
    if not identifiers:
        raise AgentRefusal(
            "refused",
            f"nothing was launched from here yet: {folder.launches} is empty",
            next_step="the log of a server that somebody started by hand is where that person sent it",
        )
    return identifiers[-1]


def collect(folder: StateFolder, order_id: str) -> wire.Collected:
    """What an order left on the box for the operator's run folder: journal, progress and server logs, scrubbed."""
    path = folder.order_folder(order_id)
    order = read_record(wire.Order, path / "order.json")
    launch_id = order.launch_id if order is not None else None
    sources: Dict[str, Path] = {JOURNAL: path / JOURNAL, PROGRESS: path / PROGRESS, "supervisor.log": path / "supervisor.log"}
    if launch_id is not None:
        sources["server.log"] = folder.launch_folder(launch_id) / "server.log"
    result = read_record(wire.OrderResult, path / "result.json")
    if result is not None and result.launch_id not in (None, launch_id):
        sources["restored-server.log"] = folder.launch_folder(str(result.launch_id)) / "server.log"
    launch_ids = [item for item in (launch_id, result.launch_id if result else None) if item]
    scrubber = _scrubber(folder, *launch_ids, more=[] if order is None else order_secrets(order))
    files: Dict[str, str] = {}
    truncated: List[str] = []
    for name, source in sources.items():
        text = _head_and_tail(source)
        if text is None:
            continue
        text = text.partition("\0")[0] if name == JOURNAL else text  # reserved room, of an order that was cut off
        files[name] = scrubber.text(text)
        if source.stat().st_size > 2 * _COLLECT_LIMIT:
            truncated.append(name)
    return wire.Collected(files, truncated)


def _head_and_tail(path: Path) -> Optional[str]:
    try:
        with path.open("rb") as stream:
            head = stream.read(_COLLECT_LIMIT)
            size = os.fstat(stream.fileno()).st_size
            if size <= len(head):
                return head.decode("utf-8", "replace")
            stream.seek(max(len(head), size - _COLLECT_LIMIT))
            tail = stream.read()
    except OSError:
        return None
    left_out = size - len(head) - len(tail)
    middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
    return (head + middle + tail).decode("utf-8", "replace")


def _scrubber(folder: StateFolder, *launch_ids: str, more: Sequence[str] = ()) -> Scrubber:
    return launch_scrubber([launch for launch in map(folder.read_launch, launch_ids) if launch is not None], more)


def order_secrets(order: wire.Order) -> List[str]:
    """What of an order itself, beside its launches, must not be seen."""
    if order.afterwards is None or order.afterwards.webhook is None:
        return []
    from orchestrator.agent.webhook_address import secret_parts

    return secret_parts(order.afterwards.webhook)


def wait_for_journal(path: Path, seconds: float) -> bool:
    """Wait until an order's journal has its first whole line."""
    return wait_until(lambda: bool(Tail(path / JOURNAL).read()), Deadline(seconds))
