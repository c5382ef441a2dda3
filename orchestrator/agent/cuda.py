"""Whether CUDA initialises in the service's own Python, user and environment. nvidia-smi proves nothing about that.

With /dev/nvidia-uvm missing cuInit is 999 while nvidia-smi exits 0 (measured on driver 580.159.04). The call runs in a
subprocess: its result is cached for a process, and a driver that hangs must not hang the agent.
"""

import json
import os
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.service_python import ServicePython

CUDA_SECONDS = 20.0

_PROGRAM = """
import ctypes, json, signal
signal.alarm(30)
answer = {"status": None, "count": 0, "error": ""}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    answer["status"] = cuda.cuInit(0)
    if answer["status"] == 0:
        cuda.cuDeviceGetCount(ctypes.byref(count))
    answer["count"] = count.value
except OSError as error:
    answer["error"] = str(error)
print(json.dumps(answer), flush=True)
"""

_HINTS: Dict[int, str] = {
    3: "the driver's unified memory did not come up (HMM): on the host, `options nvidia_uvm uvm_disable_hmm=1` and reload nvidia_uvm",
    34: "the stub libcuda is found before the driver's: look at LD_LIBRARY_PATH in the service's environment",
    36: "the driver is older than this CUDA",
    46: "a GPU is in exclusive compute mode or its MIG instance is gone: nvidia-smi -q -d COMPUTE",
    100: "no GPU can be opened: look at /dev/nvidia0 and /dev/nvidiactl in the container, and at CUDA_VISIBLE_DEVICES",
    802: "the system is not ready: start nvidia-fabricmanager on the host, in the driver's version",
    803: "the container's libcuda and the host's kernel module differ in version: install the host's version in the container",
    804: "cuda-compat is used on a GPU that does not support it: take it out of LD_LIBRARY_PATH",
    999: "look at /dev/nvidia-uvm in the container: missing, empty, of an old major number or denied; on the host: "
    "nvidia-modprobe -u -c0, then restart the container",
}
"""cuInit's codes (CUDA driver API, group__CUDA__TYPES) and what was wrong when each was seen."""


@dataclass(frozen=True)
class CudaAnswer:
    """`status` is cuInit's; None when there was no answer: `problem` says why."""

    status: Optional[int] = None
    count: int = 0
    problem: Optional[str] = None


def device_nodes() -> List[str]:
    """The NVIDIA devices that this place sees (``/dev/nvidia0``, ``/dev/nvidiactl``...)."""
    return sorted(f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia"))


def initialise(python: ServicePython, seconds: float = CUDA_SECONDS) -> CudaAnswer:
    """Call cuInit and cuDeviceGetCount as the server would."""
    done = python.run(["-c", _PROGRAM], seconds)
    if done.problem is not None:
        return CudaAnswer(problem=done.problem)
    try:
        answer = json.loads(done.output)
        return CudaAnswer(answer["status"], answer["count"], answer["error"] or None)
    except (ValueError, KeyError):
        return CudaAnswer(problem="; ".join(done.last_errors(2)) or f"ended with status {done.status}")


def verdict(answer: CudaAnswer, gpus: Sequence[wire.Gpu]) -> wire.Verdict:
    """What the answer means, with the hint that fits its code."""
    if answer.status == 0:
        return _counted(answer.count, gpus)
    if answer.status is None:
        hangs = "did not answer" in (answer.problem or "")
        step = "look for Xid and GSP lines in the host's dmesg" if hangs else "ldconfig -p | grep libcuda, in the container"
        return wire.Verdict("cuda", wire.Outcome.REFUSE, f"CUDA can't be asked: {answer.problem}", next_step=step)
    hint = _HINTS.get(answer.status)
    return wire.Verdict(
        "cuda",
        wire.Outcome.REFUSE,
        f"cuInit gives {answer.status} in the service's Python" + (f", though nvidia-smi lists {len(gpus)} GPU(s)" if gpus else ""),
        [f"devices here: {' '.join(device_nodes()) or 'none'}"],
        hint or "look the code up in CUDA's driver API, CUresult",
    )


def _counted(count: int, gpus: Sequence[wire.Gpu]) -> wire.Verdict:
    if count == 0:
        return wire.Verdict("cuda", wire.Outcome.REFUSE, "CUDA initialises and finds no GPU", next_step="look at CUDA_VISIBLE_DEVICES")
    detail = f"CUDA initialises and sees {count} GPU(s)"
    return wire.Verdict("cuda", wire.Outcome.PASS, detail + (f" of {len(gpus)}" if len(gpus) != count and gpus else ""))
