"""The classes of failure and the texts that give them away: a new class is one entry here and one case file in the tests.

Texts are SGLang's (0.5.6 to 0.5.23), PyTorch's, NCCL's and FlashInfer's.
"""

import re
from dataclasses import dataclass
from typing import Tuple


class Category:
    """The values of :attr:`wire.Failure.category`."""

    ARGUMENT_REFUSED = "argument_refused"
    MODEL_NOT_FOUND = "model_not_found"
    HUB_UNREACHABLE = "hub_unreachable"
    CONTEXT_TOO_LONG = "context_too_long"
    PORT_IN_USE = "port_in_use"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_OCCUPIED = "gpu_occupied"
    BACKEND_UNSUPPORTED = "backend_unsupported"
    COMPILATION_FAILED = "compilation_failed"
    MISSING_MODULE = "missing_module"
    NCCL = "nccl"
    DRIVER = "driver"
    SHARED_MEMORY = "shared_memory"
    NUMA_BINDING = "numa_binding"
    HANG = "hang"
    WARM_UP_FAILED = "warm_up_failed"
    KILLED = "killed"
    INTERRUPTED = "interrupted"
    SCHEDULER_DIED = "scheduler_died"
    ERROR = "error"
    """An exception that no signature knows."""
    NOT_WHAT_WAS_ASKED = "not_what_was_asked"
    """It serves, and shows other arguments than it was given."""
    WRONG_ANSWERS = "wrong_answers"
    """It serves, and does not say what the old server said."""
    KV_CAPACITY = "kv_capacity"
    """It serves, with much less room for the KV cache than the last verified launch, though only the backend differs."""
    GENERATION_FAILED = "generation_failed"
    STALLED = "stalled"
    TIMED_OUT = "timed_out"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Signature:
    """One text that gives a class away. `anywhere`: in any line; otherwise only in an exception that ended a process."""

    category: str
    pattern: "re.Pattern[str]"
    summary: str
    advice: str
    anywhere: bool = False


def _signature(category: str, pattern: str, summary: str, advice: str, anywhere: bool = False) -> Signature:
    return Signature(category, re.compile(pattern), summary, advice, anywhere)


