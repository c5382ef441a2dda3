"""What a scheduler goes through before it can serve: phases, log lines, GPU memory, and the failures that come late."""

from __future__ import annotations

import os
import time
from typing import Any

from sglang.standin import backends
from sglang.standin.log import log, raw
from sglang.standin.plan import Plan
from sglang.standin.process import Record, memory_held_by_others

SECONDS = {"imports": 5.0, "child_imports": 5.0, "distributed": 0.5, "weights": 4.0, "kv_cache": 0.5, "autotune": 1.0, "graph_capture": 2.0}
"""Before scaling. The real ones are minutes for a large model."""

_SHARDS = 8
_CONTEXT_MIB = 600
"""CUDA context and NCCL's buffers: what a rank holds before it allocates anything, at its gate too. Not measured."""
_MIB_PER_GB = 1024
_WEIGHTS_MIB = 54_000
"""Of each rank: GLM-5 in NVFP4 over eight GPUs, roughly."""
_KV_MIB_PER_TOKEN = 0.09
_KV_TOKENS_WITHOUT_GPU = 8192
_CAPTURED = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64]


class LateError(Exception):
    """A failure in the scheduler; the text is the last line of the traceback that the real one prints."""


class Loader:
    """One scheduler's way to readiness, on the GPU that CUDA shows as number `rank`."""

    def __init__(self, plan: Plan, rank: int, record: Record, gate_opened: Any) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._rank = rank
        self._gpu = _visible_gpu(rank)
        self._record = record
        self._gate_opened = gate_opened
        self._total = plan.settings.gpu_memory_mib
        self._held = 0
        self.timings: dict[str, float] = {}
        self.tokens = 0

    def load(self) -> None:
        """Go through all phases.

        Raises:
            LateError: the backend's kernels do not work here, or a fault that was asked for.
        """
        for phase in ("distributed", "gate", "weights", "kv_cache", "autotune", "graph_capture"):
            began = time.monotonic()
            if phase == self._settings.hang_at:
                _announce(phase)
            enter_phase(self._plan, phase)
            getattr(self, f"_{phase}")()
            self.timings[phase] = time.monotonic() - began
        self._log_capacity()

    def _distributed(self) -> None:
        log("Init parallel begin.")
        self._pause("distributed")
        self._hold(_CONTEXT_MIB)
        log("Init parallel ends. elapsed=0.42 s")

    def _gate(self) -> None:
        if self._plan.gate_port is not None:
            # Imported here, so that a copy without this file is an SGLang from before it.
            from sglang.srt.distributed.gated_launch import maybe_wait_for_gated_launch

            maybe_wait_for_gated_launch(self._plan, self._rank, self._gate_opened)
        log("Memory baseline taken. mem usage=0.00 GB")

    def _weights(self) -> None:
        available = self._available()
        log(f"Load weight begin. avail mem={available / _MIB_PER_GB:.2f} GB")
        began = time.monotonic()
        if self._plan["load_format"] != "dummy":
            self._load_shards()
        self._hold(_WEIGHTS_MIB)
        log(
            f"Load weight end. elapsed={time.monotonic() - began:.2f} s, type={self._plan.architecture}, "
            f"{self._quantization()}avail mem={self._available() / _MIB_PER_GB:.2f} GB, mem usage={self._held / _MIB_PER_GB:.2f} GB."
        )

    def _load_shards(self) -> None:
        seconds = self._settings.scaled(SECONDS["weights"]) + self._settings.slow_start
        for shard in range(1, _SHARDS + 1):
            time.sleep(seconds / _SHARDS)
            if self._rank == 0:
                raw(f"\rLoading safetensors checkpoint shards: {100 * shard // _SHARDS:3d}% Completed | {shard}/{_SHARDS}")
        if self._rank == 0:
            raw("\n")

    def _kv_cache(self) -> None:
        self._pause("kv_cache")
        self.tokens = self._capacity()
        memory = round(self.tokens * _KV_MIB_PER_TOKEN) if self._total else 0
        self._hold(memory)
        log(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {self.tokens}, KV size: {memory / _MIB_PER_GB:.2f} GB")
        log(f"Memory pool end. avail mem={self._available() / _MIB_PER_GB:.2f} GB")

    def _capacity(self) -> int:
        """Whatever is left of the card: a process that was left behind makes it smaller, and nothing says so."""
        asked = self._plan["max_total_tokens"]
        tokens = float(asked or _KV_TOKENS_WITHOUT_GPU)
        if self._total:
            room = self._available() - self._total * (1 - float(self._plan["mem_fraction_static"]))
            fitting = max(1024.0, room / _KV_MIB_PER_TOKEN)
            tokens = min(float(asked), fitting) if asked else fitting
        return int(tokens * self._settings.capacity)

    def _autotune(self) -> None:
        if not self._settings.compute_capability or self._plan["disable_flashinfer_autotune"]:
            return
        capability = self._settings.compute_capability.replace(".", "")
        folder = f"{os.path.expanduser('~')}/.cache/sglang/flashinfer/autotune/0.7.2/sm{capability}"
        log(f"Running FlashInfer autotune with cache: {folder}/rank_tp{self._rank}_pp0_dp0.json")
        self._pause("autotune")
        log("FlashInfer autotune completed.")

    def _graph_capture(self) -> None:
        if not self._plan.has_graphs:
            return
        available = self._available() / _MIB_PER_GB
        log(f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs={_CAPTURED}, avail mem={available:.2f} GB")
        self._pause("graph_capture")
        self.check_forward()
        self._hold(512)
        log(
            f"Capture target decode CUDA graph end. elapsed={self._settings.scaled(SECONDS['graph_capture']):.2f} s, "
            f"mem usage=0.50 GB, avail mem={self._available() / _MIB_PER_GB:.2f} GB."
        )

    def check_forward(self) -> None:
        """The first pass through the MoE layers.

        Raises:
            LateError: the runner can't run on these GPUs.
        """
        error = backends.first_forward_error(self._plan.runner, self._plan["quantization"], self._settings.compute_capability)
        if error:
            raise LateError(error)

    def _log_capacity(self) -> None:
        where = "available_gpu_mem" if self._total else "available_cpu_mem"
        log(
            f"max_total_num_tokens={self.tokens}, chunked_prefill_size={self._plan['chunked_prefill_size']}, "
            f"max_prefill_tokens={self._plan['max_prefill_tokens']}, max_running_requests={self._plan['max_running_requests']}, "
            f"context_len={self._plan.context_length}, {where}={self._available() / _MIB_PER_GB:.2f} GB"
        )

    def _available(self) -> float:
        others = memory_held_by_others(self._settings.processes, self._gpu)
        return max(0.0, float(self._total - others - self._held)) if self._total else 21.0 * _MIB_PER_GB

    def _hold(self, memory_mib: int) -> None:
        if self._total:
            self._held += memory_mib
            self._record.update(self._gpu, self._held)

    def _quantization(self) -> str:
        return f"quant={self._plan['quantization']}, " if self._plan["quantization"] else ""

    def _pause(self, phase: str) -> None:
        time.sleep(self._settings.scaled(SECONDS[phase]))


def _visible_gpu(rank: int) -> int:
    """The machine's own number of the GPU that a process of this environment sees as `rank`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[rank]) if rank < len(visible) and visible[rank].strip().isdigit() else rank


def enter_phase(plan: Plan, phase: str) -> None:
    """Apply the faults that were asked for at the beginning of `phase`; the gate is a phase of a launch that has one.

    Raises:
        LateError: `fail_at` names it.
    """
    if phase == "gate" and plan.gate_port is None:
        return
    while phase == plan.settings.hang_at:
        time.sleep(60)
    if phase == plan.settings.fail_at:
        raise LateError(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 94.97 GiB "
            "of which 1.12 GiB is free."
        )


def _announce(phase: str) -> None:
    """The line after which a phase that hangs would be silent."""
    lines = {
        "distributed": "Init parallel begin.",
        "weights": "Load weight begin. avail mem=90.00 GB",
        "autotune": "Running FlashInfer autotune with cache: autotune.json",
        "graph_capture": "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4]",
    }
    if phase in lines:
        log(lines[phase])
