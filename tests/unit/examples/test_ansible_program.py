"""Running the program from a controller of Ansible's."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils import program


def script(folder: Path, text: str) -> str:
    path = folder / "orchestrator"
    path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_progress_is_heard_as_it_comes_and_the_document_read_at_the_end(tmp_path: Path) -> None:
    heard: list[str] = []
    text = "import sys\nfor n in range(50): print('line', n, file=sys.stderr)\nprint('{\"exit_code\": 6}')\nsys.exit(6)"
    answer = program.ask([script(tmp_path, text)], os.environ, heard.append)
    assert (answer.exit_code, answer.document, len(heard)) == (6, {"exit_code": 6}, 50)
    assert answer.said == [f"line {number}" for number in range(30, 50)]


@pytest.mark.parametrize("printed", ["", "half of {", "[1]"])
def test_what_is_no_document_is_none(tmp_path: Path, printed: str) -> None:
    assert program.ask([script(tmp_path, f"print({printed!r})")], os.environ, lambda line: None).document == {}


def test_whoever_interrupts_the_wait_ends_the_program_which_may_say_goodbye(tmp_path: Path) -> None:
    text = (
        "import pathlib, signal, sys, os\n"
        f"def bye(*_): pathlib.Path({str(tmp_path / 'said')!r}).write_text('bye'); os._exit(143)\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        "print(os.getpid(), file=sys.stderr, flush=True)\n"
        "while True: signal.pause()\n"
    )
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise TimeoutError

    with pytest.raises(TimeoutError):
        program.ask([script(tmp_path, text)], os.environ, interrupt)
    assert (tmp_path / "said").read_text() == "bye"
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_program_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "STOP_SECONDS", 0.05)
    text = "import os, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid(), file=sys.stderr, flush=True)\n"
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.ask([script(tmp_path, text + "while True: signal.pause()")], os.environ, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], signal.SIGTERM)


def test_the_program_beside_ansibles_python_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, elsewhere = tmp_path / "bin", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
        script(folder, "")
    monkeypatch.setattr(sys, "executable", str(beside / "python3"))
    monkeypatch.setenv("PATH", str(elsewhere))
    assert program.find_program(None) == str(beside / "orchestrator")
    (beside / "orchestrator").unlink()
    assert program.find_program(None) == str(elsewhere / "orchestrator")
    assert program.find_program(str(elsewhere / "orchestrator")) == str(elsewhere / "orchestrator")
    (elsewhere / "orchestrator").unlink()
    with pytest.raises(program.ProgramMissingError, match="pip install lxc-gpu-orchestrator"):
        program.find_program(None)
    with pytest.raises(program.ProgramMissingError, match="no program on this controller"):
        program.find_program("/nonexistent/orchestrator")


def test_a_program_that_can_not_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(program.ProgramMissingError, match="can't be started: No such file"):
        program.ask([str(tmp_path / "gone")], os.environ, lambda line: None)
