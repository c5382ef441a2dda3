"""The stand-in nvidia-smi: formats, failures, and memory that follows living processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.lab.build import STANDIN
from orchestrator.lab.processes import start_time


@pytest.fixture(scope="module")
def nvidia_smi() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nvidia_smi", STANDIN / "nvidia_smi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nvidia_smi"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gpus = {"count": 2, "name": "NVIDIA B200", "compute_capability": "10.0", "memory_mib": 1000, "uuid": "GPU-0"}
    (tmp_path / "gpus.json").write_text(json.dumps(gpus), encoding="utf-8")
    (tmp_path / "processes").mkdir()
    return tmp_path


def record(folder: Path, pid: int, started: int, gpu: int, memory: int) -> None:
    data = {"pid": pid, "start_time": started, "role": "scheduler", "gpu": gpu, "memory_mib": memory}
    (folder / "processes" / f"{pid}.json").write_text(json.dumps(data), encoding="utf-8")


def test_queries_in_the_real_formats(nvidia_smi: ModuleType, folder: Path) -> None:
    plain = "--format=csv,noheader,nounits"
    output, status = nvidia_smi.answer(folder, ["--query-gpu=index,name,compute_cap,memory.used,memory.total", plain])
    assert (output, status) == ("0, NVIDIA B200, 10.0, 0, 1000\n1, NVIDIA B200, 10.0, 0, 1000\n", 0)
    output, _ = nvidia_smi.answer(folder, ["--query-gpu=memory.total,clocks.sm", "--format=csv", "-i", "1"])
    assert output == "memory.total [MiB], clocks.current.sm [MHz]\n1000 MiB, 1980 MHz\n"
    output, _ = nvidia_smi.answer(folder, ["-L"])
    assert output.splitlines()[1] == "GPU 1: NVIDIA B200 (UUID: GPU-0-000000000001)"


def test_an_unknown_field_fails_the_whole_query(nvidia_smi: ModuleType, folder: Path) -> None:
    output, status = nvidia_smi.answer(folder, ["--query-gpu=index,gpu_recovery_action", "--format=csv"])
    assert status == 2
    assert output.startswith('Field "gpu_recovery_action" is not a valid field to query.')


def test_memory_counts_only_the_living(nvidia_smi: ModuleType, folder: Path) -> None:
    ended = subprocess.Popen(["sleep", "60"])
    started = start_time(ended.pid)
    ended.kill()
    ended.wait()
    record(folder, os.getpid(), start_time(os.getpid()), 0, 300)
    record(folder, ended.pid, started, 1, 500)
    record(folder, 2**22 + 1, 0, 1, 500)
    record(folder, os.getppid(), start_time(os.getppid()) + 1, 1, 500)
    used, _ = nvidia_smi.answer(folder, ["--query-gpu=memory.used", "--format=csv,noheader,nounits"])
    assert used == f"{300 + nvidia_smi.BUSY_MEMORY_MIB}\n0\n"
    holders, _ = nvidia_smi.answer(folder, ["--query-compute-apps=pid,used_memory", "--format=csv"])
    assert holders == f"pid, used_gpu_memory [MiB]\n{os.getpid()}, 300 MiB\n"
