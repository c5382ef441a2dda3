"""What a runbook's run leaves: one synced line for each thing that was begun, answered and ended, in the run's folder.

``runbook.jsonl`` holds objects with ``event``, ``time`` (Unix) and ``operator``:

    begun       playbook, digest, inputs, host, service     the first line
    resumed     from                                        it was taken up again at that step
    answered    step, question, answer                      by a person, or by a flag
    step        step, command, order_before                 a step was begun; `order_before` is the box's newest order by then
    outcome     step, verdict, exit_code, goes_on, run      how it ended; `seen` says what was seen, or why it was skipped
    ended       how, step, exit_code, because               done, refused, failed or left

A run is taken up again from these lines alone. The last line may be torn by a power cut; it is then no line.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import LockedError
from orchestrator.results.runs import operator_name, runs_root

FILE = "runbook.jsonl"


@dataclass(frozen=True)
class StepRecord:
    """How a step ended. `run` is the run folder that it kept; `goes_on`: the runbook went on after it."""

    step: str
    verdict: str
    exit_code: int
    goes_on: bool
    run: str | None = None


@dataclass(frozen=True)
class CutOff:
    """A step that was begun and whose end is not known. `order_before`: the id of the box's newest order before it, None for none."""

    step: str
    order_before: str | None
    is_change: bool


@dataclass(frozen=True)
class Recorded:
    """What a run's lines say."""

    path: Path
    playbook: str
    digest: str
    host: str
    service: str | None
    inputs: Mapping[str, str]
    outcomes: Mapping[str, StepRecord] = field(default_factory=dict)
    cut_off: CutOff | None = None
    ended: str | None = None

    @property
    def concerns(self) -> tuple[str, str, str | None]:
        return (self.playbook, self.host, self.service)


class RunbookRecord:
    """Writes the lines. Held (flock) while it is open, so that a run is not taken up twice.

    A line that can't be written is told once by `warn`, and the runbook goes on: a full disk here must not stop what is done there.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self._warn = warn
        self._descriptor: int | None = None

    def open(self) -> None:
        """Open the file, which is made where there is none.

        Raises:
            LockedError: somebody is at work on this run.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._give_up(error)
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise LockedError(f"{self.folder.name} is being run by somebody at this moment", next_step="wait until it has ended") from None
        self._end_torn_line()

    def write(self, event: str, **fields: Any) -> None:
        """Append one line and have it on the disk."""
        if self._descriptor is None:
            return
        line = {"event": event, "time": time.time(), "operator": operator_name(), **fields}
        try:
            os.write(self._descriptor, (json.dumps(line, ensure_ascii=False) + "\n").encode())
            os.fsync(self._descriptor)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _end_torn_line(self) -> None:
        assert self._descriptor is not None
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._warn(f"this run can't be kept in {self.folder}, so it can't be resumed: {error.strerror or error}")


def read_record(folder: Path) -> Recorded | None:
    """What the lines in a run's folder say, None where there are none that can be understood."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = [line for line in map(_parsed, text.splitlines()) if line is not None]
    begun = next((line for line in lines if line.get("event") == "begun"), None)
    if begun is None:
        return None
    outcomes: dict[str, StepRecord] = {}
    cut_off: CutOff | None = None
    ended: str | None = None
    for line in lines:
        event, step = line.get("event"), str(line.get("step"))
        if event == "step":
            cut_off = CutOff(step, line.get("order_before"), bool(line.get("is_change")))
        elif event == "outcome":
            cut_off = cut_off if _left_open(line) else None
            outcomes[step] = StepRecord(step, str(line["verdict"]), int(line["exit_code"]), bool(line["goes_on"]), line.get("run"))
        ended = str(line["how"]) if event == "ended" else None
    service = begun["service"]
    return Recorded(
        path=folder,
        playbook=str(begun["playbook"]),
        digest=str(begun["digest"]),
        host=str(begun["host"]),
        service=None if service is None else str(service),
        inputs=dict(begun["inputs"]),
        outcomes=outcomes,
        cut_off=cut_off,
        ended=ended,
    )


def _left_open(outcome: Mapping[str, Any]) -> bool:
    """Whether a step was interrupted here: what it had begun may go on on the box."""
    return bool(outcome.get("verdict") in ("interrupted", "unreachable"))


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def newest_record(verb: str, playbook: str, host: str, service: str | None, root: Path | None = None) -> Recorded | None:
    """The newest run of a playbook on a host and service, by the name of its folder; None where none was kept."""
    try:
        folders = sorted((path for path in (root or runs_root()).absolute().iterdir() if f"-{verb}-" in path.name), reverse=True)
    except OSError:
        return None
    wanted = (playbook, host, service)
    found = (read_record(folder) for folder in folders)
    return next((record for record in found if record is not None and record.concerns == wanted), None)
