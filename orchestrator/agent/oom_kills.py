"""Kills by the kernel's OOM killer, as the memory cgroup of a launch counts them (v2 and v1), for telling them from anybody else's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

from orchestrator.agent.cgroups import VERSION_1, VERSION_2, field, memberships, text_of


@dataclass(frozen=True)
class OomKills:
    """What was counted between two readings.

    `kills`: processes of the launch's cgroup that an OOM killer ended, whatever limit was reached; None where no counter could
    be read. `source`: the file. `machine`: of the whole machine (/proc/vmstat, since Linux 4.13), other containers included.
    """

    kills: Optional[int] = None
    source: str = ""
    machine: Optional[int] = None


class OomMeter:
    """Counts from the moment it is made.

    A unit's own cgroup goes with its last process. Version 2 counts in all cgroups above too, version 1 only in the process's
    own (mm/memcontrol.c, memcg_memory_event), so :meth:`sample` keeps what was last seen.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._root = root
        self._files = _counter_files(pid, root)
        self._before = {path: field(path, "oom_kill") for path in self._files}
        self._last: Dict[Path, int] = {}
        self._machine = self._read_machine()

    def sample(self) -> None:
        """Read the counters while they are there."""
        for path, before in self._before.items():
            now = field(path, "oom_kill")
            if before is not None and now is not None and now >= before:
                self._last[path] = now - before

    def read(self) -> OomKills:
        """What was counted so far: in the cgroup nearest to the process whose counter is there, or was."""
        self.sample()
        now = self._read_machine()
        machine = None if now is None or self._machine is None else now - self._machine
        for path in self._files:
            if path in self._last and (self._last[path] or path.exists()):
                return OomKills(self._last[path], "/" + str(path.relative_to(self._root)), machine)
        return OomKills(machine=machine)

    def _read_machine(self) -> Optional[int]:
        return field(self._root / "proc/vmstat", "oom_kill")


def _counter_files(pid: int, root: Path) -> List[Path]:
    """Files that may count, nearest first: all levels of version 2, of version 1 the process's own alone."""
    files: List[Path] = []
    for controllers, parts in memberships(text_of(root / f"proc/{pid}/cgroup")):
        if controllers == "":
            files += [root.joinpath(mount, *parts[:depth], "memory.events") for mount in VERSION_2 for depth in range(len(parts), -1, -1)]
        elif "memory" in controllers.split(","):
            files.append(root.joinpath(VERSION_1, *parts, "memory.oom_control"))
    return [path for path in files if path.is_file()]
