"""What a server runs under besides its command line, environment and folder: groups, umask, limits. Read from /proc, and given to systemd.

The names of limits are setrlimit(2)'s, which systemd takes too (systemd.exec(5), "Process Properties"); /proc/PID/limits has its own
(fs/proc/base.c, lnames).
"""

import re
from typing import Dict, List, Optional

from orchestrator.agent import wire

_LIMITS = {
    "Max cpu time": "CPU",
    "Max file size": "FSIZE",
    "Max data size": "DATA",
    "Max stack size": "STACK",
    "Max core file size": "CORE",
    "Max resident set": "RSS",
    "Max processes": "NPROC",
    "Max open files": "NOFILE",
    "Max locked memory": "MEMLOCK",
    "Max address space": "AS",
    "Max file locks": "LOCKS",
    "Max pending signals": "SIGPENDING",
    "Max msgqueue size": "MSGQUEUE",
    "Max nice priority": "NICE",
    "Max realtime priority": "RTPRIO",
    "Max realtime timeout": "RTTIME",
}
_COLUMNS = re.compile(r"\s{2,}")

OUR_LIMITS: Dict[str, List[Optional[int]]] = {"NOFILE": [1048576, 1048576], "MEMLOCK": [None, None]}
"""What a launch gets that was not found anywhere."""
OUR_UMASK = 0o022


def read_conditions(pid: int) -> Optional[wire.Conditions]:
    """Those of a process; None when it has gone or may not be looked at."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            known = status.read()
        with open(f"/proc/{pid}/limits", encoding="ascii", errors="replace") as limits:
            return parse_conditions(known, limits.read())
    except (OSError, KeyError, ValueError, IndexError):
        return None


def parse_conditions(status: str, limits: str) -> wire.Conditions:
    """From the text of /proc/PID/status and /proc/PID/limits.

    Raises:
        KeyError, ValueError, IndexError: they are not that.
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return wire.Conditions(
        group=int(fields["Gid"].split()[1]),
        groups=[int(word) for word in fields["Groups"].split()],
        umask=int(fields["Umask"], 8),
        limits=parse_limits(limits),
    )


def parse_limits(text: str) -> Dict[str, List[Optional[int]]]:
    """Soft and hard limits of /proc/PID/limits, by setrlimit's names.

    Raises:
        ValueError: a limit is no number.
    """
    rows = (_COLUMNS.split(line.strip()) for line in text.splitlines()[1:])
    return {_LIMITS[row[0]]: [_bound(row[1]), _bound(row[2])] for row in rows if len(row) >= 3 and row[0] in _LIMITS}


def systemd_settings(conditions: Optional[wire.Conditions], own_group: int) -> List[str]:
    """The settings by which a unit has these conditions. `own_group` is the group that its user brings along."""
    limits = OUR_LIMITS if conditions is None else conditions.limits
    # systemd takes a raw nice of 0 for 1 (basic/rlimit-util.c), and 0 is what a unit has anyway.
    settings = [f"Limit{name}={_words(bounds)}" for name, bounds in limits.items() if (name, bounds[0]) != ("NICE", 0)]
    if conditions is None:
        return settings
    settings.append(f"UMask={conditions.umask:04o}")
    if conditions.group != own_group:
        settings.append(f"Group={conditions.group}")
    if conditions.groups:
        settings.append(f"SupplementaryGroups={' '.join(map(str, conditions.groups))}")
    return settings


def _bound(word: str) -> Optional[int]:
    return None if word == "unlimited" else int(word)


def _words(bounds: List[Optional[int]]) -> str:
    return ":".join("infinity" if bound is None else str(bound) for bound in bounds)
