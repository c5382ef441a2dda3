"""Which processes belong to a lab, and ending them. By pid and start time, never by a pattern over names.

A process belongs to the lab when it descends from the lab's SSH server, was recorded by a stand-in, carries the lab's
folder in its environment, or was started with a path under the lab's hosts. The first would do by itself, were it not for
a server that crashed: its descendants have moved to PID 1 by then.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.lab.layout import MARKER, Layout

_END_SECONDS = 10.0


@dataclass(frozen=True)
class LabProcess:
    """A process of this user, as one look at /proc showed it."""

    pid: int
    start_time: int
    parent: int
    arguments: tuple[bytes, ...]

    @property
    def title(self) -> str:
        return b" ".join(self.arguments).decode(errors="replace").strip() or "?"


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat, clock ticks since boot; 0 when there is no such process or it has ended."""
    fields = _stat(pid)
    return 0 if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def own_processes() -> dict[int, LabProcess]:
    """All living processes of this user."""
    found: dict[int, LabProcess] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            arguments = tuple((entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0"))
        except OSError:
            continue
        fields = _stat(int(entry.name))
        if fields is not None and fields[0] not in ("Z", "X"):
            found[int(entry.name)] = LabProcess(int(entry.name), int(fields[19]), int(fields[1]), arguments)
    return found


def server_pid(layout: Layout) -> int | None:
    """The SSH server's process, None when it does not run."""
    try:
        record = json.loads(layout.server_record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return int(record["pid"]) if start_time(record["pid"]) == record["start_time"] else None


def members(layout: Layout) -> list[LabProcess]:
    """Every process of the lab but the SSH server and the one that asks, with its parents."""
    table = own_processes()
    server = server_pid(layout)
    recorded = _recorded(layout)
    spared = _self_and_parents(table) | ({server} if server else set())
    hosts = os.fsencode(layout.directory / "hosts") + b"/"
    return [
        process
        for process in table.values()
        if process.pid not in spared
        and (
            recorded.get(process.pid) == process.start_time
            or (server is not None and _descends(process, server, table))
            or any(argument.startswith(hosts) for argument in process.arguments)
            or _carries_marker(process.pid, layout)
        )
    ]


def _recorded(layout: Layout) -> dict[int, int]:
    records: dict[int, int] = {}
    for path in layout.directory.glob("hosts/*/processes/*.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        records[record["pid"]] = record["start_time"]
    return records


def _self_and_parents(table: dict[int, LabProcess]) -> set[int]:
    chain: set[int] = set()
    pid = os.getpid()
    while pid and pid not in chain:
        chain.add(pid)
        pid = table[pid].parent if pid in table else 0
    return chain


def _descends(process: LabProcess, ancestor: int, table: dict[int, LabProcess]) -> bool:
    seen: set[int] = set()
    parent = process.parent
    while parent in table and parent not in seen:
        if parent == ancestor:
            return True
        seen.add(parent)
        parent = table[parent].parent
    return parent == ancestor


def _carries_marker(pid: int, layout: Layout) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"{MARKER}={layout.directory}") in environment.split(b"\0")


def end_members(layout: Layout) -> list[LabProcess]:
    """SIGKILL to every member until none is found any more; returns those that are still there after ten seconds.

    Without ceremony: nothing of a lab is worth a drain, and a supervisor that saw its server stop in good order would
    bring it back.
    """
    remaining: list[LabProcess] = []

    def none_left() -> bool:
        remaining[:] = members(layout)
        for process in remaining:
            kill(process.pid, process.start_time)
        return not remaining

    wait_until(none_left, Deadline(_END_SECONDS))
    return remaining


def kill(pid: int, started: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal one process, unless the number has come to mean another one by now."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_time(pid) == started:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
