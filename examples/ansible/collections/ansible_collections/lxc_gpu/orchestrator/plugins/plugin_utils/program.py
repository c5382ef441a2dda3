"""Running the program and reading its answer: one JSON document on standard output, and a documented exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PACKAGE = "lxc-gpu-orchestrator"
LAST_WORDS = 20
"""Lines of standard error that are kept: what there is to go by where the answer is no document."""
STOP_SECONDS = 10.0
"""From SIGTERM to SIGKILL. The program says within a second what goes on without it."""


class ProgramMissingError(Exception):
    """The program can't be run on this controller; the message says what to do."""


@dataclass(frozen=True)
class Answer:
    """How one call of the program ended.

    Attributes:
        exit_code: as the table in the program's README has them; negative where a signal ended it.
        document: empty where it wrote none.
        said: the last lines of its progress.
    """

    command: Sequence[str]
    exit_code: int
    document: Mapping[str, Any] = field(default_factory=dict)
    said: Sequence[str] = ()


def find_program(named: str | None) -> str:
    """The program: the one that was named, the one beside Ansible's own Python, or the one on the PATH.

    Raises:
        ProgramMissingError: there is none.
    """
    if named is not None:
        path = str(Path(named).expanduser())
        if shutil.which(path) is None:
            raise ProgramMissingError(f"{path} (option executable) is no program on this controller")
        return path
    beside = Path(sys.executable).parent / "orchestrator"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("orchestrator")
    if found is None:
        raise ProgramMissingError(
            f"this controller has no program orchestrator: pip install {PACKAGE} into Ansible's own environment, or into the execution "
            "environment's image; or name it with the option executable"
        )
    return found


def ask(command: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], None]) -> Answer:
    """Run `command` to its end; `hear` gets each line of its progress as it comes.

    Whatever interrupts this ends the program too, which leaves a change that was begun to the box, where it goes on by itself.

    Raises:
        ProgramMissingError: it can't be started.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise ProgramMissingError(f"{command[0]} can't be started: {error.strerror}") from error
        try:
            said = _listen(process, hear)
            exit_code = process.wait()
        finally:
            _end(process)
        return Answer(list(command), exit_code, _document(output), said)


def _listen(process: subprocess.Popen[str], hear: Callable[[str], None]) -> list[str]:
    said: list[str] = []
    for line in process.stderr or ():
        text = line.rstrip()
        hear(text)
        said = [*said, text][-LAST_WORDS:]
    return said


def _end(process: subprocess.Popen[str]) -> None:
    """Nothing to do where it has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _document(output: IO[str]) -> dict[str, Any]:
    output.seek(0)
    try:
        read = json.load(output)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
