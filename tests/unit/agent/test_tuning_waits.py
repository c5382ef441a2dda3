"""Knobs are not set under an order at work: a preparation says for whom it waits, for as long as it was asked to."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from orchestrator.agent import tuning
from orchestrator.agent.host_folder import Holder, HostFolder
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import Standpoint
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.tuning import apply
from orchestrator.agent.wire_host import KnobOutcome, KnobSetting, TuneRequest
from tests.unit.agent.test_locks import at_work

SWAPPINESS = KnobSetting("sysctl", "vm.swappiness", "1")


class Host:
    """A machine with one knob, and the state folders of its services."""

    def __init__(self, folder: Path) -> None:
        self.knob = folder / "machine" / "proc/sys/vm/swappiness"
        self.knob.parent.mkdir(parents=True)
        self.knob.write_text("60\n")
        self.files = KernelFiles(str(folder / "machine"))
        self.root = folder / "state"
        self.waited_for: list[str] = []

    def tune(self, *, wait: float = 0.0, write: bool = True) -> str:
        request = TuneRequest("fast", [SWAPPINESS], write=write, state_root=str(self.root), operator="ann@laptop", wait=wait)
        (result,) = apply(request, self.files, Standpoint(None, True), self.waited_for.append).results
        return result.outcome


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(tuning, "_POLL_SECONDS", 0.02)
    return Host(tmp_path)


def test_nothing_is_set_while_a_service_is_changed(host: Host) -> None:
    with at_work(host.root), pytest.raises(AgentRefusal, match="o1 is at work on svc: relaunch by bob@desk") as refused:
        host.tune()
    assert refused.value.failure.category == "locked"
    assert host.knob.read_text() == "60\n"
    assert host.waited_for == []


def test_looking_and_finding_all_well_wait_for_nobody(host: Host) -> None:
    with at_work(host.root):
        assert host.tune(write=False) == KnobOutcome.WOULD_CHANGE
        host.knob.write_text("1\n")
        assert host.tune() == KnobOutcome.SAME


def test_who_waits_is_told_for_whom_and_sets_it_afterwards(host: Host) -> None:
    outcomes: list[str] = []
    with at_work(host.root):
        waiter = threading.Thread(target=lambda: outcomes.append(host.tune(wait=20.0)))
        waiter.start()
        end = time.monotonic() + 10
        while not host.waited_for and time.monotonic() < end:
            time.sleep(0.01)
        assert "o1 is at work on svc" in host.waited_for[0]
        assert HostFolder(str(host.root)).preparing() is None
        assert host.knob.read_text() == "60\n"
    waiter.join(10)
    assert outcomes == [KnobOutcome.CHANGED]


def test_waiting_has_an_end(host: Host) -> None:
    with at_work(host.root), pytest.raises(AgentRefusal, match="nothing was set"):
        host.tune(wait=0.1)
    assert host.waited_for


def test_another_preparation_is_waited_for_too(host: Host) -> None:
    folder = HostFolder(str(host.root))
    with folder.locked(Holder("eve@pad", "", "fast")), pytest.raises(AgentRefusal, match="being changed by eve@pad"):
        host.tune(wait=0.5)
    assert "eve@pad" in host.waited_for[0]
    assert host.tune(wait=1.0) == KnobOutcome.CHANGED
