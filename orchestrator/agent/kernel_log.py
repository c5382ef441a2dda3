"""The kernel's log of this boot, read from /dev/kmsg without waiting (Documentation/ABI/testing/dev-kmsg)."""

import errno
import os
import re
import time
from typing import List, NamedTuple, Optional, Sequence

from orchestrator.agent.kernel_files import KernelFiles

DEVICE = "/dev/kmsg"
_RECORD_BYTES = 8192
"""A read into less than one record's length is EINVAL; the kernel's own programs use this (CONSOLE_EXT_LOG_MAX)."""
_SECONDS = 3.0
"""For the whole log: a machine that logs faster than it is read must not hold us."""
_HEADER = re.compile(r"\d+,(\d+),(\d+),[^;\n]*;(.*)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


class Record(NamedTuple):
    """One message. `seconds` since boot, time asleep not counted; `sequence` counts from 0 at boot."""

    sequence: int
    seconds: float
    text: str


class KernelLog(NamedTuple):
    """What is left of this boot's log. `problem` says why there is none; `source` where it was asked."""

    records: Sequence[Record]
    problem: Optional[str] = None
    source: str = DEVICE

    @property
    def begins(self) -> float:
        """Seconds since boot before which messages have been overwritten, 0 where none has."""
        return self.records[0].seconds if self.records and self.records[0].sequence > 0 else 0.0


def read_kernel_log(files: KernelFiles) -> KernelLog:
    """All that the kernel still has of this boot. Needs CAP_SYSLOG where kernel.dmesg_restrict is 1."""
    try:
        descriptor = os.open(files.path(DEVICE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return KernelLog([], error.strerror or str(error))
    try:
        return KernelLog(parse_records(_read_all(descriptor)))
    except OSError as error:
        return KernelLog([], error.strerror or str(error))
    finally:
        os.close(descriptor)


def parse_records(data: bytes) -> List[Record]:
    """The messages in what was read; lines that are no record (a record's own properties, or garbage) are left out."""
    found = []
    for line in data.decode("utf-8", "replace").split("\n"):
        match = _HEADER.match(line)
        if match is not None:
            found.append(Record(int(match[1]), int(match[2]) / 1e6, _unescape(match[3])))
    return found


def _unescape(text: str) -> str:
    """The kernel writes control characters, such as line breaks within one message, as ``\\x0a``."""
    return " ".join(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), text).split())


def _read_all(descriptor: int) -> bytes:
    pieces: List[bytes] = []
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        try:
            piece = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno != errno.EPIPE:  # EPIPE: overwritten while we read; the next read goes on behind it
                raise
            continue
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)
