"""The demonstration: ``python -m orchestrator.lab.demo`` brings a lab up, relaunches on both of its hosts, takes it down.

Every command is the real program in a process of its own, over SSH, through the agent. Only the far end is made up.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from orchestrator.errors import OrchestratorError, RolledBackError
from orchestrator.lab import control

_INTRODUCTION = """\
Two made-up GPU hosts on this machine: an SSH server and stand-ins for SGLang and nvidia-smi, all of them ordinary processes of
yours under {directory}. Both serve GLM-5-NVFP4 with `--moe-runner-backend auto`, started by hand as somebody would have.
The program is the real one; the decode speeds of a stand-in are SET IN A TABLE, NOT MEASURED, and its loads are short.
All of it is removed at the end, with the run folders that the commands below say they kept.
"""

_CONCLUSION = """\
That was the whole of it in {seconds:.0f} s. The lab is gone, and nothing of it is left. To play with one yourself:
  {program} lab.up
"""


@dataclass(frozen=True)
class Step:
    """One command, what it shows, and how it should end."""

    about: str
    words: tuple[str, ...]
    exit_code: int = 0


STEPS = (
    Step("The hosts in the lab's inventory.", ("hosts",)),
    Step(
        "A B200 (compute capability 10.0): the backend works there, and its table entry is faster.",
        ("relaunch", "--backend", "flashinfer_cutedsl", "--host", "lab-b200", "--yes"),
    ),
    Step(
        "An RTX PRO 6000 (12.0): the same backend fails after the load. The old server is put back, exit code 6.",
        ("relaunch", "--backend", "flashinfer_cutedsl", "--host", "lab-rtx6000", "--yes"),
        RolledBackError.exit_code,
    ),
    Step("What serves there now.", ("status", "--host", "lab-rtx6000")),
)


def run_step(step: Step, folder: Path, inventory: Path) -> bool:
    """Show and run one command; whether it ended as it should."""
    say(f"\n# {step.about}\n$ orchestrator {' '.join(step.words)}\n")
    environment = {**os.environ, "ORCHESTRATOR_INVENTORY": str(inventory)}
    done = subprocess.run([sys.executable, "-m", "orchestrator", *step.words], env=environment, cwd=folder, check=False)
    if done.returncode != step.exit_code:
        say(f"exit code {done.returncode}, expected {step.exit_code}\n")
        return False
    say(f"(exit code {done.returncode})\n")
    return True


def demonstrate(folder: Path) -> bool:
    """Run all steps in a lab under `folder`, which is taken down however it ends; whether all of them ended as they should."""
    lab = folder / "lab"
    began = time.monotonic()
    say(_INTRODUCTION.format(directory=lab))
    try:
        info = control.up(lab, start_servers=True)
        outcomes = [run_step(step, folder, info.inventory) for step in STEPS]
    finally:
        control.down(lab)
    say("\n" + _CONCLUSION.format(seconds=time.monotonic() - began, program=program()))
    return all(outcomes)


def program() -> str:
    """How the program is called from the shell that runs this one: by its name only where that is found."""
    beside = Path(sys.executable).with_name("orchestrator")
    if shutil.which("orchestrator"):
        return "orchestrator"
    return os.path.relpath(beside) if beside.is_file() else f"{sys.executable} -m orchestrator"


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """0 when everything ended as it should, 1 when not, 130 when interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="orchestrator-demo-") as folder:
            return 0 if demonstrate(Path(folder)) else 1
    except KeyboardInterrupt:
        say("\ninterrupted; the lab is gone\n")
        return 130
    except OrchestratorError as error:
        say("\n".join([error.message, *error.evidence, *([f"next: {error.next_step}"] if error.next_step else [])]) + "\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