SIGNATURES: Tuple[Signature, ...] = (
    _signature(
        Category.ARGUMENT_REFUSED,
        r"^(?:sglang serve|launch_server\.py|usage|[\w.-]+): error: ",
        "SGLang's parser refused the command line",
        "compare the flag with the installed version's: `python -m sglang.launch_server --help`",
        anywhere=True,
    ),
    _signature(
        Category.PORT_IN_USE,
        r"\[Errno 98\]|EADDRINUSE|address already in use|is used by a process already|Port is already in use"
        r"|is not available in \d+ seconds",
        "a port that the server needs is held by another process",
        "see who holds it: `ss -ltnp`; SGLang checks its HTTP port only after the whole load",
        anywhere=True,
    ),
    _signature(
        Category.GPU_OCCUPIED,
        r"The memory capacity is unbalanced",
        "some GPUs are occupied by other processes",
        "see who holds GPU memory on the host: `nvidia-smi`; a server of before may not have released it yet",
    ),
    _signature(
        Category.OUT_OF_MEMORY,
        r"OutOfMemoryError|CUDA out of memory|Not enough memory\. Please try to increase|(?:Prefill|Decode) out of memory"
        r"|CUDA error: out of memory|Capture cuda graph failed.*memory",
        "the GPU memory does not suffice",
        "see what else is on the GPUs; lower --mem-fraction-static (memory for activations and graphs) or the graph batch sizes; "
        "'Not enough memory' while sizing the KV cache asks for more of it instead",
    ),
    _signature(
        Category.BACKEND_UNSUPPORTED,
        r"Invalid quantization|Unsupported moe_runner_backend|does not support NVFP4|requires FlashInfer with CuteDSL support"
        r"|expects arch to be one of|Unsupported architecture|no kernel image is available|Unsupported (?:compute )?capability"
        r"|NotImplementedError.*(?:NVFP4|moe|MoE|backend)|(?:sm|SM)_?\d+ is not supported|only supported on (?:Blackwell|Hopper|SM)",
        "this backend does not work with this model, this GPU or this build",
        "do not retry; choose another backend profile (`fab backends` says which exist for which compute capability)",
    ),
    _signature(
        Category.BACKEND_UNSUPPORTED,
        r"Cannot find the config file for \w+",
        "the checkpoint is not quantized as --quantization says",
        "check the model's config.json and hf_quant_config.json, or take a backend for another quantization",
    ),
    _signature(
        Category.COMPILATION_FAILED,
        r"Ninja build failed|Error building extension|nvcc fatal|ptxas (?:fatal|error)|CompilationError|NVCC compilation failed"
        r"|DSLRuntimeError|OpError",
        "a kernel could not be compiled on this box",
        "check `nvcc --version` (sm_120 needs CUDA 12.9), the compiler and glibc; see the compiler's output in the log",
    ),
    _signature(
        Category.CONTEXT_TOO_LONG,
        r"context_length \(\d+\) is greater than the derived context_length",
        "--context-length is longer than the model's own",
        "lower it, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 when it is meant",
    ),
    _signature(
        Category.HUB_UNREACHABLE,
        r"couldn't connect to 'https?://|Temporary failure in name resolution|LocalEntryNotFoundError|Max retries exceeded with url",
        "the model is not on this box and its hub can't be reached",
        "give a local path, or fetch the model first and check HF_HOME of the service's user",
    ),
    _signature(
        Category.MODEL_NOT_FOUND,
        r"Repo id must be in the form|is not a local folder and is not a valid model identifier|RepositoryNotFoundError"
        r"|Cannot find any model weights|No such file or directory: '[^']*(?:config\.json|\.safetensors)",
        "there is no such model on this box",
        "check --model-path as the service's user sees it",
    ),
    _signature(
        Category.SHARED_MEMORY,
        r"Bus error|No space left on device|unable to (?:open|mmap|allocate) shared memory",
        "shared memory or a disk is full",
        "`df -h /dev/shm /tmp`; remove what dead servers left in /dev/shm",
        anywhere=True,
    ),
    _signature(
        Category.DRIVER,
        r"CUDA driver version is insufficient|No CUDA GPUs are available|cudaErrorNoDevice|cudaErrorInsufficientDriver"
        r"|Found no NVIDIA driver|CUDA unknown error|Failed to initialize NVML|Driver/library version mismatch"
        r"|CUDA error: (?:initialization error|unknown error|system)",
        "CUDA does not work here",
        "run `nvidia-smi`, and look for /dev/nvidia-uvm in the container: without it nvidia-smi works and CUDA does not",
    ),
    _signature(
        Category.NCCL,
        r"NCCL (?:error|Error)|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError"
        r"|Watchdog caught collective operation timeout|DistBackendError|DistNetworkError",
        "the GPUs could not talk to each other (NCCL)",
        "set NCCL_DEBUG=INFO; on PCIe boxes try NCCL_P2P_DISABLE=1 and check IOMMU and ACS; check /dev/shm",
    ),
    _signature(
        Category.DRIVER,
        r"CUDA error: |AcceleratorError",
        "a CUDA call failed",
        "set CUDA_LAUNCH_BLOCKING=1 to see which kernel; look for Xid lines in the host's kernel log",
    ),
    _signature(
        Category.MISSING_MODULE,
        r"ModuleNotFoundError: |ImportError: ",
        "a Python module that this launch needs is missing or does not import",
        "install it into the service's Python, or take a backend that does without",
    ),
    _signature(
        Category.HANG,
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?!.*self\.soft=True)",
        "SGLang's own watchdog saw the scheduler make no step",
        "the Pyspy dump in the log shows where it stands; a collective that hangs at graph capture is often P2P over PCIe",
        anywhere=True,
    ),
    _signature(
        Category.INTERRUPTED,
        r"Subprocess .* crashed with exit code -15",
        "the whole process group got a SIGTERM, so the schedulers died at once",
        "stop a server by SIGTERM to its main process only",
        anywhere=True,
    ),
    _signature(
        Category.KILLED,
        r"Subprocess .* crashed with exit code -9\b",
        "one of its processes was killed (SIGKILL)",
        "look for the OOM killer: `dmesg | grep -i oom` on the host; otherwise somebody killed it",
        anywhere=True,
    ),
    _signature(
        Category.WARM_UP_FAILED,
        r"Initialization failed\. warmup error:",
        "the warm-up request failed, so the server ended itself",
        "the exception in the log says why; a proxy variable without no_proxy for loopback does this too, "
        "and a cold JIT cache needs SGLANG_WARMUP_TIMEOUT",
        anywhere=True,
    ),
)
"""In order: the first that matches is the class."""
