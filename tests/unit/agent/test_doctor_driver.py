"""Kernel module, versions, libcuda, nvcc and glibc, on machines made of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import doctor_driver, driver
from orchestrator.agent.command import Output
from orchestrator.agent.doctor_driver import cached_libraries, check_driver, judge_glibc, judge_nvcc
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Observed
from orchestrator.agent.wire import Fact, Launch, Outcome, Verdict
from tests.unit.agent.doctor_machine import LIBRARY, SMI, VERSION, Machine, complete, nothing_of_nvidia

MODULE = "/proc/driver/nvidia/version"


def by_check(verdicts: list[Verdict]) -> dict[str, Verdict]:
    assert all(complete(verdict) for verdict in verdicts)
    return {verdict.check: verdict for verdict in verdicts}


@pytest.fixture(autouse=True)
def glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_driver, "glibc_version", lambda: "2.36")


def test_a_healthy_container_passes_throughout(tmp_path: Path) -> None:
    found = by_check(check_driver(Machine(tmp_path).context(kernel="6.8.*-pve", driver="580.*", environment={"CUDA_HOME": "/usr/cuda"})))
    assert found.pop("nvcc").outcome == Outcome.WARN
    assert {verdict.outcome for verdict in found.values()} == {Outcome.PASS}
    assert set(found) == {"driver", "kernel_version", "driver_version", "driver_library", "unified_memory", "glibc"}
    assert found["driver_library"].source.startswith(f"{LIBRARY}/libcuda.so.1")


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [({"expected_gpus": 0}, Outcome.PASS), ({"service": None}, Outcome.PASS), ({}, Outcome.WARN)],
)
def test_a_place_without_nvidia_says_one_line(tmp_path: Path, request_: dict[str, Any], outcome: str) -> None:
    """Yellow where something is to be served and nobody said that it needs no GPU."""
    (verdict,) = check_driver(nothing_of_nvidia(tmp_path).context(**request_))
    assert verdict.outcome == outcome


def test_expected_gpus_that_are_not_there_are_red(tmp_path: Path) -> None:
    (verdict,) = check_driver(nothing_of_nvidia(tmp_path).context(expected_gpus=8))
    assert verdict.outcome == Outcome.REFUSE
    assert "8 GPU(s) are expected" in verdict.detail
    assert "on the host: lspci" in str(verdict.next_step)


@pytest.mark.parametrize("expected", [None, 2])
def test_a_stand_in_nvidia_smi_is_no_reason_to_stop(tmp_path: Path, expected: int | None) -> None:
    machine = nothing_of_nvidia(tmp_path)
    machine.smi = SMI
    (verdict,) = check_driver(machine.context(expected_gpus=expected))
    assert verdict.outcome == Outcome.UNKNOWN
    assert "lists 2 GPU(s), and the kernel knows no NVIDIA device" in verdict.detail


def test_an_nvidia_smi_without_any_device_is_told(tmp_path: Path) -> None:
    machine = nothing_of_nvidia(tmp_path)
    machine.smi = Output(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "")
    (verdict,) = check_driver(machine.context())
    assert verdict.outcome == Outcome.WARN
    assert "couldn't communicate" in verdict.evidence[0]


@pytest.mark.parametrize(
    ("bound", "expected", "outcome", "words"),
    [
        (None, None, Outcome.REFUSE, "is not loaded"),
        ("nouveau", None, Outcome.REFUSE, "bound to nouveau"),
        ("vfio-pci", None, Outcome.WARN, "bound to vfio-pci"),
        ("vfio-pci", 2, Outcome.REFUSE, "bound to vfio-pci"),
    ],
)
def test_a_module_that_is_not_loaded(tmp_path: Path, bound: str | None, expected: int | None, outcome: str, words: str) -> None:
    machine = Machine(tmp_path, nodes={})
    for path in list(machine.files):
        if path == MODULE or path.startswith("/sys/module/nvidia"):
            del machine.files[path]
    if bound is not None:
        machine.files[f"/sys/bus/pci/drivers/{bound}/new_id"] = ""
        for bus in ("01", "02"):
            machine.links[f"/sys/bus/pci/devices/0000:{bus}:00.0/driver"] = f"../../drivers/{bound}"
    found = by_check(check_driver(machine.host(expected_gpus=expected)))
    assert found["driver"].outcome == outcome
    assert words in found["driver"].detail
    assert outcome == Outcome.WARN or "modprobe nvidia" in str(found["driver"].next_step)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12.2.0", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65  Release Build", "580.65"),
        ("nonsense", None),
    ],
)
def test_the_modules_version_is_read_whole(tmp_path: Path, text: str, version: str | None) -> None:
    place = tmp_path / MODULE[1:]
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert driver.module_version(KernelFiles(str(tmp_path))).value == version
    assert driver.is_loaded(KernelFiles(str(tmp_path)))


def keep(machine: Machine, facts: Any) -> None:
    folder = StateFolder(str(machine.folder / "state"), "svc")
    folder.create()
    folder.write_launch(Launch("l7", "svc", "auto", "/py", [], "127.0.0.1", 1))
    folder.mark_verified("l7", facts)


def test_what_changed_since_the_last_good_run_is_yellow(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    keep(machine, Observed(1, [Fact("kernel", "6.5.0-1-pve", "x"), Fact("driver", "580.159.03", "x")]))
    found = by_check(check_driver(machine.context()))
    assert found["kernel_version"].outcome == found["driver_version"].outcome == Outcome.WARN
    assert "it was 580.159.03 when a launch was last verified" in found["driver_version"].detail
    assert found["kernel_version"].evidence == ["at the last verified launch, l7: 6.5.0-1-pve"]


def test_what_is_kept_now_is_what_is_compared_later(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    context = machine.context()
    keep(machine, Observed(1, driver.kept_facts(context.files)))
    found = by_check(check_driver(context))
    assert found["kernel_version"].outcome == found["driver_version"].outcome == Outcome.PASS
    assert "as at the last verified launch" in found["driver_version"].detail


@pytest.mark.parametrize("facts", [None, [], {"facts": None}, {"facts": [1, {"name": "kernel"}, {"name": "driver", "value": 3}]}, "text"])
def test_records_that_can_not_be_understood_compare_with_nothing(tmp_path: Path, facts: Any) -> None:
    machine = Machine(tmp_path)
    keep(machine, facts)
    assert "kernel_version" not in by_check(check_driver(machine.context()))


def test_versions_beside_the_profiles_patterns_are_yellow(tmp_path: Path) -> None:
    found = by_check(check_driver(Machine(tmp_path).context(kernel="6.11.*", driver="575.*")))
    assert found["kernel_version"].detail == "the kernel is 6.8.12-4-pve; the tuning profile expects 6.11.*"
    assert found["driver_version"].outcome == Outcome.WARN


@pytest.mark.parametrize(
    ("links", "environment", "outcome", "words"),
    [
        ({f"{LIBRARY}/libcuda.so.1": "libcuda.so.580.159.03"}, {}, Outcome.REFUSE, "libcuda is 580.159.03, the kernel module 580.159.04"),
        ({}, {}, Outcome.REFUSE, "there is no libcuda.so.1 here"),
        ({f"{LIBRARY}/libcuda.so.1": "libcuda.so"}, {}, Outcome.UNKNOWN, "can't be told"),
        ({"/cuda/compat/libcuda.so.1": "libcuda.so.590.1.2"}, {"LD_LIBRARY_PATH": "/none:/cuda/compat"}, Outcome.WARN, "cuda-compat"),
        ({"/cuda/lib64/stubs/libcuda.so.1": "libcuda.so"}, {"LD_LIBRARY_PATH": "/cuda/lib64/stubs"}, Outcome.REFUSE, "stub"),
    ],
)
def test_libcuda_against_the_module(tmp_path: Path, links: dict[str, str], environment: dict[str, str], outcome: str, words: str) -> None:
    machine = Machine(tmp_path, links=links)
    for link, target in links.items():
        machine.files[os.path.join(os.path.dirname(link), target)] = ""
    verdict = by_check(check_driver(machine.context(environment=environment)))["driver_library"]
    assert verdict.outcome == outcome
    assert words in verdict.detail


def test_a_host_without_servers_needs_no_libcuda_and_does_not_stop_for_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "without", links={})
    assert by_check(check_driver(machine.host()))["driver_library"].outcome == Outcome.PASS
    machine = Machine(tmp_path / "older", links={f"{LIBRARY}/libcuda.so.1": "libcuda.so.575.1.2"})
    machine.files[f"{LIBRARY}/libcuda.so.575.1.2"] = ""
    assert by_check(check_driver(machine.host()))["driver_library"].outcome == Outcome.WARN


def test_the_loaders_cache_is_read_for_this_architecture() -> None:
    text = (
        "123 libs found in cache `/etc/ld.so.cache'\n\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n\tlibcuda.so (libc6,x86-64) => /x/libcuda.so\n"
        "\tlibcudadebugger.so.1 (libc6,x86-64) => /x/libcudadebugger.so.1\n"
    )
    assert cached_libraries(text, "x86_64") == ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
    assert cached_libraries(text, "aarch64") == []


def test_unified_memory_that_is_not_loaded_is_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    del machine.files["/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"]
    verdict = by_check(check_driver(machine.context()))["unified_memory"]
    assert verdict.outcome == Outcome.WARN
    assert verdict.next_step == "on the host: modprobe nvidia-uvm; nvidia-modprobe -u -c0"


@pytest.mark.parametrize(
    ("path", "version", "capabilities", "outcome"),
    [
        ("/usr/local/cuda/bin/nvcc", "12.8", ["12.0"], Outcome.WARN),
        ("/usr/local/cuda/bin/nvcc", "12.9", ["12.0"], Outcome.PASS),
        ("/usr/local/cuda/bin/nvcc", "13.0", ["12.1"], Outcome.PASS),
        ("/usr/local/cuda/bin/nvcc", "12.8", ["9.0"], Outcome.PASS),
        ("/usr/local/cuda/bin/nvcc", "12.8", [], Outcome.PASS),
        ("/usr/local/cuda/bin/nvcc", None, ["9.0"], Outcome.UNKNOWN),
        (None, None, ["9.0"], Outcome.WARN),
    ],
)
def test_nvcc_against_the_gpus(path: str | None, version: str | None, capabilities: list[str], outcome: str) -> None:
    verdict = judge_nvcc(path, version, capabilities)
    assert verdict.outcome == outcome
    assert complete(verdict)


@pytest.mark.parametrize(
    ("version", "outcome"),
    [("2.31", Outcome.PASS), ("2.40", Outcome.PASS), ("2.41", Outcome.WARN), ("3.0", Outcome.WARN), (None, Outcome.UNKNOWN)],
)
def test_glibc_from_which_run_time_compilation_breaks(version: str | None, outcome: str) -> None:
    (verdict,) = judge_glibc(version)
    assert verdict.outcome == outcome
    assert complete(verdict)


def test_nvcc_is_looked_for_where_flashinfer_looks(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.files["/usr/local/cuda/bin/nvcc"] = ""
    machine.files["/opt/cuda-12.9/bin/nvcc"] = ""
    context = machine.context(environment={"CUDA_HOME": "/opt/cuda-12.9"})
    found = by_check(check_driver(context))["nvcc"]
    assert (found.outcome, found.source) == (Outcome.PASS, "/opt/cuda-12.9/bin/nvcc --version")
    machine.folder = tmp_path / "second"
    assert by_check(check_driver(machine.context()))["nvcc"].source == "/usr/local/cuda/bin/nvcc --version"


def test_a_version_differs_in_its_last_part_too() -> None:
    assert driver.VERSION.findall(f"libcuda.so.{VERSION}") == [VERSION]
