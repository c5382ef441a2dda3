"""The program as its operator types it, each command with all that it said kept in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_TERM_SECONDS = 10.0


@dataclass(frozen=True)
class Answer:
    """How a command ended. `exit_code` is None where its time was up; `document` is what it printed as JSON, empty where it was none."""

    exit_code: int | None
    document: dict[str, Any]
    errors: str
    seconds: float
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """How the order ended, empty where there was none."""
        return self.document.get("result") or {}


class Running:
    """A command at work."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str], directory: Path, folder: Path) -> None:
        self.folder = folder
        self._argv = list(argv)
        self._began = time.monotonic()
        with (folder / "stdout.json").open("wb") as output, (folder / "stderr.txt").open("wb") as errors:
            self.process = subprocess.Popen(
                self._argv,
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def finish(self, seconds: float) -> Answer:
        """Wait for its end, and end it (SIGTERM, then SIGKILL) where that takes more than `seconds`."""
        code: int | None
        try:
            code = self.process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            code = None
            self.end()
        return self._answer(code)

    def kill(self) -> Answer:
        """End it the way a laptop's battery does."""
        self.process.send_signal(signal.SIGKILL)
        return self._answer(self.process.wait(_TERM_SECONDS))

    def end(self) -> None:
        """End it where it still runs; an order that it watches goes on."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_TERM_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_TERM_SECONDS)

    def _answer(self, code: int | None) -> Answer:
        seconds = time.monotonic() - self._began
        told = {"argv": self._argv, "exit_code": code, "seconds": round(seconds, 2)}
        (self.folder / "command.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        errors = (self.folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")
        return Answer(code, _document(self.folder / "stdout.json"), errors, seconds, self.folder)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


class Operator:
    """Somebody at a laptop, with an inventory and a folder for runs. Several commands may be at work at once."""

    def __init__(self, inventory: Path, folder: Path, habits: Sequence[str] = ()) -> None:
        self._inventory = inventory
        self._folder = folder
        self._habits = habits
        self._lock = threading.Lock()
        self._home = folder / "laptop"
        for name in ("laptop", "commands", "runs"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def begin(self, verb: str, *flags: str) -> Running:
        """Start a verb with ``--json``; nobody is at the keyboard."""
        argv = [sys.executable, "-m", "orchestrator", verb, "--json", "--inventory", str(self._inventory), *self._habits, *flags]
        return Running(argv, self._environment(), self._home, self._fresh(verb))

    def ask(self, verb: str, *flags: str, seconds: float) -> Answer:
        """Run a verb to its end."""
        running = self.begin(verb, *flags)
        try:
            return running.finish(seconds)
        finally:
            running.end()

    def run(self, argv: Sequence[str], name: str, environment: dict[str, str], seconds: float) -> Answer:
        """Run another program to its end, kept like a verb."""
        running = Running(argv, environment, self._home, self._fresh(name))
        try:
            return running.finish(seconds)
        finally:
            running.end()

    def _fresh(self, name: str) -> Path:
        with self._lock:
            number = len(list((self._folder / "commands").iterdir())) + 1
            folder = self._folder / "commands" / f"{number:03}-{name}"
            folder.mkdir()
            return folder

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR", "LD_LIBRARY_PATH"}}
        path = [str(REPOSITORY), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
        return {**kept, "HOME": str(self._home), "PYTHONPATH": ":".join(path), "ORCHESTRATOR_RUNS": str(self._folder / "runs")}
