"""How much memory a process may still take: the machine's, and what limits of memory cgroups (v2 and v1) leave of it.

Page cache counts as free in both, as the kernel takes it back: MemAvailable does so by itself, of a cgroup's usage the inactive file pages
are taken off (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst). A container's /proc/meminfo may be lxcfs's, which shows the
limit of its cgroup; then both say nearly the same.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple

from orchestrator.agent.cgroups import VERSION_1, VERSION_2, field, memberships, text_of

ROOT = Path("/")
GIB = 1 << 30

_SYSTEM_SLICE = "system.slice"
"""Where systemd puts the units that run launches and supervisors."""
_UNLIMITED = 1 << 60
"""Version 1 writes the largest multiple of the page size instead of ``max``."""


@dataclass(frozen=True)
class Limit:
    """A cgroup's limit and what is used of it, bytes. `file` is where the limit stands."""

    file: str
    limit: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)


@dataclass(frozen=True)
class HostMemory:
    """What may be taken, bytes. `available` is the machine's, None where /proc/meminfo does not say; `limits` those of cgroups."""

    available: Optional[int]
    total: int = 0
    limits: Sequence[Limit] = ()

    @property
    def tightest(self) -> Optional[Limit]:
        return min(self.limits, key=lambda limit: limit.free, default=None)

    @property
    def free(self) -> Optional[int]:
        """The tighter of both; None where nobody knows."""
        known = [limit.free for limit in self.limits] + ([] if self.available is None else [self.available])
        return min(known, default=None)

    @property
    def whole(self) -> int:
        """All that there could ever be."""
        return min([limit.limit for limit in self.limits] + ([self.total] if self.total else []), default=0)

    def told(self) -> str:
        """What is free and by which bound, as the beginning of a sentence."""
        tightest = self.tightest
        if tightest is not None and (self.available is None or tightest.free < self.available):
            return f"{size(tightest.free)} of memory are free within {tightest.file} ({size(tightest.limit)})"
        return "how much memory is free is unknown" if self.available is None else f"{size(self.available)} of memory are available"


def read(in_systems_hands: bool, root: Path = ROOT) -> HostMemory:
    """What a new process could take.

    Args:
        in_systems_hands: it would run in a unit of systemd's, below ``system.slice``; else in this process's own cgroup.
    """
    return HostMemory(meminfo("MemAvailable", root), meminfo("MemTotal", root) or 0, _limits(in_systems_hands, root))


def meminfo(name: str, root: Path = ROOT) -> Optional[int]:
    """A field of /proc/meminfo in bytes; None where there is none."""
    for line in text_of(root / "proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    return None


def swapped_out(root: Path = ROOT) -> Optional[int]:
    """Pages that the machine has written to swap since it was booted (``pswpout`` of /proc/vmstat, not a container's own)."""
    return field(root / "proc/vmstat", "pswpout")


def resident(pids: Sequence[int], root: Path = ROOT) -> int:
    """Bytes that processes hold in memory (VmRSS); what they share is counted for each."""
    return sum(_resident(root / f"proc/{pid}/status") for pid in pids)


def size(count: int) -> str:
    """Bytes for a person."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count >> 20} MiB"


def _resident(status: Path) -> int:
    for line in text_of(status).splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


class _Files(NamedTuple):
    """The names that a version has for the same. A limit is the least of `limits`."""

    limits: Tuple[str, ...]
    usage: str
    inactive: str


_FILES_2 = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")
_FILES_1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def _limits(in_systems_hands: bool, root: Path) -> List[Limit]:
    """Every limit above a new process, of whichever version has the memory controller."""
    found = []
    for controllers, parts in memberships(text_of(root / "proc/self/cgroup")):
        below = [*_above_slices(parts), _SYSTEM_SLICE] if in_systems_hands else parts
        if controllers == "":
            places, files = list(VERSION_2), _FILES_2
        elif "memory" in controllers.split(","):
            places, files = [VERSION_1], _FILES_1
        else:
            continue
        folders = [root.joinpath(mount, *below[:depth]) for mount in places for depth in range(len(below), -1, -1)]
        found += [limit for folder in folders for limit in [_limit(folder, files, root)] if limit is not None]
    return found


def _above_slices(parts: List[str]) -> List[str]:
    """Where systemd's own tree begins: a container without a cgroup namespace sees the host's path in front of it."""
    slices = [at for at, part in enumerate(parts) if part.endswith((".slice", ".scope"))]
    return parts[: slices[0]] if slices else []


def _limit(folder: Path, files: _Files, root: Path) -> Optional[Limit]:
    limits = [(int(text), name) for name in files.limits for text in [text_of(folder / name).strip()] if text.isdigit()]
    usage = text_of(folder / files.usage).strip()
    if not limits or not usage.isdigit():
        return None
    limit, name = min(limits)
    if limit >= _UNLIMITED:
        return None
    inactive = field(folder / "memory.stat", files.inactive) or 0
    return Limit("/" + str((folder / name).relative_to(root)), limit, max(0, int(usage) - inactive))
