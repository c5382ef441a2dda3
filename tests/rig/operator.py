"""The operator: the program under test as its own process, pointed at an inventory of the rig."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rig.documents import checked
from tests.rig.keyboard import Reply, answer_steps


@dataclass(frozen=True)
class Answer:
    """How one call ended: its exit code, the JSON document and what went to standard error."""

    exit_code: int
    document: dict[str, Any]
    errors: str

    def expect(self, exit_code: int) -> Answer:
        """Return itself.

        Raises:
            AssertionError: it ended with another exit code; the message is what an operator would have seen.
        """
        if self.exit_code != exit_code:
            result = json.dumps(self.document.get("result"), indent=1)
            raise AssertionError(f"exit {self.exit_code}, not {exit_code}\n{self.errors}\n{result}")
        return self


@dataclass(frozen=True)
class Operator:
    """Somebody at a laptop: a home folder of their own, no SSH agent, an inventory, and flags that they always give."""

    inventory: Path
    home: Path
    habits: tuple[str, ...] = ()

    def ask(self, verb: str, *flags: str, timeout: float = 540.0) -> Answer:
        """Run one verb to its end with ``--json``; nobody is at the keyboard."""
        done = subprocess.run(
            self._argv(verb, *flags),
            env=self._environment(),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Answer(done.returncode, checked(done.stdout), done.stderr)

    def show(self, verb: str, *flags: str, timeout: float = 540.0) -> subprocess.CompletedProcess[str]:
        """Run one verb to its end without ``--json``: what a person would see, into a pipe."""
        return subprocess.run(
            [part for part in self._argv(verb, *flags) if part != "--json"],
            env=self._environment(),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def answer(self, verb: str, *flags: str, replies: Mapping[str, Reply], timeout: float = 300.0) -> tuple[int, str]:
        """Run a runbook on a terminal; see :func:`tests.rig.terminal.answer_steps`."""
        argv = [part for part in self._argv(verb, *flags) if part != "--json"]
        return answer_steps(argv, {**self._environment(), "ORCHESTRATOR_RUNS": str(self.runs)}, replies, timeout)

    @property
    def runs(self) -> Path:
        """Where the run folders lie."""
        return self.home / "runs"

    @contextmanager
    def watching(self, verb: str, *flags: str) -> Iterator[Running]:
        """Run one verb beside the test, which leaves when it has seen enough; the process is ended then."""
        errors = self.home / "watched-errors.txt"
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                self._argv(verb, *flags),
                env=self._environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
            )
        try:
            yield Running(process, errors)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=10)

    def _argv(self, verb: str, *flags: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator", verb, "--json", "--inventory", str(self.inventory), *self.habits, *flags]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
        return kept | {"HOME": str(self.home), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@dataclass(frozen=True)
class Running:
    """A call in flight."""

    process: subprocess.Popen[bytes]
    errors: Path

    def said(self, text: str) -> bool:
        """Whether `text` has appeared among its progress."""
        return text in self.errors.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """End it the way a laptop's battery does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)
