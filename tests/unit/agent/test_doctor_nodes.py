"""Device nodes as they can be wrong, on machines made of files; opening real ones is in tests/agent."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from orchestrator.agent.doctor_context import DeviceNode
from orchestrator.agent.doctor_nodes import Fault, check_nodes, faults
from orchestrator.agent.service_python import Completed
from orchestrator.agent.wire import Outcome, Verdict
from tests.unit.agent.doctor_machine import CONTROL, UVM, Machine, character, complete, empty_file, good_nodes, nothing_of_nvidia

BROKEN_CUDA = Completed(0, "status 999\n")


def judged(machine: Machine, **request: object) -> list[Verdict]:
    verdicts = check_nodes(machine.context(**request))
    assert all(complete(verdict) for verdict in verdicts)
    return verdicts


def test_good_nodes_pass_in_one_line(tmp_path: Path) -> None:
    (verdict,) = judged(Machine(tmp_path))
    assert verdict.outcome == Outcome.PASS
    assert verdict.detail == "4 device nodes have the kernel's numbers and open: nvidiactl nvidia-uvm nvidia0 nvidia1"


@pytest.mark.parametrize(
    ("path", "node", "kind", "words", "step"),
    [
        (UVM, None, Fault.MISSING, "is missing", "nvidia-modprobe -u -c0; give the container /dev/nvidia-uvm"),
        (CONTROL, None, Fault.MISSING, "is missing", "nvidia-modprobe -u -c0"),
        (UVM, empty_file(UVM), Fault.EMPTY_FILE, "optional,create=file", "then restart the container"),
        (UVM, DeviceNode(UVM, 0o40755, None, 4096, 0.0), Fault.NO_DEVICE, "no character device (mode drwxr-xr-x)", "restart"),
        (UVM, character(UVM, 511, 0), Fault.OLD_NUMBER, "number 511:0, the kernel's is 238:0", "nvidia-modprobe -u -c0, then restart"),
        (CONTROL, character(CONTROL, 195, 254), Fault.OLD_NUMBER, "number 195:254, the kernel's is 195:255", "nvidia-modprobe"),
        ("/dev/nvidia1", character("/dev/nvidia1", 195, 0), Fault.OLD_NUMBER, "195:0, the kernel's is 195:1", "nvidia-modprobe -c1"),
        ("/dev/nvidia1", empty_file("/dev/nvidia1"), Fault.EMPTY_FILE, "empty file", "nvidia-modprobe -c1"),
    ],
)
def test_a_faulty_node_in_a_container_is_red_with_its_cure(
    tmp_path: Path, path: str, node: DeviceNode | None, kind: str, words: str, step: str
) -> None:
    nodes = good_nodes()
    nodes.pop(path)
    machine = Machine(tmp_path, nodes={**nodes, **({path: node} if node else {})}, cuda=BROKEN_CUDA)
    (verdict,) = judged(machine)
    assert verdict.outcome == Outcome.REFUSE
    assert words in verdict.detail
    assert str(verdict.next_step).startswith("on the host: ")
    assert step in str(verdict.next_step)
    assert [(fault.path, fault.kind) for fault in faults(machine.context())] == [(path, kind)]


def test_a_uvm_node_without_its_module_says_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cuda=BROKEN_CUDA)
    machine.files["/proc/devices"] = "Character devices:\n195 nvidia\n"
    (verdict,) = judged(machine)
    assert "the kernel knows no such driver" in verdict.detail
    assert "modprobe nvidia-uvm; " in str(verdict.next_step)


@pytest.mark.parametrize(
    ("number", "kind", "words", "step"),
    [
        (errno.EPERM, Fault.DENIED, "device rules", "lxc.cgroup2.devices.allow"),
        (errno.EACCES, Fault.DENIED, "mode crw-rw-rw-", "dev0: /dev/nvidia-uvm"),
        (errno.ENXIO, Fault.FAILS, "no driver answers", "dmesg"),
        (errno.EIO, Fault.FAILS, "can't start this GPU", "dmesg"),
        (errno.EBUSY, Fault.FAILS, "Device or resource busy", "dmesg"),
    ],
)
def test_a_node_that_does_not_open_is_told_by_its_errno(tmp_path: Path, number: int, kind: str, words: str, step: str) -> None:
    machine = Machine(tmp_path, openings={UVM: number}, cuda=BROKEN_CUDA)
    (verdict,) = judged(machine, user="sglang")
    assert verdict.outcome == Outcome.REFUSE
    assert "read-write as sglang" in verdict.detail
    assert words in verdict.detail
    assert step in str(verdict.next_step)
    assert faults(machine.context())[0].kind == kind


def test_an_open_that_hangs_is_red_even_where_nothing_serves(tmp_path: Path) -> None:
    machine = Machine(tmp_path, opening_problem="did not answer within 20 s and was killed")
    (verdict,) = check_nodes(machine.host())
    assert (verdict.outcome, complete(verdict)) == (Outcome.REFUSE, True)
    assert verdict.detail == "/dev/nvidiactl: opening it did not end within 20 s"


def test_opening_that_could_not_be_tried_is_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path, opening_problem="there is no user sglang in this place")
    (verdict,) = judged(machine)
    assert verdict.outcome == Outcome.UNKNOWN
    assert "no user sglang" in verdict.detail


def test_nodes_that_cuda_makes_good_by_itself_are_yellow(tmp_path: Path) -> None:
    nodes = good_nodes()
    del nodes[UVM]
    (verdict,) = judged(Machine(tmp_path, nodes=nodes))
    assert verdict.outcome == Outcome.WARN
    assert "made the node good" in verdict.evidence[0]


def test_a_host_needs_the_nodes_of_all_gpus_of_its_driver(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nodes=good_nodes(1))
    for index, bus in enumerate(("01", "02")):
        machine.files[f"/proc/driver/nvidia/gpus/0000:{bus}:00.0/information"] = f"Model: B200\nDevice Minor: \t {index}\n"
    (verdict,) = check_nodes(machine.host(cuda=False))
    assert verdict.outcome == Outcome.WARN
    assert verdict.detail == "/dev/nvidia1: it is missing"
    assert verdict.next_step == "nvidia-modprobe -c1, then restart the containers that use it"


def test_several_nodes_with_one_fault_are_one_line(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nodes={path: empty_file(path) for path in good_nodes()}, cuda=BROKEN_CUDA)
    (verdict,) = judged(machine)
    assert verdict.detail == "4 device nodes are empty files: /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidia1"
    assert len(verdict.evidence) == 4


def test_what_makes_missing_nodes_makes_all_of_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nodes={UVM: character(UVM, 238, 0)})
    for index in range(3):
        machine.files[f"/proc/driver/nvidia/gpus/0000:0{index + 1}:00.0/information"] = f"Device Minor: \t {index}\n"
    (verdict,) = check_nodes(machine.host(cuda=False))
    assert verdict.detail == "4 device nodes are missing: /dev/nvidiactl, /dev/nvidia0, /dev/nvidia1, /dev/nvidia2"
    assert verdict.evidence == []
    assert verdict.next_step == "nvidia-modprobe -c0 -c1 -c2, then restart the containers that use it"


def test_a_container_that_was_given_no_gpu_is_not_stopped_for_it(tmp_path: Path) -> None:
    (verdict,) = judged(Machine(tmp_path / "unknown", nodes={}))
    assert verdict.outcome == Outcome.WARN
    assert judged(Machine(tmp_path / "none", nodes={}), expected_gpus=0) == []
    assert {verdict.outcome for verdict in judged(Machine(tmp_path / "two", nodes={}, cuda=BROKEN_CUDA), expected_gpus=2)} == {"refuse"}


def test_nodes_younger_than_the_container_are_named(tmp_path: Path) -> None:
    nodes = {**good_nodes(), UVM: character(UVM, 238, 0, changed=time.time())}
    machine = Machine(tmp_path, nodes=nodes)
    machine.files["/proc/1/stat"] = machine.files["/proc/1/stat"].replace("20 0 1 0 5 ", "20 0 1 0 0 ")
    (verdict,) = judged(machine)
    assert verdict.evidence == ["changed after the container's start: /dev/nvidia-uvm"]


def test_nothing_is_said_where_there_is_nothing(tmp_path: Path) -> None:
    assert judged(nothing_of_nvidia(tmp_path)) == []
