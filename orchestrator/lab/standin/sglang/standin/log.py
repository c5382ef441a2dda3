"""SGLang's log format: ``[2026-11-29 11:59:38 TP0] text`` on stderr, uvicorn's lines with their level."""

from __future__ import annotations

import sys
import time

_rank = ""


def set_rank(label: str) -> None:
    """What a scheduler adds to the time, ``TP0``; the main process has none."""
    global _rank
    _rank = f" {label}" if label else ""


def log(text: str) -> None:
    """One line in one write, so that processes that share a file never mix within a line."""
    raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{_rank}] {text}\n")


def uvicorn(text: str, level: str = "INFO") -> None:
    log(f"{level + ':':<10}{text}")


def raw(text: str) -> None:
    """Text without the time: tracebacks, progress bars. A reader that has gone away is not this process's affair."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return
