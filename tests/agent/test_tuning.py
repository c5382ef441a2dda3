"""The verb ``tune`` as a process of its own, and against what hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.agent import knob_nvidia, knob_pci, procfs
from orchestrator.agent.codec import from_json, to_json
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import Standpoint
from orchestrator.agent.tuning import apply
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, TuneReport, TuneRequest
from tests.rig.knob_tree import KnobTree
from tests.rig.pci_tree import DEVICE_CONTROL, GPUS

REPOSITORY = Path(__file__).parents[2]

PROGRAM = """
import json, sys
from orchestrator.agent import main, wire_host
from orchestrator.agent.codec import from_json, to_json
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import Standpoint
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.tuning import apply
request = from_json(wire_host.TuneRequest, json.loads(sys.argv[2]))
try:
    print(json.dumps(to_json(apply(request, KernelFiles(sys.argv[1]), Standpoint(None, True)))))
    print(*sys.modules, file=sys.stderr)
except AgentRefusal as refusal:
    print(json.dumps(to_json(refusal.failure)))
    sys.exit(5)
"""

HEAVY = {"subprocess", "pathlib", "shutil", "tempfile", "http", "socket", "ctypes", "logging", "pydantic", "zipfile", "hashlib"}


@pytest.fixture
def tree(tmp_path: Path) -> KnobTree:
    return KnobTree.write(tmp_path / "machine")


def agent(tree: KnobTree, request: TuneRequest) -> subprocess.Popen[str]:
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{PROGRAM}"]
    words = [str(tree.folder), json.dumps(to_json(request))]
    return subprocess.Popen([*argv, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def order(tree: KnobTree, *settings: KnobSetting, write: bool = True) -> TuneRequest:
    return TuneRequest("profile", list(settings), write=write, state_root=f"{tree.folder.parent}/state", operator="ann", reason="a reboot")


def tune(tree: KnobTree, *settings: KnobSetting) -> list[KnobResult]:
    return apply(order(tree, *settings), KernelFiles(str(tree.folder)), Standpoint(None, True)).results


def test_three_knobs_import_little_and_run_nothing(tree: KnobTree) -> None:
    """Each host pays for each import at each call; another program costs more than all the rest."""
    settings = [
        KnobSetting("sysctl", "kernel.numa_balancing", "1"),
        KnobSetting("cpu_governor", value="powersave"),
        KnobSetting("pcie_max_read_request", value="512"),
    ]
    with agent(tree, order(tree, *settings)) as process:
        out, errors = process.communicate(timeout=60)
    report = from_json(TuneReport, json.loads(out))
    assert [result.outcome for result in report.results] == [KnobOutcome.SAME] * 3
    imported = set(errors.split())
    ours = {name for name in imported if name.startswith("orchestrator.agent.")}
    assert "orchestrator.agent.knob_pci" in ours
    assert not HEAVY & imported
    assert not {name for name in ours if name.endswith(("command", "knob_nvidia", "persistence", "state_folder"))}


def test_two_agents_at_once(tree: KnobTree, tmp_path: Path) -> None:
    """The first is held half-way, in a write to a FIFO that nobody reads."""
    path = tree.path("/proc/sys/vm/swappiness")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    setting = KnobSetting("sysctl", "vm.swappiness", "1")
    slow = PROGRAM.replace("request =", f"KernelFiles.write = lambda *_: open({str(fifo)!r}, 'w')\nrequest =")
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{slow}"]
    with subprocess.Popen([*argv, str(tree.folder), json.dumps(to_json(order(tree, setting)))], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        try:
            _wait_for(lambda: first.poll() is not None or (tmp_path / "state/.host/originals.json").exists())
            with agent(tree, order(tree, setting)) as second:
                refusal = json.loads(second.communicate(timeout=20)[0])
                assert second.returncode == 5
            with agent(tree, order(tree, setting, write=False)) as third:
                assert json.loads(third.communicate(timeout=20)[0])["results"][0]["outcome"] == KnobOutcome.WOULD_CHANGE
            os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
            report = from_json(TuneReport, json.loads(first.stdout.read()))
        finally:
            first.kill()
    assert refusal["category"] == "locked"
    assert f"being changed by ann since {time.strftime('%Y-', time.gmtime())}" in refusal["message"]
    assert f"process {first.pid}" in refusal["message"]
    assert refusal["evidence"] == [f"{tmp_path}/state/.host/lock: profile profile, reason: a reboot"]
    assert report.results[0].outcome == KnobOutcome.FAILED, "what it wrote went elsewhere"
    assert path.read_text() == "60\n"
    assert [result.outcome for result in tune(tree, setting)] == [KnobOutcome.CHANGED], "the lock ended with its holder"


def test_gpu_that_never_answers(tree: KnobTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO blocks who opens it, as a dead device may block who reads it. The seven others are set."""
    monkeypatch.setattr(knob_pci, "SECONDS", 0.5)
    tree.config(GPUS[2]).unlink()
    os.mkfifo(tree.config(GPUS[2]))
    began = time.monotonic()
    (result,) = tune(tree, KnobSetting("pcie_max_read_request", value="4096"))
    assert time.monotonic() - began < 10
    assert result.outcome == KnobOutcome.UNKNOWN, "nobody can say of all GPUs"
    assert set(result.after) == set(GPUS) - {GPUS[2]}
    assert set(result.after.values()) == {"4096"}
    assert f"{GPUS[2]}: could not be read: its configuration space gave no answer within 0.5 s" in result.detail
    assert tree.word(GPUS[3], DEVICE_CONTROL) == 0x5930


def test_nvidia_smi_that_never_ends_is_asked_once(tree: KnobTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knob_nvidia, "SECONDS", 0.5)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nexec sleep 300\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    began = time.monotonic()
    settings = [
        KnobSetting("gpu_persistence_mode", value="Enabled"),
        KnobSetting("gpu_power_limit", value="500"),
        KnobSetting("gpu_clocks"),
    ]
    results = tune(tree, *settings, KnobSetting("cpu_governor", value="performance"))
    assert time.monotonic() - began < 5
    assert [result.outcome for result in results] == [KnobOutcome.UNKNOWN] * 3 + [KnobOutcome.CHANGED]
    assert results[2].detail == "nvidia-smi: nvidia-smi did not end within 0.5 s"
    (pid,) = (tmp_path / "pids").read_text().split()
    assert procfs.read_process(int(pid)) is None, "it was ended"


def _wait_for(condition: object) -> None:
    end = time.monotonic() + 60
    assert callable(condition)
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
