"""What of a router's flags decides what becomes of a request while no worker serves, read off the command line of its process.

Neither sglang-router 0.3.2 nor smg 1.13.0 tells its settings over HTTP, so only who sees the process knows them. Both have the same flags
with the same defaults (their ``--help``).
"""

import re
import socket
from pathlib import Path
from typing import List, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from orchestrator.agent import systemd
from orchestrator.agent.procfs import listening_pids, read_process
from orchestrator.agent.wire_router import RouterSettings

_OFF = ("--disable-retries", "--disable-circuit-breaker", "--disable-health-check")
_NEVER_OPENS = 2**32 - 1
"""What --disable-circuit-breaker stands for."""
_NAMES = ("sglang_router", "sglang-router", "smg")
_TITLES = ("sglang::router", "smg::router")
"""What the Python packages of both write over their own command line (setproctitle)."""
_ARGV = re.compile(r"argv\[\]=(.*?) ; ignore_errors=")


class BadFlagError(ValueError):
    """A flag of the router has a value that it does not take."""


def read_flags(words: Sequence[str], source: str) -> RouterSettings:
    """The settings of a router that was started with these words; what is not named has the router's default.

    Raises:
        BadFlagError: a value is no number.
    """
    defaults = RouterSettings(source=source)
    off = {flag for flag in _OFF if flag in words}
    breaker = _whole(words, "--cb-failure-threshold", 10)
    return RouterSettings(
        attempts=1 if "--disable-retries" in off else max(1, _whole(words, "--retry-max-retries", defaults.attempts)),
        first=_number(words, "--retry-initial-backoff-ms", defaults.first * 1000) / 1000,
        multiplier=_number(words, "--retry-backoff-multiplier", defaults.multiplier),
        longest=_number(words, "--retry-max-backoff-ms", defaults.longest * 1000) / 1000,
        jitter=min(1.0, max(0.0, _number(words, "--retry-jitter-factor", defaults.jitter))),
        breaker_failures=None if "--disable-circuit-breaker" in off or breaker >= _NEVER_OPENS else breaker,
        breaker_seconds=_number(words, "--cb-timeout-duration-secs", defaults.breaker_seconds),
        check_failures=None if "--disable-health-check" in off else _whole(words, "--health-failure-threshold", 3),
        check_successes=_whole(words, "--health-success-threshold", defaults.check_successes),
        check_every=_number(words, "--health-check-interval-secs", defaults.check_every),
        source=source,
    )


def settings_at(url: str) -> Optional[RouterSettings]:
    """The settings of the router at `url`, by the command line of the process that listens there; None where that can't be seen from here.

    The rest of the command line may hold keys, and is not kept.
    """
    address = urlsplit(url)
    if address.hostname is None or not is_here(address.hostname):
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    for pid in sorted(listening_pids(port)):
        words, source = _started_with(pid)
        if words:
            try:
                return read_flags(words, source)
            except BadFlagError:
                return None
    return None


def _started_with(pid: int) -> Tuple[List[str], str]:
    """The words that a router's process was started with, and where they were read; none where it is no router, or nothing tells."""
    words = _command_line(pid)
    if words and words[0].strip() in _TITLES:
        unit = _unit_of(pid)
        found = _ARGV.search(systemd.show(unit, "ExecStart").get("ExecStart", "")) if unit.endswith(".service") else None
        return (found.group(1).split(), f"ExecStart= of {unit}") if found is not None else ([], "")
    if any(name in word for word in words[:4] for name in _NAMES):
        return words, f"the command line of process {pid}"
    return [], ""


def _unit_of(pid: int) -> str:
    process = read_process(pid)
    return "" if process is None else process.cgroup.rpartition("/")[2]


def is_here(host: str) -> bool:
    """Whether an address is one of this place: only such a one can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
                return True
        except OSError:
            continue
    return False


def _command_line(pid: int) -> List[str]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word for word in data.decode("utf-8", "replace").split("\0") if word]


def _value(words: Sequence[str], flag: str) -> Optional[str]:
    """The last value of a flag, as argparse takes it."""
    found: Optional[str] = None
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            found = words[index + 1]
        elif word.startswith(f"{flag}="):
            found = word[len(flag) + 1 :]
    return found


def _number(words: Sequence[str], flag: str, default: float) -> float:
    value = _value(words, flag)
    if value is None:
        return default
    try:
        return float(value)
    except ValueError:
        raise BadFlagError(f"{flag} {value}: not a number") from None


def _whole(words: Sequence[str], flag: str, default: int) -> int:
    value = _number(words, flag, default)
    if value != int(value):
        raise BadFlagError(f"{flag} {value:g}: not a whole number")
    return int(value)
