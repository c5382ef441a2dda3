"""What is served, and with what: the installed SGLang and a tiny random mixture of experts, on the GPU or, to rehearse, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rig import sglang as cpu_sglang
from tests.rig.tiny_model import FOR_CPU, FOR_GPU, QWEN2_MOE, QWEN3_MOE, Architecture, Dimensions

SERVICE = "tiny-moe"
HOST = "box"
FIRST, SECOND, BROKEN = "auto", "triton", "flashinfer_cutedsl"
"""The backends that are changed between: one that serves, another one, one that can't work with a bf16 model."""
STEERING = ("CUDA_", "NVIDIA_", "LD_LIBRARY_PATH", "NCCL_", "TORCH_", "TRITON_", "NVSHMEM_")
"""What a server takes over from the login: where CUDA is, and what a machine forbids."""
REFUSED_BY = ("quantization", "compute_capability", "python_modules", "launch_rules", "kernel")
"""Checks of a preflight of which at least one speaks against `BROKEN`."""


@dataclass(frozen=True)
class Setting:
    """One way to serve. `sizes` are the batch sizes that are timed, `stream_tokens` the length of a stream that outlives a stop's drain."""

    python: Path
    has_gpu: bool
    architecture: Architecture
    dimensions: Dimensions
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    sizes: tuple[int, ...]
    stream_tokens: int
    policy: Mapping[str, Any] = field(default_factory=dict)
    patience: float = 1.0
    """By what the steps' limits are longer than on an H200."""

    def service(self, model: Path, port: int) -> dict[str, Any]:
        """The service as its YAML says it."""
        return {
            "host": HOST,
            "place": "host",
            "python": str(self.python),
            "model": str(model),
            "port": port,
            "backend": FIRST,
            "arguments": dict(self.arguments),
            "environment": dict(self.environment),
            "policy": dict(self.policy),
        }


# Random weights write nonsense, and say of every text that it is unlikely.
_RANDOM = {"garbage": "warn", "likelihood_floor": -50.0}


def on_gpu(python: Path, python_path: str, environment: Mapping[str, str] = os.environ) -> Setting:
    """One GPU; three tenths of its free memory, so that a second server has room."""
    taken = {name: value for name, value in environment.items() if name.startswith(STEERING)}
    own = {"HF_HUB_OFFLINE": "1", "PATH": environment["PATH"], **({"PYTHONPATH": python_path} if python_path else {})}
    return Setting(
        python,
        has_gpu=True,
        architecture=QWEN3_MOE,
        dimensions=FOR_GPU,
        arguments={"--load-format": "dummy", "--mem-fraction-static": 0.3, "--enable-metrics": True},
        environment={**taken, **own, "SGLANG_RECORD_STEP_TIME": "1"},
        sizes=(1, 4, 16, 64),
        stream_tokens=4000,
        policy={**_RANDOM, "load_total": 420},
    )


def on_cpu(python: Path, python_path: str) -> Setting:
    """The SGLang that ``make sglang-cpu`` makes: for a rehearsal of the driver, not for what it finds."""
    own = {"PYTHONPATH": python_path} if python_path else {}
    return Setting(
        python,
        has_gpu=False,
        architecture=QWEN2_MOE,
        dimensions=FOR_CPU,
        arguments=dict(cpu_sglang.ARGUMENTS),
        environment={**cpu_sglang.ENVIRONMENT, **own, "SGLANG_RECORD_STEP_TIME": "1"},
        sizes=(1, 4),
        stream_tokens=1000,
        policy={**_RANDOM, "load_total": 420, "measure_repeats": 3, "measure_output_tokens": 64},
        patience=4.0,
    )
