"""Named instants before and after each effect that can't be taken back, at which a test may have the process die.

In production nothing is armed and a point costs one comparison. The tests arm one by a file in the service's state folder,
root's alone, that names it and how often it is passed before.
"""

import os
import signal
from pathlib import Path
from typing import Dict, Optional

FILE = "crash-point"
PASSED = "crash-points-passed"
"""Where it exists beside :data:`FILE`, the points that are passed are written to it, a line each: by which the tests enumerate them."""

_armed: Optional[str] = None
_skip = 0
_written: Optional[Path] = None
passed: Dict[str, int] = {}
"""How often each point was passed."""


def arm(folder: Path) -> None:
    """Read what a test wants of this process: ``NAME`` or ``NAME#N``, to die when the point is passed for the N-th time (from 1).

    The file is removed with that: the process that takes over is not meant.
    """
    global _armed, _skip, _written
    _written = folder / PASSED if (folder / PASSED).exists() else None
    try:
        wanted = (folder / FILE).read_text(encoding="utf-8").strip()
        (folder / FILE).unlink()
    except OSError:
        return
    name, _, number = wanted.partition("#")
    _armed, _skip = name, int(number or 1) - 1


def crash_point(name: str) -> None:
    """Pass a named instant; dies here, by SIGKILL, when a test armed it."""
    passed[name] = passed.get(name, 0) + 1
    if _written is not None:
        with _written.open("a", encoding="utf-8") as stream:
            stream.write(name + "\n")
    if name == _armed and passed[name] > _skip:
        os.kill(os.getpid(), signal.SIGKILL)
