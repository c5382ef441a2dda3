"""``python -m tests.gpu --python PYTHON --folder FOLDER``: go on with the run that is kept in FOLDER, or begin it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from orchestrator.agent import gpu
from orchestrator.agent.clock import Deadline
from orchestrator.lab.build import free_ports
from tests.gpu import packing, record
from tests.gpu.box import Box
from tests.gpu.record import RunRecord, StepRecord, Verdict
from tests.gpu.setting import Setting, on_cpu, on_gpu
from tests.gpu.stage import SERVING, NotRunError, Stage, Step
from tests.gpu.steps import STEPS

NAMES = [step.name for step in STEPS]
_PREPARED = 75.0
"""Seconds that a launch takes on an H200 with warm caches: for a step that may have to bring a server up first."""
_RESERVE = 15.0
"""Seconds at the end of a call for the archive."""
_VERSIONS = """
import importlib.metadata as packages, json, platform
found = {"python": platform.python_version()}
for name in ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel", "sgl-kernel", "transformers"):
    try:
        found[name] = packages.version(name)
    except packages.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class OutOfTimeError(Exception):
    """A step's time is up."""


def main() -> int:
    """Run what is due; 0 when nothing of it failed, 1 when something did, 2 for a wrong call."""
    parser = _parser()
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "steps.json"
    try:
        _take_over(options.earlier, path)
        kept = record.load(path)
        due = record.chosen_steps(NAMES, kept.steps, options.only, options.again)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    make = on_cpu if options.cpu else on_gpu
    kept.calls += 1
    run = _Run(kept, path, make(options.python.absolute(), options.pythonpath), Deadline(options.seconds), options.out or folder)
    return run.go([step for step in STEPS if step.name in due], stop=options.stop)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__, epilog=f"steps: {', '.join(NAMES)}")
    parser.add_argument("--python", type=Path, required=True, help="the Python that can import sglang")
    parser.add_argument("--pythonpath", default="", help="PYTHONPATH that it needs for that")
    parser.add_argument("--folder", type=Path, required=True, help="where all is kept; a second call with it goes on where the first ended")
    parser.add_argument("--out", type=Path, help=f"where {packing.NAME}, steps.md and steps.json are put at the end (default: FOLDER)")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="no other steps than these")
    parser.add_argument("--again", nargs="+", default=[], metavar="STEP", help="these too, although they have been settled")
    parser.add_argument("--earlier", type=Path, help="steps.json of a run on a machine that is gone, whose settled steps count")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="for this call in all; no step is begun that takes longer than is left"
    )
    parser.add_argument(
        "--stop", action="store_true", help="end all that was started when the call ends; by default the next call finds it"
    )
    parser.add_argument("--cpu", action="store_true", help="rehearse with an SGLang on CPU (make sglang-cpu)")
    return parser


def _take_over(earlier: Path | None, path: Path) -> None:
    """Begin with the steps of a run on another machine, unless this one has begun. Its ports and its GPUs' floor are not this one's."""
    if earlier is None or path.exists():
        return
    if not earlier.is_file():
        raise ValueError(f"there is no {earlier}")
    taken = record.load(earlier)
    taken.settings = {}
    record.save(taken, path)


