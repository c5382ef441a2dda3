"""Run folders: everything an operator's command saw, kept as files next to where it was typed.

::

    RUNS/20261129T031407Z-relaunch-gpu1-glm5/     mode 700, files 600
      run.json        command line, versions, operator, inventory names
      plan.json       what was shown before the question
      events.jsonl    every event, written as it arrived
      journal.jsonl   the order's journal as it lies on the box
      server.log      head and tail of the server's log
      result.json     how it ended
      timings.json    decode timings, old and new
      hook-before-1.txt   what a command around the order said; notice.json: what became of the notice of its end
      measure.json    a decode timing by batch size, with what it depends on
      sweep.jsonl     what a sweep has tried so far, synced line by line; sweep.json: what it has found
      roll.jsonl      how far a roll has come, synced line by line; roll.json: how it has ended
      budget.json     where the time of a decode step goes, by timing its parts
      profile.json    the same by a trace; beside it the traces, one a rank (*.trace.json.gz)

RUNS is ``$ORCHESTRATOR_RUNS``, or ``runs`` in the working directory.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.agent import wire
from orchestrator.results.hook_run import HookRun
from orchestrator.results.redaction import Redactor

ENVIRONMENT_VARIABLE = "ORCHESTRATOR_RUNS"


def runs_root() -> Path:
    """The folder that holds the run folders."""
    return Path(os.environ.get(ENVIRONMENT_VARIABLE) or "runs").expanduser()


def operator_name() -> str:
    """Who types, as the box's journal names them: ``user@hostname``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class RunFolder:
    """One run's files. A file that can't be written is a warning, said once: it never fails what the operator asked for.

    As an observer it records what arrives; see :class:`orchestrator.flows.observer.Observer`.
    """

    def __init__(self, path: Path, redactor: Redactor, warn: Callable[[str], None]) -> None:
        self.path = path
        self._held: list[tuple[str, str, int]] | None = []
        self._redactor = redactor
        self._warn = warn
        self._warned = False
        self._hooks: list[str] = []

    @classmethod
    def create(
        cls,
        verb: str,
        names: Sequence[str],
        redactor: Redactor,
        warn: Callable[[str], None],
        root: Path | None = None,
        command: Sequence[str] | None = None,
    ) -> RunFolder:
        """The folder of a run of `verb` that concerns `names` (host, service, ...), with its ``run.json``.

        Nothing is on disk until :meth:`begin`: a run that changes nothing leaves no folder behind.
        """
        started = time.time()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started))
        run = cls((root or runs_root()).absolute() / "-".join([stamp, verb, *names]), redactor, warn)
        run.keep(
            "run.json",
            {
                "schema": "orchestrator.run/1",
                "verb": verb,
                "names": list(names),
                "command": list(sys.argv if command is None else command),
                "directory": os.getcwd(),
                "operator": operator_name(),
                "started": started,
                "orchestrator": orchestrator.__version__,
                "python": platform.python_version(),
            },
        )
        return run

    @classmethod
    def reopen(cls, path: Path, redactor: Redactor, warn: Callable[[str], None]) -> RunFolder:
        """The folder of a run that goes on."""
        run = cls(path, redactor, warn)
        run._held = None
        return run

    def begin(self) -> None:
        """Make the folder, and write what it was given so far."""
        if self._held is None:
            return
        held, self._held = self._held, None
        with self._tolerant():
            self._make_folder()
        for name, text, disposition in held:
            self._write(name, text, disposition)

    def _make_folder(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        wanted = self.path
        for number in range(2, 1000):
            try:
                self.path.mkdir(mode=0o700)
            except FileExistsError:
                self.path = wanted.with_name(f"{wanted.name}-{number}")
            else:
                return

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(f"this run can't be kept in {self.path}: {error.strerror or error}")

    @property
    def kept(self) -> bool:
        """Whether the folder is there and everything could be written so far."""
        return self._held is None and not self._warned

    def keep(self, name: str, data: Any) -> None:
        """Write JSON data or a wire type as one file."""
        document = json.dumps(self._redactor.data(wire.to_json(data)), indent=2, ensure_ascii=False)
        self._write(name, document + "\n", os.O_TRUNC)

    def keep_text(self, name: str, text: str) -> None:
        """Write text as one file."""
        self._write(Path(name).name, self._redactor.text(text), os.O_TRUNC)

    def keep_bytes(self, name: str, data: bytes) -> None:
        """Append to one file that is no text, such as a compressed trace: nothing in it is masked. The folder must have begun."""
        with self._tolerant():
            descriptor = os.open(self.path / Path(name).name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)

    def event(self, kind: str, data: Any) -> None:
        """Append one line to ``events.jsonl``."""
        line = {"time": time.time(), "kind": kind, "data": self._redactor.data(wire.to_json(data))}
        self._write("events.jsonl", json.dumps(line, ensure_ascii=False) + "\n", os.O_APPEND)

    def _write(self, name: str, text: str, disposition: int) -> None:
        if self._held is not None:
            self._held.append((name, text, disposition))
            return
        with self._tolerant():
            descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | disposition, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)

    def note(self, text: str) -> None:
        self.event("note", {"text": text})

    def warn(self, text: str) -> None:
        self.event("warning", {"text": text})

    def hide(self, values: Sequence[str]) -> None:
        self._redactor.add(values)

    def plan(self, plan: Any) -> None:
        self.keep("plan.json", plan)

    def state(self, entry: wire.StateEntry) -> None:
        self.event(wire.EventKind.STATE, entry)

    def progress(self, progress: wire.Progress) -> None:
        self.event(wire.EventKind.PROGRESS, progress)

    def log(self, text: str) -> None:
        self.event(wire.EventKind.LOG, {"text": text})

    def result(self, result: wire.OrderResult) -> None:
        self.keep("result.json", result)
        if result.baseline or result.measured:
            self.keep(
                "timings.json",
                {"schema": "orchestrator.timings/1", "baseline": result.baseline, "measured": result.measured},
            )

    def collected(self, collected: wire.Collected) -> None:
        for name, text in collected.files.items():
            self.keep_text(name, text)

    @property
    def kept_in(self) -> str | None:
        return str(self.path) if self.kept else None

    def hook(self, run: HookRun) -> None:
        self._hooks.append(run.when)
        self.keep_text(f"hook-{run.when}-{self._hooks.count(run.when)}.txt", run.text())
        self.event("hook", {"when": run.when, "command": list(run.command), "status": run.status, "ending": run.ending})

    def notice(self, fate: wire.Fate) -> None:
        self.keep("notice.json", fate)
        self.event("notice", fate)


class RunFolders:
    """The run folders that one command makes for each of several runs, all about the same `names`."""

    def __init__(self, names: Sequence[str], redactor: Redactor, warn: Callable[[str], None]) -> None:
        self._names = names
        self._redactor = redactor
        self._warn = warn

    def new(self, verb: str) -> RunFolder:
        """The folder of another run of `verb`, which is made when it begins."""
        return RunFolder.create(verb, self._names, self._redactor, self._warn)

    def again(self, path: Path) -> RunFolder:
        """The folder of a run that goes on."""
        return RunFolder.reopen(path, self._redactor, self._warn)


def last_dark_seconds(host: str, service: str, root: Path | None = None) -> float | None:
    """How long the newest kept relaunch of `service` on `host` left it without an answer; None when none is known."""
    suffix = f"-relaunch-{host}-{service}"
    try:
        folders = sorted((path for path in (root or runs_root()).iterdir() if path.name.endswith(suffix)), reverse=True)
    except OSError:
        return None
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            if result.get("dark_seconds") is not None and result.get("state") != wire.State.DOWN:
                return float(result["dark_seconds"])
    return None
