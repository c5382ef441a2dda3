"""Somebody at a terminal: the program on a pseudo-terminal of its own, and a shell into which whole blocks of commands are pasted."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

Reply = str | Callable[[], str]
"""What is typed at a question; a function does something first."""

_QUESTION = re.compile(rb"step (\S+): [^\r\n]*\[q\]uit: ")


def answer_steps(argv: Sequence[str], environment: Mapping[str, str], answers: Mapping[str, Reply], patience: float) -> tuple[int, str]:
    """Run a runbook on a terminal and answer each step's question, ``y`` where `answers` has none; the exit code and all that was shown."""
    master, slave = pty.openpty()
    variables = {**environment, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(list(argv), env=variables, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown, answered = b"", 0
    try:
        while True:
            with suppress(OSError):
                data = os.read(master, 65536)
                shown += data
                if data:
                    asked = list(_QUESTION.finditer(shown))
                    for question in asked[answered:]:
                        answer = answers.get(question[1].decode(), "y")
                        os.write(master, (answer if isinstance(answer, str) else answer()).encode() + b"\n")
                    answered = len(asked)
                    continue
            return process.wait(timeout=patience), shown.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(master)


class PastedShell:
    """An interactive shell behind `argv` (an ssh, say) on a terminal. What is pasted runs as if a person had pasted it."""

    def __init__(self, argv: Sequence[str], patience: float = 60.0) -> None:
        master, slave = pty.openpty()
        self._terminal = master
        self._process = subprocess.Popen(list(argv), stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self._pastes = 0
        self._patience = patience
        self.transcript = ""

    def __enter__(self) -> PastedShell:
        self.paste("exec bash --noediting -i")  # readline would echo what is pasted, which then looks like its output
        self.paste("stty -echo; PS1= PS2=; unset PROMPT_COMMAND")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):
            os.close(self._terminal)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def paste(self, block: str) -> str:
        """Paste lines and wait until the shell has come to their end; what they printed.

        Raises:
            TimeoutError: they did not end within `patience` seconds; the message has what was printed.
        """
        self._pastes += 1
        # Split in the middle, so that an echo of what was typed is not taken for its output.
        mark = f"pasted-{self._pastes}-ends"
        self._write(f"{block.rstrip()}\nprintf '%s%s\\n' pasted-{self._pastes} -ends\n".encode())
        printed = self._read_until(mark.encode())
        self.transcript += f"$ {block.rstrip()}\n{printed}"
        return printed

    def _write(self, data: bytes) -> None:
        """In pieces, as a terminal holds 4096 bytes; what comes back is left for the reader."""
        while data:
            data = data[os.write(self._terminal, data[:1024]) :]

    def _read_until(self, mark: bytes) -> str:
        shown, deadline = b"", time.monotonic() + self._patience
        while mark not in shown:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            data = b""
            if ready:
                with suppress(OSError):
                    data = os.read(self._terminal, 65536)
            shown += data
            if not data:
                raise TimeoutError(f"no end of what was pasted within {self._patience:g} s\n{shown.decode(errors='replace')}")
        return shown.partition(mark)[0].decode(errors="replace").replace("\r\n", "\n")
