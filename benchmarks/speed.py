"""Print how fast the program is, against plain ssh and the same steps by hand: ``python -m benchmarks.speed``.

Exit 1 when a limit is exceeded. The server is the lab's stand-in, whose load and stop take set times, so that what is left is ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab_box import LabBox, lab_box
from benchmarks.timing import EndWatch, command, interleave

REPOSITORY = Path(__file__).resolve().parents[1]
FAB = str(Path(sys.executable).with_name("fab"))
BACKENDS = (("flashinfer_cutlass", ["--moe-runner-backend", "flashinfer_cutlass"]), ("auto", ["--moe-runner-backend", "auto"]))


@dataclass(frozen=True)
class Result:
    """One line of the report. `unit` is ``x`` for a ratio, ``s`` for seconds; without a limit it is only told."""

    name: str
    value: float
    unit: str
    limit: float | None
    detail: str

    @property
    def holds(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        bound = "" if self.limit is None else f"limit {self.limit:g} {self.unit}   {'ok' if self.holds else 'TOO SLOW'}"
        return f"{self.name:44} {self.value:7.2f} {self.unit}   {bound:26}   {self.detail}"


def listing(repeats: int) -> Result:
    """``fab --list`` against the import of Fabric that both need."""
    ours = command([FAB, "--search-root", str(REPOSITORY), "--list"])
    pair = interleave(ours, command([sys.executable, "-c", "import fabric"]), repeats)
    return _ratio("fab --list / python -c 'import fabric'", pair.ratio, 1.5, pair.ours, pair.theirs)


def completing(name: str, words: list[str], repeats: int) -> Result:
    """One Tab after ``relaunch --host`` against the import of Fabric, in the folder of this repository and its inventory."""
    environment = {**os.environ, "ORCHESTRATOR_COMPLETE": "zsh", "ORCHESTRATOR_INVENTORY": str(REPOSITORY / "inventory")}
    ours = command([*words, "--complete", "--", name, "relaunch", "--host", ""], environment)
    pair = interleave(ours, command([sys.executable, "-c", "import fabric"]), repeats)
    return _ratio(f"{name} relaunch --host TAB / 'import fabric'", pair.ratio, 1.5, pair.ours, pair.theirs)


def status(box: LabBox, repeats: int, shell: str, limit: float | None) -> Result:
    """``status`` of a serving server against ``ssh HOST true``, both over OpenSSH's sshd and by the same login shell."""
    box.serving()
    pair = interleave(command(box.program("status")), command(box.ssh("true")), repeats)
    return _ratio(f"fab status / ssh HOST true, {shell}", pair.ratio, limit, pair.ours, pair.theirs)


def teardown_lag(box: LabBox, repeats: int) -> Result:
    """From the end of the server's last process to the end of ``teardown``."""

    def once() -> float:
        box.serving()
        watch = EndWatch(box.members())
        with ThreadPoolExecutor(1) as pool:
            gone = pool.submit(watch.wait)
            return box.call("teardown", "--yes") - gone.result(timeout=10.0)

    return _lag("teardown returns after the last process", [once() for _ in range(repeats)], 0.3)


def ready_lag(box: LabBox, repeats: int) -> Result:
    """From the server's first good answer, seen by somebody who asks all the time, to the journal's ANSWERING."""

    def once() -> float:
        if box.members():
            box.call("teardown", "--yes")
        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(box.first_answer)
            box.call("launch", "--yes")
            return box.journal_time("ANSWERING") - answered.result(timeout=10.0)

    return _lag("ready seen after the first good answer", [once() for _ in range(repeats)], 0.2)


def relaunch_overhead(box: LabBox, repeats: int) -> list[Result]:
    """The steps of a relaunch against the bare ones over ssh, and what the checks before and after them add.

    The steps are those that both have: SIGTERM, wait for the end, start, wait for good answers. By hand nobody compares
    arguments beforehand or scores fixed texts on both servers.
    """
    box.serving()
    turns = _alternate(repeats)
    steps, checks = [], []

    def ours() -> None:
        begin = time.monotonic()
        end = box.call("relaunch", "--backend", next(turns)[0], "--yes", "--no-measure", "--accept-drift", "--sequential")
        steps.append(box.journal_time("ANSWERING") - box.journal_time("DRAINING"))
        checks.append(end - begin - steps[-1])

    def theirs() -> None:
        box.relaunch_by_hand(next(turns)[1])

    pair = interleave(ours, theirs, repeats)
    by_hand = statistics.median(pair.theirs)
    ours_median = statistics.median(steps[1:])
    detail = f"{ours_median:.2f} s against {by_hand:.2f} s by hand"
    return [
        Result("relaunch beyond the same steps by hand", ours_median - by_hand, "s", 1.0, detail),
        Result(
            "  checks before and after it", statistics.median(checks[1:]), "s", None, "comparing arguments, scoring texts on both servers"
        ),
    ]


def _alternate(repeats: int) -> Iterator[tuple[str, list[str]]]:
    """Another backend each time, so that there is always something to change."""
    return (BACKENDS[turn % 2] for turn in range(4 * repeats + 8))


def _ratio(name: str, value: float, limit: float | None, ours: list[float], theirs: list[float]) -> Result:
    return Result(name, value, "x", limit, f"{1000 * statistics.median(ours):.0f} ms against {1000 * statistics.median(theirs):.0f} ms")


def _lag(name: str, lags: list[float], limit: float) -> Result:
    return Result(name, statistics.median(lags), "s", limit, f"median of {len(lags)}, worst {max(lags):.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of what takes seconds; what takes less is repeated four times as often")
    repeats = parser.parse_args().repeats
    results: list[Result] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own_shell = stack.enter_context(lab_box(folder / "own", login_shell=True))
        box = stack.enter_context(lab_box(folder / "plain"))
        measurements: list[Callable[[], list[Result]]] = [
            lambda: [listing(4 * repeats)],
            lambda: [completing("orchestrator", [str(Path(FAB).with_name("orchestrator"))], 4 * repeats)],
            lambda: [completing("fab", [FAB, "--search-root", str(REPOSITORY)], 4 * repeats)],
            lambda: [status(own_shell, 4 * repeats, "login shell", 3.0)],
            lambda: [status(box, 4 * repeats, "bare shell", None)],
            lambda: [teardown_lag(box, repeats)],
            lambda: [ready_lag(box, repeats)],
            lambda: relaunch_overhead(box, repeats),
        ]
        for measure in measurements:
            for result in measure():
                results.append(result)
                print(result, flush=True)
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
