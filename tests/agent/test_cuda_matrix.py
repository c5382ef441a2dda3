"""cuInit and nvidia-smi in real children: a libcuda compiled for it that gives any code or hangs, a script for each nvidia-smi.

A child in state D is a real one: it puts itself into a frozen cgroup (v1 freezer), where SIGKILL does not reach it until it is thawed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import command, cuda, doctor_cuda
from orchestrator.agent.clock import Deadline
from orchestrator.agent.command import run_bounded, still_stuck
from orchestrator.agent.doctor import GROUPS, examine, unkillable
from orchestrator.agent.doctor_context import Commands, Context
from orchestrator.agent.doctor_cuda import check_cuda
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_host import DoctorRequest
from tests.agent.box import wait_for
from tests.unit.agent.doctor_machine import CONTROL, DEVICES, UVM, VERSION, character, complete, empty_file, good_nodes

LIBRARY = """
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int cuInit(unsigned int flags) {
    const char *code = getenv("STANDIN_CUINIT"), *frozen = getenv("STANDIN_FROZEN");
    if (frozen && *frozen) {
        int procs = open(frozen, O_WRONLY);
        if (write(procs, "0", 1) != 1) return 1;
    }
    while (!strcmp(code, "hang")) pause();
    return atoi(code);
}
int cuDeviceGetCount(int *count) { *count = atoi(getenv("STANDIN_COUNT")); return 0; }
"""
SMI = {
    "fine": ("GPU 0: NVIDIA B200 (UUID: GPU-0)\\nGPU 1: NVIDIA B200 (UUID: GPU-1)\\n", 0),
    "none": ("No devices found.\\n", 0),
    "unreachable": ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\\n", 9),
    "blocked": ("Failed to initialize NVML: GPU access blocked by the operating system\\n", 17),
    "denied": ("Failed to initialize NVML: Insufficient Permissions\\n", 4),
    "mismatch": ("Failed to initialize NVML: Driver/library version mismatch\\nNVML library version: 575.1\\n", 18),
}
FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in as libcuda.so.1."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in libcuda")
    folder = tmp_path_factory.mktemp("libcuda")
    (folder / "cuda.c").write_text(LIBRARY)
    real = folder / f"libcuda.so.{VERSION}"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(real), str(folder / "cuda.c")], check=True)
    (folder / "libcuda.so.1").symlink_to(real.name)
    return folder


@pytest.fixture
def frozen() -> Iterator[Path]:
    """A frozen cgroup: whoever enters it is in state D until it is thawed."""
    cgroup = FREEZER / f"orchestrator-test-{os.getpid()}"
    try:
        cgroup.mkdir()
    except OSError as error:
        pytest.skip(f"no v1 freezer cgroup can be made here: {error.strerror}")
    try:
        (cgroup / "freezer.state").write_text("FROZEN")
        yield cgroup
    finally:
        (cgroup / "freezer.state").write_text("THAWED")
        wait_for("an empty cgroup", lambda: _reap() and not (cgroup / "cgroup.procs").read_text().split())
        cgroup.rmdir()


def _reap() -> bool:
    """Whether all children that were left behind have ended; the agent leaves them to its own end, this process does not."""
    command._abandoned[:] = [child for child in command._abandoned if child.poll() is None]
    return not command._abandoned


@pytest.fixture
def place(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Context]:
    """A container whose kernel files are a tree and whose programs are real."""
    root = tmp_path / "root"
    files = {
        "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build",
        "/proc/devices": DEVICES,
        "/proc/self/uid_map": "0 100000 65536",
        "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N",
        **dict.fromkeys(good_nodes(), ""),
    }
    for path, text in files.items():
        target = root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def make(code: str, smi: str, nodes: Any = None, count: int = 2, script: str = "", **environment: str) -> Context:
        text, status = SMI.get(smi, ("", 0))
        if smi != "absent":
            (programs / "nvidia-smi").write_text(script or f'#!/bin/sh\nprintf "{text}"\nexit {status}\n')
            (programs / "nvidia-smi").chmod(0o755)
        environment = {"LD_LIBRARY_PATH": str(libraries), "STANDIN_CUINIT": code, "STANDIN_COUNT": str(count), **environment}
        request = DoctorRequest("container", str(tmp_path), service="svc", cuda=True, expected_gpus=2, environment=environment)
        deadline = Deadline(30.0)
        commands = Commands(ServicePython(sys.executable, environment), deadline)
        return Context(request, KernelFiles(str(root)), "lxc", [], good_nodes() if nodes is None else nodes, commands, deadline)

    return make


def without(*paths: str, **changed: Any) -> dict[str, Any]:
    return {path: node for path, node in good_nodes().items() if path not in paths} | {node.path: node for node in changed.values()}


def of_cuda(context: Context) -> Verdict:
    found = check_cuda(context)
    assert all(map(complete, found))
    return found[0]


@pytest.mark.parametrize(
    ("code", "smi", "nodes", "environment", "words", "step"),
    [
        ("100", "unreachable", without(CONTROL), {}, "/dev/nvidiactl: it is missing", "nvidia-modprobe -u -c0"),
        ("100", "blocked", without(x=empty_file(CONTROL)), {}, "/dev/nvidiactl: it is an empty file", "restart the container"),
        (
            "100",
            "none",
            without("/dev/nvidia0", x=empty_file("/dev/nvidia1")),
            {},
            "/dev/nvidia1: it is an empty file",
            "nvidia-modprobe -c1",
        ),
        ("100", "denied", None, {}, "/dev/nvidiactl may not be opened", "device rules"),
        ("100", "fine", None, {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES is '-1'", "take it out"),
        ("100", "mismatch", None, {}, "differ in version", f"userspace {VERSION} here"),
        ("100", "absent", None, {}, "nvidia-smi can't be asked", "ls -l /dev/nvidia*"),
        ("999", "fine", without(UVM), {}, "/dev/nvidia-uvm: it is missing", "on the host: nvidia-modprobe -u -c0"),
        ("999", "fine", without(x=character(UVM, 511, 0)), {}, "of an earlier boot or kernel", "nvidia-modprobe -u -c0, then restart"),
        ("999", "fine", without(x=empty_file(UVM)), {}, "/dev/nvidia-uvm: it is an empty file", "then restart the container"),
        ("999", "fine", None, {}, "has the kernel's number and opens", "dmesg"),
        ("3", "fine", None, {}, "(HMM); uvm_disable_hmm is N", "options nvidia_uvm uvm_disable_hmm=1"),
        ("34", "fine", None, {}, "stub libcuda", "LD_LIBRARY_PATH"),
        ("36", "fine", None, {}, f"the driver ({VERSION}) is older", "newer driver"),
        ("46", "fine", None, {}, "exclusive compute mode", "nvidia-smi -q -d COMPUTE"),
        ("101", "fine", None, {"CUDA_VISIBLE_DEVICES": "9"}, "CUDA_VISIBLE_DEVICES is '9'", "nvidia-smi -L"),
        ("802", "fine", None, {}, "fabric manager", f"of version {VERSION}"),
        ("803", "fine", None, {}, "differ in version", "reboot it"),
        ("804", "fine", None, {}, "cuda-compat", "LD_LIBRARY_PATH"),
        ("717", "fine", None, {}, "without a row", "CUresult"),
    ],
)
def test_each_code_of_a_real_library_is_named_with_its_cure(
    place: Callable[..., Context], code: str, smi: str, nodes: Any, environment: dict[str, str], words: str, step: str
) -> None:
    if smi == "absent" and shutil.which("nvidia-smi"):
        pytest.skip("this machine has an nvidia-smi of its own")
    verdict = of_cuda(place(code, smi, nodes, **environment))
    assert verdict.outcome == Outcome.REFUSE
    assert verdict.detail.startswith(f"cuInit gives {code}: ")
    assert words in verdict.detail
    assert step in str(verdict.next_step)


@pytest.mark.parametrize(("count", "outcome"), [(2, Outcome.PASS), (1, Outcome.REFUSE), (0, Outcome.REFUSE), (3, Outcome.WARN)])
def test_a_cuda_that_works_is_counted(place: Callable[..., Context], count: int, outcome: str) -> None:
    assert of_cuda(place("0", "fine", count=count)).outcome == outcome


def test_nvidia_smis_status_0_does_not_mean_that_it_listed_a_gpu(place: Callable[..., Context]) -> None:
    cuda_verdict, smi_verdict = check_cuda(place("0", "none"))
    assert (cuda_verdict.outcome, smi_verdict.outcome) == (Outcome.PASS, Outcome.WARN)
    assert "No devices found" in smi_verdict.detail


def test_a_service_without_libcuda_is_red(place: Callable[..., Context], tmp_path: Path) -> None:
    context = place("0", "fine", LD_LIBRARY_PATH=str(tmp_path))
    if Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists():
        pytest.skip("this machine has a libcuda of its own")
    verdict = of_cuda(context)
    assert verdict.outcome == Outcome.REFUSE
    assert "libcuda can't be loaded: libcuda.so.1: cannot open shared object file" in verdict.detail


def test_a_python_without_ctypes_is_named(place: Callable[..., Context], tmp_path: Path) -> None:
    (tmp_path / "ctypes.py").write_text("raise ModuleNotFoundError(\"No module named '_ctypes'\", name='_ctypes')")
    context = place("0", "fine", PYTHONPATH=str(tmp_path))
    assert of_cuda(context).outcome == Outcome.REFUSE
    on_host = replace(place("0", "fine", PYTHONPATH=str(tmp_path)), container=None)
    on_host = replace(on_host, request=replace(on_host.request, service=None, place="host"))
    (Path(on_host.files.path("/proc/self/uid_map"))).write_text("0 0 4294967295")
    verdict = of_cuda(on_host)
    assert verdict.outcome == Outcome.UNKNOWN
    assert "has no module _ctypes" in verdict.detail
    assert "libpython3-stdlib" in str(verdict.next_step)


def test_a_cuinit_that_hangs_is_killed_at_its_deadline(place: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "CUDA_SECONDS", 1.0)
    began = time.monotonic()
    context = place("hang", "fine")
    verdict = of_cuda(context)
    assert time.monotonic() - began < 15
    assert verdict.outcome == Outcome.REFUSE
    assert "it hangs (did not answer within 1 s and was killed)" in verdict.detail
    assert str(verdict.next_step).startswith("on the host: dmesg")
    assert context.commands.stuck == []


def test_an_nvidia_smi_that_hangs_is_asked_once(place: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cuda, "SMI_SECONDS", 0.5)
    context = place("0", "fine", script="#!/bin/sh\nexec sleep 60\n")
    smi = check_cuda(context)[1]
    assert (smi.outcome, complete(smi)) == (Outcome.REFUSE, True)
    assert "did not end within 0.5 s" in smi.detail
    assert "was not asked again" in context.commands.run(["nvidia-smi", "-q"], 20.0).errors


def test_a_command_in_state_d_is_left_behind_and_named(frozen: Path, tmp_path: Path) -> None:
    script = tmp_path / "stuck"
    script.write_text(f"#!/bin/sh\necho $$ > {frozen}/cgroup.procs\nexec sleep 60\n")
    script.chmod(0o755)
    began = time.monotonic()
    output = run_bounded([str(script)], 0.5)
    assert time.monotonic() - began < 10
    assert output.status is None
    assert "did not end within 0.5 s and can't be killed" in output.errors
    assert output.stuck is not None
    assert output.stuck.state == "D"
    assert os.geteuid() != 0 or "refrigerator" in output.stuck.waits_in
    (verdict,) = unkillable([output.stuck], seconds=0.2)
    assert (verdict.outcome, complete(verdict)) == (Outcome.REFUSE, True)
    assert f"process {output.stuck.pid} ({script}), state D in " in verdict.evidence[0]
    assert str(verdict.next_step).startswith("reboot the host")
    (frozen / "freezer.state").write_text("THAWED")
    wait_for("its end, once it is thawed", lambda: still_stuck(output.stuck) is None)  # type: ignore[arg-type]
    assert unkillable([output.stuck], seconds=0.2) == []


def test_a_cuinit_in_state_d_is_a_finding_of_its_own(place: Callable[..., Context], frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "CUDA_SECONDS", 1.0)
    monkeypatch.setattr("orchestrator.agent.doctor._END_SECONDS", 0.5)
    context = place("hang", "fine", STANDIN_FROZEN=str(frozen / "cgroup.procs"))
    began = time.monotonic()
    report = examine(context, [group for group in GROUPS if group.name == "cuda"])
    assert time.monotonic() - began < 20
    found = {verdict.check: verdict for verdict in report.verdicts}
    assert "can't be killed" in found["cuda"].detail
    assert found["unkillable"].outcome == Outcome.REFUSE
    assert "state D" in found["unkillable"].evidence[0]
    assert context.commands.stuck[0].pid in map(int, (frozen / "cgroup.procs").read_text().split())
