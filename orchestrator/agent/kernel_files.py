"""Files of the kernel (/proc, /sys, /dev) read and written below a root, so that a tree of files can stand in for a machine.

What is read belongs to the path that is shown: with the usual root they are the same.
"""

import glob
import os
import re
from typing import List, NamedTuple, Optional, Tuple


class Reading(NamedTuple):
    """What a file or a command said. `value` None: it could not be read, `problem` says why; `source` is where it was asked."""

    value: Optional[str]
    source: str
    problem: Optional[str] = None
    error_number: int = 0
    """errno of a failed read, 0 where there is none."""


class KernelFiles:
    """The files below `root`. Paths given and returned are those of the machine itself, without the root."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def path(self, path: str) -> str:
        """Where `path` really lies."""
        return self._root + path

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def glob(self, pattern: str) -> List[str]:
        """Paths that match, in the order of the numbers in them (``cpu2`` before ``cpu10``)."""
        found = (path[len(self._root) :] for path in glob.glob(self.path(pattern)))
        return sorted(found, key=natural)

    def text(self, path: str) -> Optional[str]:
        """The file's text without outer white space; None where it can't be read."""
        return self.read(path).value

    def read(self, path: str) -> Reading:
        """The file's text without outer white space, or why there is none."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as stream:
                return Reading(stream.read().strip(), path)
        except OSError as error:
            return Reading(None, path, error.strerror or str(error), error.errno or 0)

    def write(self, path: str, value: str) -> None:
        """Write in one write(2), as sysfs wants it; the file must exist.

        Raises:
            OSError: the kernel refuses; its number says why (EROFS, EACCES, EINVAL, EBUSY...).
        """
        descriptor = os.open(self.path(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode() + b"\n")
        finally:
            os.close(descriptor)


def natural(text: str) -> "List[Tuple[int, int, str]]":
    """A sort key by which numbers in text count as numbers."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", text)]
