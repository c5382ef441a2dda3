"""Knobs that nvidia-smi reads and sets. The program on PATH is the tests' stand-in, which keeps its GPUs in files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import Standpoint
from orchestrator.agent.knob_nvidia import kernel_address
from orchestrator.agent.tuning import apply
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, TuneAction, TuneRequest
from tests.rig.knob_tree import NVIDIA_SMI, KnobTree
from tests.rig.pci_tree import GPUS

BOOT_ID = "/proc/sys/kernel/random/boot_id"
CALLS = "/calls"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnobTree:
    """A machine whose nvidia-smi believes that everybody is root, and notes how it was called."""
    tree = KnobTree.write(tmp_path / "machine")
    tree.put(BOOT_ID, "first-boot")
    programs = tmp_path / "bin"
    programs.mkdir()
    write_program(programs / "id", "echo 0")
    write_program(programs / "nvidia-smi", f'echo "$@" >>{tree.path(CALLS)}\nexec {tree.path(NVIDIA_SMI)} "$@"')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tree


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


HOST = Standpoint(None, root=True)


def tune(
    tree: KnobTree, kind: str, value: str | None, *, write: bool = True, action: str = TuneAction.APPLY, where: Standpoint = HOST
) -> KnobResult:
    request = TuneRequest("profile", [KnobSetting(kind, value=value)], action, write, state_root=str(tree.folder.parent / "state"))
    (result,) = apply(request, KernelFiles(str(tree.folder)), where).results
    return result


def calls(tree: KnobTree) -> list[str]:
    return tree.text(CALLS).splitlines() if tree.path(CALLS).exists() else []


def state(tree: KnobTree, name: str) -> list[str]:
    return [tree.text(f"{NVIDIA_SMI}-state/{address}/{name}") for address in GPUS]


@pytest.mark.parametrize(
    ("kind", "field", "before", "value", "after", "options"),
    [
        ("gpu_persistence_mode", "persistence_mode", "Disabled", "Enabled", "Enabled", "-pm 1"),
        ("gpu_power_limit", "power.limit", "600.00", "450", "450.00", "-pl 450"),
    ],
)
def test_apply_and_revert(tree: KnobTree, kind: str, field: str, before: str, value: str, after: str, options: str) -> None:
    result = tune(tree, kind, value)
    assert result.outcome == KnobOutcome.CHANGED
    assert (result.before, result.after) == (dict.fromkeys(GPUS, before), dict.fromkeys(GPUS, after))
    assert result.commands == [f"nvidia-smi -i {','.join(GPUS)} {options}"]
    assert result.source == f"nvidia-smi --query-gpu=pci.bus_id,{field}"
    assert state(tree, field) == [after] * 8
    assert len([call for call in calls(tree) if call.startswith("-i")]) == 1, "one call for all GPUs"
    assert tune(tree, kind, value).outcome == KnobOutcome.SAME
    assert tune(tree, kind, None, action=TuneAction.REVERT).outcome == KnobOutcome.CHANGED
    assert state(tree, field) == [before] * 8


def test_power_limit_out_of_range(tree: KnobTree) -> None:
    result = tune(tree, "gpu_power_limit", "350")
    assert result.outcome == KnobOutcome.FAILED
    assert "0000:41:00.0 takes 400 to 600 W, not 350 W" in result.detail
    assert state(tree, "power.limit") == ["600.00"] * 8
    assert not [call for call in calls(tree) if "-pl" in call]


@pytest.mark.parametrize(
    ("kind", "value"), [("gpu_power_limit", "much"), ("gpu_persistence_mode", "yes"), ("gpu_clocks", "2000,1000"), ("gpu_clocks", "fast")]
)
def test_senseless_value(tree: KnobTree, kind: str, value: str) -> None:
    assert tune(tree, kind, value).outcome == KnobOutcome.FAILED
    assert not calls(tree)


def test_clocks_are_never_claimed_as_read(tree: KnobTree) -> None:
    assert tune(tree, "gpu_clocks", None).before == dict.fromkeys(GPUS, "unknown")
    result = tune(tree, "gpu_clocks", "1200,2400")
    assert (result.outcome, result.after) == (KnobOutcome.CHANGED, dict.fromkeys(GPUS, "1200,2400"))
    assert state(tree, "locked_clocks") == ["1200,2400"] * 8
    assert "not read back" in result.detail
    assert result.source == "what this program set at this boot (no driver shows a clock lock)"
    assert tune(tree, "gpu_clocks", "1200,2400").outcome == KnobOutcome.SAME
    reverted = tune(tree, "gpu_clocks", None, action=TuneAction.REVERT)
    assert (reverted.outcome, reverted.after) == (KnobOutcome.CHANGED, dict.fromkeys(GPUS, "default"))
    assert not tree.path(f"{NVIDIA_SMI}-state/{GPUS[0]}/locked_clocks").exists()


@pytest.mark.parametrize(("path", "text"), [(BOOT_ID, "second-boot"), ("/sys/module/nvidia/version", "590.1")], ids=["boot", "driver"])
def test_what_was_set_is_forgotten_with_what_it_was_set_in(tree: KnobTree, path: str, text: str) -> None:
    tune(tree, "gpu_clocks", "1200,2400")
    tree.put(path, text)
    assert tune(tree, "gpu_clocks", None).before == dict.fromkeys(GPUS, "unknown")
    assert tune(tree, "gpu_clocks", "1200,2400").outcome == KnobOutcome.CHANGED


def test_what_was_set_and_can_not_be_read_is_not_taken_for_nothing(tree: KnobTree) -> None:
    tune(tree, "gpu_clocks", "1200,2400")
    kept = tree.folder.parent / "state/.host/settings.json"
    kept.write_text("{")
    before = len(calls(tree))

    result = tune(tree, "gpu_clocks", "1200,2400")

    assert result.outcome == KnobOutcome.UNKNOWN
    assert f"mv {kept} {kept}.damaged" in result.detail
    assert not [call for call in calls(tree)[before:] if "-lgc" in call]


def test_clocks_that_nvidia_smi_refuses_are_not_noted(tree: KnobTree) -> None:
    write_program(tree.folder.parent / "bin/id", "echo 1000")
    result = tune(tree, "gpu_clocks", "1200,2400")
    assert (result.outcome, result.after) == (KnobOutcome.FAILED, dict.fromkeys(GPUS, "unknown"))
    assert "Unable to set GPU clocks: Insufficient Permissions" in result.detail


def test_refused_write_is_told_in_nvidia_smis_words(tree: KnobTree) -> None:
    write_program(tree.folder.parent / "bin/id", "echo 1000")
    result = tune(tree, "gpu_persistence_mode", "Enabled")
    assert result.outcome == KnobOutcome.FAILED
    assert "writing Enabled: nvidia-smi: Unable to set persistence mode: Insufficient Permissions" in result.detail


@pytest.mark.parametrize(
    ("script", "outcome", "detail"),
    [
        ('echo "Field \\"power.limit\\" is not a valid field to query."; exit 2', KnobOutcome.UNAVAILABLE, "is not a valid field"),
        ("echo 'NVIDIA-SMI has failed because it couldn'; exit 9", KnobOutcome.UNKNOWN, "NVIDIA-SMI has failed"),
        ("echo 'No devices were found'", KnobOutcome.UNKNOWN, "No devices were found"),
        ("exit 0", KnobOutcome.UNKNOWN, "no answer, status 0"),
        ("echo '00000000:41:00.0, [N/A]'", KnobOutcome.UNAVAILABLE, "no GPU here lets power.limit be read or set"),
        ("echo '00000000:41:00.0, [Unknown Error]'", KnobOutcome.UNKNOWN, "0000:41:00.0: could not be read: [Unknown Error]"),
    ],
)
def test_what_nvidia_smi_may_say(tree: KnobTree, script: str, outcome: str, detail: str) -> None:
    write_program(tree.folder.parent / "bin/nvidia-smi", script)
    result = tune(tree, "gpu_power_limit", "450")
    assert result.outcome == outcome
    assert detail in result.detail


def test_no_nvidia_smi(tree: KnobTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tree.folder))
    result = tune(tree, "gpu_power_limit", "450")
    assert (result.outcome, result.detail) == (KnobOutcome.UNAVAILABLE, "nvidia-smi: No such file or directory")


@pytest.mark.parametrize(
    ("kind", "value", "command"),
    [("gpu_persistence_mode", "Enabled", "nvidia-smi -pm 1"), ("gpu_power_limit", "450", "nvidia-smi -pl 450")],
)
def test_no_nvidia_smi_in_a_container_says_nothing_of_its_host(
    tree: KnobTree, monkeypatch: pytest.MonkeyPatch, kind: str, value: str, command: str
) -> None:
    monkeypatch.setenv("PATH", str(tree.folder))
    result = tune(tree, kind, value, where=Standpoint("lxc", root=True))
    assert (result.outcome, result.commands) == (KnobOutcome.UNKNOWN, [command])
    assert result.detail == "a container (lxc) does not show the host's value"


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [("00000000:C1:00.0", "0000:c1:00.0"), ("00010000:01:00.0", "10000:01:00.0"), ("0000000A:01:00.0", "000a:01:00.0")],
)
def test_address(bus_id: str, address: str) -> None:
    assert kernel_address(bus_id) == address
