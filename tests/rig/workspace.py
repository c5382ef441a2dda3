"""What the rig makes outside of pytest's own folders, on record, so that a crashed run's leftovers are found and removed.

Every run has one folder under the machine's temporary folder. Its ``owner.json`` names the process that made it and what that
process started: container, bridge and sshd. A folder whose owner has gone is an orphan; only what its record names is removed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from orchestrator.agent.clock import Deadline, wait_until
from tests.rig.commands import run_command

ROOT = Path(tempfile.gettempdir()) / "orchestrator-rig"


@dataclass(frozen=True)
class PinnedProcess:
    """A process by number and start time (field 22 of /proc/PID/stat), so that a later one of that number is left alone."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> PinnedProcess:
        return cls(pid, read_start_time(pid) or 0)

    @property
    def alive(self) -> bool:
        return read_start_time(self.pid) == self.start_time

    def end(self, seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL to what is left after `seconds`."""
        for number, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
            if not self.alive:
                return
            os.kill(self.pid, number)
            wait_until(lambda: not self.alive, Deadline(wait), 0.02)


def read_start_time(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot; None when it has gone or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass
class Record:
    """What one run started outside of its folder."""

    owner: PinnedProcess
    containers: list[str] = field(default_factory=list)
    bridges: list[str] = field(default_factory=list)
    processes: list[PinnedProcess] = field(default_factory=list)


class Workspace:
    """The folder and the record of one run. Use as a context manager: leaving it removes all that the record names."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(3)
        self.path = ROOT / self.token
        self.record = Record(PinnedProcess.of(os.getpid()))

    def __enter__(self) -> Workspace:
        remove_orphans()
        self.path.mkdir(parents=True, mode=0o755)
        self._save()
        return self

    def __exit__(self, *exception: object) -> None:
        remove(self.path, self.record)

    def folder(self, name: str) -> Path:
        """A folder of that name inside, made when missing."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def will_start_container(self, name: str) -> None:
        """Put a container on record before it is started."""
        self.record.containers.append(name)
        self._save()

    def will_add_bridge(self, name: str) -> None:
        """Put a bridge on record before it is added."""
        self.record.bridges.append(name)
        self._save()

    def started(self, pid: int) -> None:
        """Put a process on record."""
        self.record.processes.append(PinnedProcess.of(pid))
        self._save()

    def _save(self) -> None:
        (self.path / "owner.json").write_text(json.dumps(asdict(self.record)), encoding="utf-8")


def remove_orphans() -> None:
    """Remove what runs left that were killed before they could tidy up."""
    for path in ROOT.glob("*/owner.json"):
        record = _load(path)
        if record is not None and not record.owner.alive:
            remove(path.parent, record)


def remove(path: Path, record: Record) -> None:
    """End and remove what `record` names, then the folder."""
    for container in record.containers:
        run_command(["lxc-stop", "--kill", "--name", container], check=False)
    for process in record.processes:
        process.end()
    for bridge in record.bridges:
        run_command(["ip", "link", "delete", bridge], check=False)
    _remove_tree(path)


def _remove_tree(path: Path) -> None:
    """Remove a folder, unless something is mounted below it: that would be somebody's real files."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    inside = [point for point in mounted if Path(point).is_relative_to(path)]
    if inside:
        raise RuntimeError(f"not removing {path}: {inside[0]} is mounted in it")
    shutil.rmtree(path, onerror=_unless_gone)


def _unless_gone(function: object, path: str, raised: tuple[type[BaseException], BaseException, object]) -> None:
    """Runs that start at the same time remove the same orphans."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def _load(path: Path) -> Record | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Record(
            PinnedProcess(**data["owner"]), data["containers"], data["bridges"], [PinnedProcess(**item) for item in data["processes"]]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
