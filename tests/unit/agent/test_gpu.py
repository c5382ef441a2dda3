from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.gpu import ComputeApp, GpuReading, ask_gpus, parse_apps, parse_gpus

GPUS = """\
0, GPU-aaaa, NVIDIA RTX PRO 6000 Blackwell Server Edition, 12.0, 71234, 97887
1, GPU-bbbb, NVIDIA H200, 9.0, [N/A], 143771
Unable to determine the device handle for GPU2: 0000:41:00.0: Unknown Error
"""


def test_gpus() -> None:
    assert parse_gpus(GPUS) == [
        wire.Gpu(0, "GPU-aaaa", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 71234, 97887),
        wire.Gpu(1, "GPU-bbbb", "NVIDIA H200", "9.0", 0, 143771),
    ]
    assert parse_gpus("No devices were found\n") == []


def test_apps() -> None:
    assert parse_apps("GPU-aaaa, 4711, 131312\nGPU-aaaa, 4712, [N/A]\nGPU-bbbb, [N/A], 5\n") == [
        ComputeApp("GPU-aaaa", 4711, 131312),
        ComputeApp("GPU-aaaa", 4712, None),
    ]


def test_an_nvidia_smi_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_gpus() == GpuReading([], "nvidia-smi: No such file or directory")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\necho 'look at the driver' >&2\nexit 9\n")
    tool.chmod(0o755)
    assert ask_gpus() == GpuReading([], "nvidia-smi ended with status 9", ["NVIDIA-SMI has failed", "look at the driver"])
