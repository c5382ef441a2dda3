"""Running one of the operator's own commands here, bounded in time and in what is kept of its output."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

KEPT_BYTES = 32 * 1024
"""Of the head and of the tail of each stream."""
_REAP_SECONDS = 2.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Finished:
    """How a command ended; `problem` says why there is no `status`."""

    status: int | None
    seconds: float
    output: str = ""
    errors: str = ""
    problem: str = ""


def run_here(command: Sequence[str], seconds: float, given: bytes) -> Finished:
    """Run a command with `given` on its standard input, in a process group of its own, without a shell.

    When its time is over, and when this is left early (Ctrl-C), the whole group is killed. What it has left running when it ends by
    itself is left alone, and not waited for.
    """
    begun = time.monotonic()
    with tempfile.TemporaryFile() as facts:  # no pipe, which a command that reads nothing would leave full
        facts.write(given)
        facts.seek(0)
        try:
            child = subprocess.Popen(command, stdin=facts, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return Finished(None, 0.0, problem=f"could not be started: {reason}")
    assert child.stdout is not None
    assert child.stderr is not None
    streams = {child.stdout: _Kept(), child.stderr: _Kept()}
    try:
        in_time = _listen(child, streams, begun + seconds)
    finally:
        _end(child)
        for stream in streams:
            stream.close()
    output, errors = (kept.text() for kept in streams.values())
    took = time.monotonic() - begun
    if not in_time:
        return Finished(None, took, output, errors, f"did not end within {seconds:g} s and was killed")
    return Finished(child.returncode, took, output, errors)


class _Kept:
    """The head and the tail of a stream."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, piece: bytes) -> None:
        room = KEPT_BYTES - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        self._left_out += max(0, len(self._tail) - KEPT_BYTES)
        del self._tail[:-KEPT_BYTES]

    def text(self) -> str:
        middle = f"\n[... {self._left_out} bytes left out ...]\n".encode() if self._left_out else b""
        return bytes(self._head + middle + self._tail).decode("utf-8", "replace")


def _listen(child: subprocess.Popen[bytes], streams: dict[IO[bytes], _Kept], end: float) -> bool:
    """Take what it says until it has ended (True) or `end` has come. Others may hold its streams open for longer."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ)
        while time.monotonic() < end:
            ended = child.poll() is not None
            # With nothing left to hear, select() would return at once.
            if not selector.get_map() and not ended:
                time.sleep(_LOOK_SECONDS)
            heard = selector.select(0.0 if ended else _LOOK_SECONDS) if selector.get_map() else []
            for key, _ in heard:
                piece = os.read(key.fd, 65536)
                streams[key.fileobj].add(piece)  # type: ignore[index]
                if not piece:
                    selector.unregister(key.fileobj)
            if ended and not heard:
                return True
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # state D: nothing ends it, and nobody has to wait for it
        child.wait(_REAP_SECONDS)