class _Run:
    """One call of the driver."""

    def __init__(self, kept: RunRecord, path: Path, setting: Setting, deadline: Deadline, out: Path) -> None:
        self._kept = kept
        self._path = path
        self._setting = setting
        self._deadline = deadline
        self._out = out

    def go(self, due: Sequence[Step], *, stop: bool) -> int:
        """Bring the box up, run the steps, keep what was seen."""
        box = self._box()
        try:
            for step in due:
                needed = step.usual + (_PREPARED if step.start == SERVING and not box.listens() else 0.0)
                if self._deadline.left() - _RESERVE < needed:
                    say(f"{step.name}: not begun: it takes about {needed:.0f} s, and {self._deadline.left():.0f} s are left")
                    break
                self._run(step, box)
        except KeyboardInterrupt:
            say("interrupted")
        finally:
            if stop:
                for left in box.take_down():
                    say(f"could not be ended: {left}")
            self._keep()
        failed = [step.name for step in due if step.name in self._kept.failed]
        say(f"failed: {', '.join(failed) or 'nothing'}")
        return 1 if failed else 0

    def _box(self) -> Box:
        settings = self._kept.settings
        if "ports" not in settings:
            settings["ports"] = dict(zip(("ssh", "service", "neighbour"), free_ports(3), strict=True))
        box = Box(self._path.parent, self._setting, settings["ports"])
        box.bring_up()
        if "floor" not in settings:
            settings["floor"] = box.gpu_memory()
        self._kept.machine = self._kept.machine or machine(self._setting)
        record.save(self._kept, self._path)
        return box

    def _run(self, step: Step, box: Box) -> None:
        began = time.time()
        self._put(StepRecord(step.name, Verdict.BEGUN, began=began, call=self._kept.calls))
        say(f"{step.name}: {step.about}")
        limit = (step.limit + (_PREPARED if step.start == SERVING else 0.0)) * self._setting.patience
        seconds = min(limit, self._deadline.left() - _RESERVE)
        stage = Stage(box, self._kept.settings["floor"], Deadline(seconds))
        prepared = 0.0
        try:
            with _limited(seconds):
                if step.needs_gpu and not self._setting.has_gpu:
                    raise NotRunError("needs a GPU")
                stage.prepare(step.start)
                prepared = time.time() - began
                found = step.run(stage)
            verdict, why, seen = (Verdict.FAILED if found.problems else Verdict.PASSED), found.problems, found.seen
            self._kept.columns = found.columns or self._kept.columns
        except NotRunError as error:
            verdict, why, seen = Verdict.NOT_RUN, [str(error)], []
        except OutOfTimeError:
            verdict, why, seen = Verdict.FAILED, [f"not ended within {seconds:.0f} s"], []
        except Exception as error:  # noqa: BLE001 - a step that fails must not take the others with it
            verdict, why, seen = Verdict.FAILED, [f"{type(error).__name__}: {error}"], []
            (self._path.parent / f"traceback-{step.name}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        finally:
            stage.clear()
        self._put(StepRecord(step.name, verdict, why, seen, began, time.time() - began, prepared, self._kept.calls))
        say("\n    ".join([f"{step.name}: {verdict} in {time.time() - began:.0f} s", *why, *seen]))

    def _put(self, step: StepRecord) -> None:
        self._kept.put(step)
        record.save(self._kept, self._path)

    def _keep(self) -> None:
        record.save(self._kept, self._path)
        table = record.table(self._kept, NAMES)
        (self._path.parent / "steps.md").write_text(table, encoding="utf-8")
        self._out.mkdir(parents=True, exist_ok=True)
        size = packing.pack(self._path.parent, self._out / packing.NAME)
        if self._out != self._path.parent:
            for name in ("steps.md", "steps.json"):
                shutil.copyfile(self._path.parent / name, self._out / name)
        say(f"\n{table}\n{self._out / packing.NAME}: {size / 1024:.0f} KiB")


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the block when its time is up."""

    def ring(_number: int, _frame: FrameType | None) -> NoReturn:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def machine(setting: Setting) -> dict[str, str]:
    """What the run's numbers depend on."""
    cards = gpu.read_gpus()
    named = [f"{card.name}, {card.memory_total} MiB, compute capability {card.compute_capability}" for card in cards]
    argv = [str(setting.python), "-c", _VERSIONS]
    environment = {**os.environ, **setting.environment}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    versions = json.loads(done.stdout) if done.returncode == 0 else {"python": f"it ended with {done.returncode}"}
    return {
        "GPU": "; ".join(named) or "none",
        "driver": _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "CUDA compiler": _first_line(["nvcc", "--version"], at=-1),
        "kernel": f"{platform.release()}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "driver of this run": f"Python {platform.python_version()}",
    }


def _first_line(argv: list[str], at: int = 0) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return "not there"
    return (done.stdout.strip().splitlines() or ["it said nothing"])[at]


def say(text: str) -> None:
    """A line for whoever watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
