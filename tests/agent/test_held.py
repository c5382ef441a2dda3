from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time

from orchestrator.agent import procfs, wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.held import HeldProcesses
from tests.agent.box import Box, is_running

SLEEP = (sys.executable, "-c", "import time; time.sleep(300)")


def test_wait_returns_when_the_last_has_ended_though_nobody_reaps_it(box: Box) -> None:
    pids = [box.start(*SLEEP), box.start(*SLEEP)]
    with HeldProcesses() as held:
        for pid in pids:
            process = procfs.read_process(pid)
            assert process is not None
            assert held.add(process)
            assert not held.add(process), "held already"
        began = time.monotonic()
        held.send(signal.SIGKILL)
        assert held.wait(Deadline(10))
        assert time.monotonic() - began < 1
        assert held.alive() == []
        assert procfs.read_process(pids[0]) is not None, "a zombie is still there"


def test_wait_gives_up_at_its_deadline(box: Box) -> None:
    process = procfs.read_process(box.start(*SLEEP))
    assert process is not None
    with HeldProcesses() as held:
        held.add(process)
        began = time.monotonic()
        assert not held.wait(Deadline(0.2))
        assert 0.2 <= time.monotonic() - began < 1
        assert held.pids() == {process.pid}


def test_later_process_of_the_same_number_is_not_taken(box: Box) -> None:
    process = procfs.read_process(box.start(*SLEEP))
    assert process is not None
    earlier = dataclasses.replace(process, id=wire.ProcessId(process.pid, process.id.start_time - 1))
    with HeldProcesses() as held:
        assert not held.add(earlier)
        assert held.send(signal.SIGKILL) == []
    assert is_running(process.pid)


def test_ended_process_is_not_taken() -> None:
    pid = os.posix_spawn(sys.executable, [*SLEEP[:2], ""], {})
    process = procfs.read_process(pid)
    assert process is not None
    os.waitpid(pid, 0)
    with HeldProcesses() as held:
        assert not held.add(process)
