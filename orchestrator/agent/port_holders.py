"""Who holds a port that a launch was to have, for a person to read."""

from pathlib import Path
from typing import Sequence

from orchestrator.agent import wire
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.procfs import read_process


def foreign_listener(port: int, pids: Sequence[int]) -> wire.Failure:
    """The failure of a launch whose `port` these processes listen on, which are not its own; none: nobody who can be seen here."""
    if not pids:
        summary = f"something answers on port {port} whose process can't be seen from here"
        return wire.Failure(Category.PORT_IN_USE, summary, [], "look for it as root, on the host and in its other containers: `ss -ltnp`")
    evidence = [f"process {pid}: {_program(pid)}{_starter(pid)}" for pid in pids]
    return wire.Failure(
        Category.PORT_IN_USE,
        f"port {port} is held by another process, {pids[0]}",
        evidence,
        f"end it or move the service: `ps -fp {pids[0]}`",
    )


def _starter(pid: int) -> str:
    """Who started it, for a loop that starts the old server again."""
    process = read_process(pid)
    return "" if process is None or process.parent <= 1 else f", started by process {process.parent} ({_program(process.parent)})"


def _program(pid: int) -> str:
    """The first words of a command line: the rest may hold keys."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return "gone"
    shown = words[: words.index("-c") + 1] if "-c" in words[:3] else words[:3]
    return " ".join(shown) + (" ..." if len(words) > len(shown) else "")
