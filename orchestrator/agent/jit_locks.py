"""Locks in the caches of compiled kernels that a launch may wait for in vain: held by a process of somebody else, or left behind.

FlashInfer (0.6, 0.7) locks files by flock, which ends with its holder; PyTorch's extensions (torch/utils/file_baton.py) wait
for a file named ``lock`` to be removed, which nobody does after a kill.
"""

import os
from pathlib import Path
from typing import AbstractSet, Dict, Iterator, List

from orchestrator.agent import wire
from orchestrator.agent.launch_files import find_account
from orchestrator.agent.refusal import AgentRefusal

_MOST_ENTRIES = 50_000
"""A cache on a slow network file system must not hold up the message of a failure."""


def foreign_locks(launch: wire.Launch, own: AbstractSet[int], since: float, root: Path = Path("/proc")) -> List[str]:
    """One line for each such lock.

    Args:
        launch: by its user and variables the caches are found.
        own: process numbers of the launch: what they hold is released in time.
        since: Unix time of the launch; a ``lock`` that is older was left behind.
    """
    holders = _flock_holders(root)
    found: List[str] = []
    for path in _lock_files(_caches(launch)):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if os.path.basename(path) == "lock":
            if status.st_mtime < since:
                found.append(f"{path}: left behind {since - status.st_mtime:.0f} s before this launch")
            continue
        foreign = [pid for pid in holders.get(status.st_ino, []) if pid not in own and _has_open(root, pid, path)]
        found += [f"{path}: held by process {pid} ({_name(root, pid)})" for pid in foreign]
    return found


def _caches(launch: wire.Launch) -> List[str]:
    environment = launch.environment
    home = environment.get("HOME") or _home(launch)
    cache = environment.get("XDG_CACHE_HOME", os.path.join(home, ".cache"))
    return [
        os.path.join(environment.get("FLASHINFER_WORKSPACE_BASE", home), ".cache", "flashinfer"),
        environment.get("TORCH_EXTENSIONS_DIR", os.path.join(cache, "torch_extensions")),
    ]


def _home(launch: wire.Launch) -> str:
    try:
        return find_account(launch.user).home
    except AgentRefusal:
        return "/root"


def _lock_files(folders: List[str]) -> Iterator[str]:
    left = _MOST_ENTRIES
    for folder in folders:
        for parent, subfolders, names in os.walk(folder):
            left -= len(names) + len(subfolders)
            if left < 0:
                return
            yield from (os.path.join(parent, name) for name in sorted(names) if name == "lock" or name.endswith(".lock"))


def _flock_holders(root: Path) -> Dict[int, List[int]]:
    """Inode -> process numbers, from /proc/locks (fs/locks.c); its device number differs from stat's on overlayfs and btrfs."""
    try:
        text = (root / "locks").read_text(encoding="utf-8")
    except OSError:
        return {}
    holders: Dict[int, List[int]] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        inode = fields[5].rpartition(":")[2]
        if inode.isdigit() and fields[4].isdigit():
            holders.setdefault(int(inode), []).append(int(fields[4]))
    return holders


def _has_open(root: Path, pid: int, path: str) -> bool:
    """An inode's number alone may be another file system's."""
    real = os.path.realpath(path)
    try:
        return any(os.readlink(str(link)) == real for link in (root / str(pid) / "fd").iterdir())
    except OSError:
        return False


def _name(root: Path, pid: int) -> str:
    try:
        return (root / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "gone"
