"""How a new server may fail: in each phase of its load, by its arguments, in what it answers, and as others' logs tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.agent.failure_classes import Category
from tests.faults.cases import Case
from tests.faults.faults import SECTION, Fault
from tests.faults.lane import Lane

_CAPTURED = Path(__file__).parents[1] / "data"
_GPU = {"compute_capability": "12.0"}
_STALL = {"load_stall": 8}
"""Bounds the server that is put back too, which a busy machine may keep waiting for a core."""

PHASES = ("imports", "child_imports", "distributed", "weights", "kv_cache", "autotune", "graph_capture", "warm_up")

HANGS = [
    Fault(
        f"hang in {phase}",
        f"the stand-in stops for ever at the beginning of {phase}; load_stall 8 s",
        categories=(Category.STALLED,),
        settings={"hang_at": phase, **_GPU},
        policy=_STALL,
    )
    for phase in PHASES
]
FAILURES = [
    Fault(
        f"failure in {phase}",
        f"the stand-in's scheduler raises at the beginning of {phase}",
        categories=(
            Category.OUT_OF_MEMORY,
            Category.OUT_OF_MEMORY_WEIGHTS,
            Category.OUT_OF_MEMORY_KV_CACHE,
            Category.OUT_OF_MEMORY_GRAPHS,
        ),
        settings={"fail_at": phase, **_GPU},
    )
    for phase in PHASES[1:-1]
]

ARGUMENTS = [
    Fault("argument refused", "--no-such-flag", categories=(Category.ARGUMENT_REFUSED,), arguments=["--no-such-flag", "1"]),
    Fault("context too long", "--context-length", categories=(Category.CONTEXT_TOO_LONG,), arguments=["--context-length", "9999999"]),
    Fault(
        "quantization unsupported",
        "flashinfer_cutedsl without FP4",
        categories=(Category.QUANTIZATION_UNSUPPORTED,),
        arguments=["--moe-runner-backend", "flashinfer_cutedsl"],
    ),
    Fault(
        "kernel missing for this architecture",
        "flashinfer_cutedsl on 12.0",
        categories=(Category.KERNEL_MISSING,),
        arguments=["--moe-runner-backend", "flashinfer_cutedsl", "--quantization", "modelopt_fp4"],
        settings=_GPU,
    ),
    Fault(
        "backend unsupported",
        "triton with FP4",
        categories=(Category.BACKEND_UNSUPPORTED,),
        arguments=["--moe-runner-backend", "triton", "--quantization", "modelopt_fp4"],
        settings=_GPU,
    ),
    Fault("model folder gone", "--model-path", categories=(Category.MODEL_NOT_FOUND,), arguments=["--model-path", "/srv/models/gone"]),
    Fault("hub unreachable", "--model-path of a hub", categories=(Category.HUB_UNREACHABLE,), arguments=["--model-path", "some/model"]),
    Fault(
        "SGLang not importable", "PYTHONPATH", categories=(Category.MISSING_MODULE, Category.UNKNOWN), environment={"PYTHONPATH": "/srv"}
    ),
    Fault("wrong python: not there", "python: /usr/bin/python0", launch={"python": "/usr/bin/python0"}),
    Fault("wrong python: not a python", "python: /usr/bin/true", categories=(Category.UNKNOWN,), launch={"python": "/usr/bin/true"}),
    Fault("no such user", "user: nobody-here", launch={"user": "nobody-here"}),
]

ANSWERS = [
    Fault("garbage output", "log-likelihoods far off, status 200", categories=(Category.WRONG_ANSWERS,), settings={"garbage": "1"}),
    Fault(
        "KV capacity shrunk",
        "half the KV cache, by the backend's doing",
        categories=(Category.KV_CAPACITY,),
        settings={"capacity": "0.5"},
        launch={"backend_environment": ["SGLANG_STANDIN_CAPACITY"]},
    ),
    Fault(
        "half-dead server that answers health",
        "/health is 200, everything else 500",
        categories=(Category.GENERATION_FAILED,),
        launch={"entry": ["/opt/faults/half_dead.py", "500"]},
    ),
    Fault(
        "wrong API key",
        "every route but /health answers 401",
        categories=(Category.GENERATION_FAILED,),
        launch={"entry": ["/opt/faults/half_dead.py", "401"]},
    ),
    Fault(
        "dies right after it was loaded",
        "the first scheduler gets SIGKILL 0.2 s after its load",
        categories=(Category.KILLED, Category.SCHEDULER_DIED),
        settings={"crash_after": "0.2", "first_token_seconds": "0.2"},
    ),
]


PLAYED = {
    "autotune_crash": Category.CUDA_ERROR,
    "checkpoint_cut_short": Category.CHECKPOINT_UNREADABLE,
    "compilation_failed": Category.COMPILATION_FAILED,
    "cuda_unknown_error": Category.CUDA_INIT,
    "disk_full": Category.DISK_FULL,
    "driver_library_mismatch": Category.VERSION_MISMATCH,
    "gpu_missing": Category.GPU_MISSING,
    "gpus_occupied": Category.GPU_OCCUPIED,
    "hang_in_a_collective": Category.HANG,
    "jit_lock_timeout": Category.JIT_LOCK,
    "missing_module": Category.MISSING_MODULE,
    "model_class_unknown": Category.MODEL_UNSUPPORTED,
    "nccl": Category.NCCL,
    "numa_crash_when_asked": Category.NUMA_BINDING,
    "out_of_memory_running_by_frames": Category.OUT_OF_MEMORY_RUNNING,
    "python_error_in_scheduler": Category.SCHEDULER_DIED,
    "shared_memory_full": Category.SHARED_MEMORY,
    "unknown_exception": Category.UNKNOWN,
    "warm_up_failed": Category.WARM_UP_FAILED,
    "warm_up_proxy_502": Category.WARM_UP_PROXY,
}
"""A case of tests/data/failures -> its class. What a box without a GPU can't be made to do is played back from the log of it."""


def playback(log: str, category: str, **more: Any) -> Fault:
    """A launch that writes the log of a case of tests/data/failures and ends as that did; `more` are the fault's other fields."""
    data = json.loads((_CAPTURED / "failures" / f"{log}.json").read_text(encoding="utf-8"))
    lines = (
        data["lines"]
        if "lines" in data
        else (_CAPTURED / "captures" / data["log"]).read_text(encoding="utf-8", errors="replace").splitlines()
    )
    entry = ["/opt/faults/playback.py", f"/opt/faults/{log}.log", str(data["exit_status"])]

    def put(lane: Lane) -> None:
        lane.container.write(f"/opt/faults/{log}.log", "\n".join(lines) + "\n")

    source = "a real server's" if data["source"] == "captured" else "a written"
    named = {"name": f"log played back: {log}", "how": f"{source} log and how it ended", **more}
    return Fault(categories=(category,), launch={"entry": entry}, before=put, **named)


def cases() -> list[Case]:
    """All of them."""
    faults = [*HANGS, *FAILURES, *ARGUMENTS, *ANSWERS, *(playback(*item) for item in PLAYED.items())]
    return [fault.case(SECTION) for fault in faults]
