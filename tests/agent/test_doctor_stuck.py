"""A real process in state D is told of; one that only looks like it is not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.agent import doctor_stuck
from orchestrator.agent.doctor_context import make_context
from orchestrator.agent.procfs import read_process
from orchestrator.agent.wire import Verdict
from orchestrator.agent.wire_host import DoctorRequest, PlaceKind
from tests.agent.box import wait_for

PROGRAM = """
#include <unistd.h>
int main(void) { if (vfork() == 0) { for (;;) pause(); } return 0; }
"""
"""vfork(2) keeps the parent in state D until its child has ended or executed something."""


@pytest.fixture(scope="module")
def waiter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("waiter")
    (folder / "waiter.c").write_text(PROGRAM)
    subprocess.run([compiler, "-o", str(folder / "waiter"), str(folder / "waiter.c")], check=True)
    return folder / "waiter"


@pytest.fixture
def start(waiter: Path, tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Starts the program under a name, as somebody else's child; returns its number once it is in state D."""
    shells: list[subprocess.Popen[str]] = []

    def run(name: str) -> int:
        shutil.copy(waiter, tmp_path / name)
        argv = ["sh", "-c", '"$0" & echo $!; wait', str(tmp_path / name)]
        shells.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert shells[-1].stdout is not None
        pid = int(shells[-1].stdout.readline())
        wait_for(f"{name} in state D", lambda: (process := read_process(pid)) is not None and process.state == "D")
        return pid

    yield run
    for shell in shells:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate(timeout=10)


def look(monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    monkeypatch.setattr(doctor_stuck, "WATCH_SECONDS", 0.5)
    return doctor_stuck.check_stuck(make_context(DoctorRequest(PlaceKind.HOST, "/var/lib/orchestrator")))


def test_an_nvidia_smi_that_hangs_is_named(start: Callable[[str], int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start("nvidia-smi")
    (found,) = look(monkeypatch)
    assert found.outcome == "refuse"
    assert any(line.startswith(f"process {pid} (nvidia-smi), state D") for line in found.evidence)


def test_a_program_that_has_nothing_to_do_with_gpus_is_not(start: Callable[[str], int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start("python3")
    assert not any(f"process {pid} " in line for verdict in look(monkeypatch) for line in verdict.evidence)
