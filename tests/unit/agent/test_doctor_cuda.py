"""Each row of what cuInit and nvidia-smi say together, and its cure; with a real libcuda made for it in tests/agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.command import Output
from orchestrator.agent.cuda import CudaAnswer
from orchestrator.agent.cuda_matrix import SmiAnswer, Surroundings, judge, judge_smi
from orchestrator.agent.doctor_cuda import check_cuda
from orchestrator.agent.doctor_nodes import Fault, NodeFault
from orchestrator.agent.service_python import Completed
from orchestrator.agent.wire import Outcome
from tests.unit.agent.doctor_machine import CONTROL, NO_SMI, SMI, UVM, Machine, complete, nothing_of_nvidia

FINE = SmiAnswer(0, 8)
NONE_FOUND = SmiAnswer(0, 0, ["No devices found."])
UNREACHABLE = SmiAnswer(9, 0, ["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."])
DENIED = SmiAnswer(4, 0, ["Failed to initialize NVML: Insufficient Permissions"])
BLOCKED = SmiAnswer(17, 0, ["Failed to initialize NVML: GPU access blocked by the operating system"])
NO_QUERY = SmiAnswer(6, 0, ["No devices were found"])
MISMATCH = SmiAnswer(18, 0, ["Failed to initialize NVML: Driver/library version mismatch"])
ABSENT = SmiAnswer(None, problem="nvidia-smi: No such file or directory")


def fault(path: str, kind: str, cure: str = "the cure") -> NodeFault:
    return NodeFault(path, kind, f"it is {kind}", cure)


ROWS: list[tuple[int, SmiAnswer, dict[str, Any], str, str]] = [
    (100, UNREACHABLE, {"loaded": False}, "module is not loaded", "modprobe nvidia"),
    (100, UNREACHABLE, {"faults": [fault(CONTROL, Fault.MISSING)]}, "/dev/nvidiactl: it is missing", "the cure"),
    (100, UNREACHABLE, {"faults": [fault(CONTROL, Fault.EMPTY_FILE)]}, "/dev/nvidiactl: it is empty", "the cure"),
    (100, UNREACHABLE, {}, "does not reach the driver", "nvidia-modprobe -c0 -u, then restart the container"),
    (100, NONE_FOUND, {"faults": [fault("/dev/nvidia3", Fault.MISSING)]}, "/dev/nvidia3: it is missing", "the cure"),
    (100, NONE_FOUND, {"faults": [fault("/dev/nvidia3", Fault.DENIED)]}, "/dev/nvidia3: it is denied", "the cure"),
    (100, NONE_FOUND, {}, "no /dev/nvidiaN can be opened", "ls -l /dev/nvidia*"),
    (100, DENIED, {"faults": [fault(CONTROL, Fault.DENIED)]}, "/dev/nvidiactl: it is denied", "the cure"),
    (100, DENIED, {}, "/dev/nvidiactl may not be opened", "device rules"),
    (100, NO_QUERY, {"faults": [fault("/dev/nvidia3", Fault.EMPTY_FILE)]}, "/dev/nvidia3: it is empty", "the cure"),
    (100, BLOCKED, {"faults": [fault(CONTROL, Fault.EMPTY_FILE)]}, "/dev/nvidiactl: it is empty", "the cure"),
    (100, SmiAnswer(255, 0, ["Unknown Error"]), {}, "status 255: Unknown Error", "dmesg"),
    (100, FINE, {"visible": "-1"}, "CUDA_VISIBLE_DEVICES is '-1'", "take it out of the service's environment"),
    (100, FINE, {"visible": ""}, "CUDA_VISIBLE_DEVICES is ''", "nvidia-smi -L"),
    (100, FINE, {"faults": [fault("/dev/nvidia0", Fault.DENIED)]}, "/dev/nvidia0: it is denied", "the cure"),
    (100, FINE, {}, "the device nodes are good", "look for CUDA_VISIBLE_DEVICES"),
    (100, MISMATCH, {"library_version": "575.1.2"}, "libcuda is 575.1.2, the kernel module 580.159.04", "580.159.04 here"),
    (100, ABSENT, {}, "nvidia-smi can't be asked", "ls -l /dev/nvidia*"),
    (999, FINE, {"faults": [fault(UVM, Fault.MISSING)]}, "/dev/nvidia-uvm: it is missing", "the cure"),
    (999, FINE, {"faults": [fault(UVM, Fault.OLD_NUMBER)]}, "/dev/nvidia-uvm: it is old number", "the cure"),
    (999, FINE, {"faults": [fault(UVM, Fault.EMPTY_FILE)]}, "/dev/nvidia-uvm: it is empty file", "the cure"),
    (999, FINE, {"faults": [fault(UVM, Fault.DENIED)]}, "/dev/nvidia-uvm: it is denied", "the cure"),
    (999, FINE, {"faults": [fault(UVM, Fault.FAILS)]}, "/dev/nvidia-uvm: it is fails", "the cure"),
    (999, FINE, {}, "/dev/nvidia-uvm has the kernel's number and opens", "dmesg"),
    (3, FINE, {"hmm": "N"}, "(HMM); uvm_disable_hmm is N", "options nvidia_uvm uvm_disable_hmm=1"),
    (3, FINE, {"hmm": "Y"}, "though uvm_disable_hmm is Y", "dmesg"),
    (34, FINE, {"library": "/cuda/stubs/libcuda.so.1"}, "stub libcuda is found before the driver's (/cuda/stubs", "LD_LIBRARY_PATH"),
    (36, FINE, {}, "the driver (580.159.04) is older than this CUDA", "newer driver"),
    (46, FINE, {}, "exclusive compute mode", "nvidia-smi -q -d COMPUTE"),
    (101, FINE, {"visible": "9"}, "CUDA_VISIBLE_DEVICES is '9'", "nvidia-smi -L"),
    (101, FINE, {}, "CUDA_VISIBLE_DEVICES is not set", "nvidia-smi -L"),
    (802, FINE, {}, "fabric manager", "nvidia-fabricmanager, which must be of version 580.159.04"),
    (803, FINE, {"library_version": "575.1.2"}, "libcuda is 575.1.2, the kernel module 580.159.04", "reboot it"),
    (804, FINE, {"library": "/cuda/compat/libcuda.so.1"}, "cuda-compat is used on a GPU that does not", "LD_LIBRARY_PATH"),
    (12345, FINE, {}, "without a row", "CUresult"),
]


@pytest.mark.parametrize(("code", "smi", "around", "words", "step"), ROWS)
def test_each_row_is_named_with_its_cure(code: int, smi: SmiAnswer, around: dict[str, Any], words: str, step: str) -> None:
    verdict = judge(CudaAnswer(code), smi, Surroundings(in_container=True, module="580.159.04", **around))
    assert complete(verdict)
    assert verdict.outcome == Outcome.REFUSE
    assert verdict.detail.startswith(f"cuInit gives {code}: ")
    assert words in verdict.detail
    assert step in str(verdict.next_step)
    assert str(smi) in verdict.evidence


@pytest.mark.parametrize(
    ("answer", "around", "outcome", "words", "step"),
    [
        (CudaAnswer(problem="did not answer within 20 s and was killed"), {}, Outcome.REFUSE, "GSP", "on the host: dmesg"),
        (CudaAnswer(problem="no module", missing="ctypes"), {"served_here": False}, Outcome.UNKNOWN, "ctypes", "libpython3-stdlib"),
        (CudaAnswer(problem="no module", missing="ctypes"), {}, Outcome.REFUSE, "ctypes", "apt install python3"),
        (CudaAnswer(problem="cannot open", library="cannot open"), {}, Outcome.REFUSE, "libcuda can't be loaded", "ldconfig"),
        (CudaAnswer(problem="cannot open", library="cannot open"), {"served_here": False}, Outcome.UNKNOWN, "no libcuda", "container"),
        (CudaAnswer(problem="cannot open", library="cannot open"), {"stand_in": True}, Outcome.UNKNOWN, "libcuda", "ldconfig"),
        (CudaAnswer(problem="can't start /py: No such file"), {}, Outcome.UNKNOWN, "not asked: can't start /py", "set `python:`"),
        (CudaAnswer(problem="ended with status 1"), {}, Outcome.REFUSE, "gives no answer", "import ctypes"),
    ],
)
def test_no_answer_is_told_apart(answer: CudaAnswer, around: dict[str, Any], outcome: str, words: str, step: str) -> None:
    verdict = judge(answer, FINE, Surroundings(in_container=True, **around))
    assert complete(verdict)
    assert verdict.outcome == outcome
    assert words in verdict.detail
    assert step in str(verdict.next_step)


@pytest.mark.parametrize(
    ("count", "around", "outcome", "words"),
    [
        (8, {"expected": 8}, Outcome.PASS, "sees 8 GPU(s)"),
        (8, {}, Outcome.PASS, "sees 8 GPU(s)"),
        (7, {"expected": 8}, Outcome.REFUSE, "8 are expected"),
        (8, {"expected": 4}, Outcome.WARN, "only 4 are expected"),
        (7, {}, Outcome.WARN, "nvidia-smi 8"),
        (4, {"expected": 8, "visible": "0,1,2,3"}, Outcome.PASS, "'0,1,2,3'"),
        (0, {"visible": "-1"}, Outcome.REFUSE, "finds no GPU"),
    ],
)
def test_the_count_is_judged_too(count: int, around: dict[str, Any], outcome: str, words: str) -> None:
    verdict = judge(CudaAnswer(0, count), FINE, Surroundings(**around))
    assert complete(verdict)
    assert verdict.outcome == outcome
    assert words in verdict.detail


@pytest.mark.parametrize(
    ("smi", "works", "outcome"),
    [
        (FINE, True, Outcome.PASS),
        (NONE_FOUND, False, Outcome.REFUSE),
        (NONE_FOUND, True, Outcome.WARN),
        (UNREACHABLE, False, Outcome.REFUSE),
        (MISMATCH, True, Outcome.WARN),
        (ABSENT, True, Outcome.WARN),
        (SmiAnswer(None, problem="nvidia-smi did not end within 20 s"), True, Outcome.REFUSE),
    ],
)
def test_nvidia_smi_alone(smi: SmiAnswer, works: bool, outcome: str) -> None:
    verdict = judge_smi(smi, Surroundings(), cuda_works=works)
    assert complete(verdict)
    assert verdict.outcome == outcome


def test_a_healthy_container(tmp_path: Path) -> None:
    found = check_cuda(Machine(tmp_path).context(expected_gpus=2))
    assert [(verdict.check, verdict.outcome) for verdict in found] == [("cuda", Outcome.PASS), ("nvidia_smi", Outcome.PASS)]


def test_nvidia_smi_is_judged_alone_where_cuda_was_not_asked(tmp_path: Path) -> None:
    (verdict,) = check_cuda(Machine(tmp_path).host(cuda=False))
    assert (verdict.check, verdict.outcome) == ("nvidia_smi", Outcome.PASS)


def test_one_cause_is_told_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, smi=Output(9, "couldn't communicate with the NVIDIA driver", ""), cuda=Completed(0, "status 100\n"))
    found = check_cuda(machine.context())
    assert [verdict.check for verdict in found] == ["cuda"]


def test_cuda_is_not_asked_where_opening_a_node_hangs(tmp_path: Path) -> None:
    verdict = check_cuda(Machine(tmp_path, opening_problem="did not answer within 20 s and was killed").context())[0]
    assert verdict.outcome == Outcome.REFUSE
    assert "opening /dev/nvidiactl hangs" in verdict.detail


@pytest.mark.parametrize(("smi", "cuda", "outcomes"), [(SMI, "status 0\ncount 2\n", {"pass"}), (SMI, "library no", {"pass", "unknown"})])
def test_a_stand_in_is_never_red(tmp_path: Path, smi: Output, cuda: str, outcomes: set[str]) -> None:
    machine = nothing_of_nvidia(tmp_path)
    machine.smi, machine.cuda = smi, Completed(0, cuda)
    assert {verdict.outcome for verdict in check_cuda(machine.context(expected_gpus=2))} == outcomes


def test_nothing_is_asked_where_there_is_nothing(tmp_path: Path) -> None:
    machine = nothing_of_nvidia(tmp_path)
    machine.smi = NO_SMI
    assert check_cuda(machine.context()) == []
