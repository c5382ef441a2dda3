"""A program on a pseudo terminal of its own, with somebody who types and reads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.agent.clock import Deadline, wait_until

PATIENCE = 60.0
"""Seconds; a loaded machine takes its time to start ten Pythons."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What the program writes, as it came (`raw`) and without colours and movements of the cursor (`text`)."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.raw = ""
        self._master = master
        self._closed = False

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.raw)

    def wait_for(self, words: str, seconds: float = PATIENCE, after: int = 0) -> float:
        """Read until `words` are there, behind the first `after` characters; how long that took."""
        return self.wait_until(lambda text: words in text[after:], seconds)

    def wait_until(self, holds: Callable[[str], bool], seconds: float = PATIENCE) -> float:
        """Read until something holds of the text so far; how long that took."""
        begun = time.monotonic()
        assert wait_until(lambda: holds(self.read()), Deadline(seconds), 0.01), self.text
        return time.monotonic() - begun

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Type Ctrl-C."""
        self.type("\x03")

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Read to the end and return how the program ended."""
        assert wait_until(lambda: self.read() is not None and self.process.poll() is not None, Deadline(seconds), 0.02), self.text
        self.read()
        return self.process.wait(1)

    def close(self) -> None:
        """Close the window: the program gets SIGHUP, and nothing can be written any more."""
        if not self._closed:
            self._closed = True
            os.close(self._master)

    def read(self) -> str:
        """All of the text so far."""
        with suppress(OSError):
            self.raw += os.read(self._master, 65536).decode("utf-8", "replace")
        return self.text


@contextmanager
def on_a_terminal(
    argv: Sequence[str], environment: Mapping[str, str], *, columns: int = 200, folder: Path | None = None
) -> Iterator[Terminal]:
    """Start a program on a terminal of that width; it is ended with the block."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    words = ["setsid", "--ctty", *argv]  # its controlling terminal, so that a typed Ctrl-C is a SIGINT (util-linux; it becomes the program)
    process = subprocess.Popen(words, env={**environment, "TERM": "xterm"}, cwd=folder, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    terminal = Terminal(process, master)
    try:
        yield terminal
    finally:
        process.kill()
        process.wait()
        terminal.close()
