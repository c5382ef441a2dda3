"""Where the kernel keeps what it counts of a process's memory cgroup: version 2, version 1, and systemd's hybrid of both."""

from pathlib import Path
from typing import List, Optional, Tuple

VERSION_2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
"""Where version 2 is mounted: alone, or beside version 1 (systemd's hybrid), where it rarely has the memory controller."""
VERSION_1 = "sys/fs/cgroup/memory"


def memberships(text: str) -> List[Tuple[str, List[str]]]:
    """The lines of /proc/PID/cgroup: controllers (none for version 2) and the path's parts."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(fields[1], _parts(fields[2])) for fields in lines if len(fields) == 3]


def field(path: Path, name: str) -> Optional[int]:
    """One number of a file of ``name number`` lines; None where there is none."""
    for line in text_of(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def text_of(path: Path) -> str:
    """A file's text, empty where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _parts(path: str) -> List[str]:
    return [part for part in path.split("/") if part and part != ".."]
