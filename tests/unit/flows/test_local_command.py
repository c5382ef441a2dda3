"""The operator's own commands, run here: bounded, without a shell, and killed whole."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.flows.local_command import KEPT_BYTES, Finished, run_here


def python(code: str, *arguments: str, seconds: float = 20.0, given: bytes = b"") -> Finished:
    return run_here([sys.executable, "-c", code, *arguments], seconds, given)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_it_gets_its_facts_and_its_arguments_as_they_are() -> None:
    done = python("import sys; print(sys.argv[1:], sys.stdin.read()); print('oh', file=sys.stderr)", "$HOME; `id`", given=b'{"a": 1}')
    assert (done.status, done.output, done.errors, done.problem) == (0, "['$HOME; `id`'] {\"a\": 1}\n", "oh\n", "")


def test_a_status_and_a_signal_are_told_apart() -> None:
    assert python("raise SystemExit(3)").status == 3
    assert python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)").status == -signal.SIGTERM


@pytest.mark.parametrize(("command", "said"), [(["/no/such/program"], "No such file"), (["/"], "Permission denied"), (["a\0b"], "null")])
def test_what_can_not_be_started_says_so(command: list[str], said: str) -> None:
    done = run_here(command, 5.0, b"")
    assert done.status is None
    assert done.problem.startswith("could not be started: ")
    assert said in done.problem


def test_one_that_reads_nothing_does_not_block_on_its_facts() -> None:
    assert python("pass", given=b"x" * 1_000_000).status == 0


@pytest.mark.parametrize("closes", ["", "import os; os.close(1); os.close(2); "])
def test_one_that_does_not_end_is_killed_with_all_its_children(tmp_path: Path, closes: str) -> None:
    code = (
        "import subprocess, sys, time, pathlib; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); print('so far', flush=True); " + closes + "time.sleep(600)"
    )
    begun = time.monotonic()
    done = python(code, str(tmp_path / "pid"), seconds=2.0)
    assert time.monotonic() - begun < 5.0
    assert (done.status, done.problem, done.output) == (None, "did not end within 2 s and was killed", "so far\n")
    pid = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not lives(pid), Deadline(5.0))


def test_what_it_leaves_running_with_its_output_open_is_not_waited_for(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, pathlib; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); print('begun')"
    )
    begun = time.monotonic()
    done = python(code, str(tmp_path / "pid"))
    pid = int((tmp_path / "pid").read_text())
    try:
        assert time.monotonic() - begun < 10.0
        assert (done.status, done.output) == (0, "begun\n")
        assert lives(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_of_much_output_the_head_and_the_tail_are_kept() -> None:
    done = python(f"import sys; sys.stdout.write('a' * {KEPT_BYTES} + 'b' * 5_000_000 + 'c' * {KEPT_BYTES})")
    assert (done.output[:KEPT_BYTES], done.output[-KEPT_BYTES:]) == ("a" * KEPT_BYTES, "c" * KEPT_BYTES)
    assert "[... 5000000 bytes left out ...]" in done.output
    assert len(done.output) < 3 * KEPT_BYTES


def test_ctrl_c_kills_it_at_once(tmp_path: Path) -> None:
    code = "import os, sys, time, pathlib; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    path = tmp_path / "pid"

    def interrupt() -> None:
        wait_until(lambda: path.exists() and path.read_text() != "", Deadline(20.0))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        python(code, str(path), seconds=60.0)
    assert time.monotonic() - begun < 25.0
    pid = int(path.read_text())
    assert wait_until(lambda: not lives(pid), Deadline(5.0))
