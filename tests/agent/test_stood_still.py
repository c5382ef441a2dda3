"""A process that waits on a deadline and is kept from running meanwhile: by SIGSTOP, and by the freezer of a container's cgroup."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.agent.clock import Deadline, wait_until
from tests.agent.box import wait_for

WAITER = """
import sys, time
from orchestrator.agent.clock import Deadline, steady, wait_until
if "watched" in sys.argv:
    steady.start()
began = time.monotonic()
deadline = Deadline(3.0)
print("waiting", flush=True)
wait_until(lambda: False, deadline)
print(time.monotonic() - began, *[gap.seconds for gap in steady.gaps()], flush=True)
"""
STILL = 6.0
"""Longer than the deadline of the waiter, and than what counts as a gap."""
FREEZER = Path("/sys/fs/cgroup/freezer")


@contextlib.contextmanager
def waiting(*words: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", WAITER, *words], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def ended(child: subprocess.Popen[str]) -> list[float]:
    """How long it waited in all, and the gaps that it saw."""
    text, _ = child.communicate(timeout=30)
    return [float(word) for word in text.split()]


def stay(seconds: float) -> None:
    wait_until(lambda: False, Deadline(seconds))


@pytest.mark.slow
def test_a_stopped_process_still_has_its_time_when_it_goes_on() -> None:
    with waiting("watched") as child:
        child.send_signal(signal.SIGSTOP)
        stay(STILL)
        child.send_signal(signal.SIGCONT)
        waited, *gaps = ended(child)

    assert len(gaps) == 1
    assert STILL - 1 < gaps[0] < STILL + 3
    assert 2.5 < waited - gaps[0] < 4.5


@pytest.mark.slow
def test_without_a_heartbeat_its_time_is_gone() -> None:
    with waiting() as child:
        child.send_signal(signal.SIGSTOP)
        stay(STILL)
        child.send_signal(signal.SIGCONT)
        waited, *gaps = ended(child)

    assert gaps == []
    assert STILL - 1 < waited < STILL + 2


@pytest.fixture
def frozen_group() -> Iterator[Callable[[str], None]]:
    group = FREEZER / f"orchestrator-still-{os.getpid()}"
    group.mkdir()

    def write(text: str) -> None:
        (group / ("cgroup.procs" if text.isdigit() else "freezer.state")).write_text(text)

    yield write
    write("THAWED")
    wait_for("an empty group", lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs root and the v1 freezer, which LXC freezes a container with")
@pytest.mark.slow
def test_a_frozen_process_still_has_its_time_when_it_is_thawed(frozen_group: Callable[[str], None]) -> None:
    with waiting("watched") as child:
        frozen_group(str(child.pid))
        frozen_group("FROZEN")
        stay(STILL)
        frozen_group("THAWED")
        waited, *gaps = ended(child)

    assert len(gaps) == 1
    assert 2.5 < waited - gaps[0] < 4.5
