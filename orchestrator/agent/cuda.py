"""Whether CUDA initialises in the service's own Python, user and environment. nvidia-smi proves nothing about that.

With /dev/nvidia-uvm missing cuInit is 999 while nvidia-smi exits 0 (measured on driver 580.159.04). The call runs in a
subprocess: its result is cached for a process, and a driver that hangs must not hang the agent.
"""

import os
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.service_python import Completed, ServicePython

CUDA_SECONDS = 20.0
SOURCE = "cuInit in the service's Python"
UNKNOWN_HINT = "look the code up in CUDA's driver API, CUresult"

_PROGRAM = """
import signal
signal.alarm(30)
try:
    import ctypes
except ImportError as error:
    raise SystemExit(print("missing", error.name or "ctypes", flush=True))
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    raise SystemExit(print("library", error, flush=True))
status = cuda.cuInit(0)
print("status", status, flush=True)
if status == 0:
    count = ctypes.c_int()
    print("count_status", cuda.cuDeviceGetCount(ctypes.byref(count)), flush=True)
    print("count", count.value, flush=True)
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
    """`status` is cuInit's; None when there was no answer: `problem` says why. `count` is cuDeviceGetCount's.

    `missing` names a module that this Python lacks, `library` says why libcuda can't be loaded.
    """

    status: Optional[int] = None
    count: int = 0
    problem: Optional[str] = None
    missing: Optional[str] = None
    library: Optional[str] = None

    @property
    def hangs(self) -> bool:
        """Whether the child had to be killed, or left behind, at its deadline."""
        return "did not answer" in (self.problem or "")


def device_nodes() -> List[str]:
    """The NVIDIA devices that this place sees (``/dev/nvidia0``, ``/dev/nvidiactl``...)."""
    return sorted(f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia"))


def initialise(python: ServicePython, seconds: float = CUDA_SECONDS) -> CudaAnswer:
    """Call cuInit and cuDeviceGetCount as the server would."""
    return ask(python.run, seconds)


def ask(run: Callable[[List[str], float], Completed], seconds: float = CUDA_SECONDS) -> CudaAnswer:
    """The same by `run`, which takes a Python's arguments and a bound."""
    done = run(["-c", _PROGRAM], seconds)
    said = dict(line.split(" ", 1) for line in done.output.splitlines() if " " in line)
    if done.problem is not None:
        return CudaAnswer(problem=done.problem)
    if "missing" in said:
        return CudaAnswer(problem=f"this Python has no module {said['missing']}", missing=said["missing"])
    if "library" in said:
        return CudaAnswer(problem=said["library"], library=said["library"])
    try:
        return CudaAnswer(int(said["status"]), int(said.get("count", 0)))
    except (ValueError, KeyError):
        return CudaAnswer(problem="; ".join(done.last_errors(2)) or f"ended with status {done.status}")


def verdict(answer: CudaAnswer, gpus: Sequence[wire.Gpu]) -> wire.Verdict:
    """What the answer means, with the hint that fits its code."""
    if answer.status == 0:
        return _counted(answer.count, gpus)
    if answer.status is None:
        step = "look for Xid and GSP lines in the host's dmesg" if answer.hangs else "ldconfig -p | grep libcuda, in the container"
        return wire.Verdict("cuda", wire.Outcome.REFUSE, f"CUDA can't be asked: {answer.problem}", next_step=step, source=SOURCE)
    return wire.Verdict(
        "cuda",
        wire.Outcome.REFUSE,
        f"cuInit gives {answer.status} in the service's Python" + (f", though nvidia-smi lists {len(gpus)} GPU(s)" if gpus else ""),
        [f"devices here: {' '.join(device_nodes()) or 'none'}"],
        _HINTS.get(answer.status, UNKNOWN_HINT),
        SOURCE,
    )


def _counted(count: int, gpus: Sequence[wire.Gpu]) -> wire.Verdict:
    if count == 0:
        return wire.Verdict(
            "cuda", wire.Outcome.REFUSE, "CUDA initialises and finds no GPU", next_step="look at CUDA_VISIBLE_DEVICES", source=SOURCE
        )
    detail = f"CUDA initialises and sees {count} GPU(s)"
    return wire.Verdict("cuda", wire.Outcome.PASS, detail + (f" of {len(gpus)}" if len(gpus) != count and gpus else ""), source=SOURCE)
