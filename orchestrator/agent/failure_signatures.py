"""The texts that give a failure away: a new class is one entry here and one case file in the tests.

Texts are SGLang's (0.5.6 to 0.5.23), PyTorch's, NCCL's, FlashInfer's (0.6, 0.7) and CuTe DSL's.
"""

from typing import Tuple

from orchestrator.agent.failure_classes import Category, Signature, Stage, Where, signature
from orchestrator.agent.failure_signatures_gpu import BACKENDS, COMPILERS, MEMORY, NVIDIA, REMOVE_LOCK
from orchestrator.agent.phases import Phase

__all__ = ["REMOVE_LOCK", "SIGNATURES", "SILENT_SCHEDULER", "Category"]


_REINSTALL = "install the versions that this SGLang pins into the service's Python (`pip check`; `pip show sglang`)"

_ARGUMENTS: Tuple[Signature, ...] = (
    signature(
        Category.ARGUMENT_REFUSED,
        r"^(?:sglang(?: serve)?|(?:python3? -m )?(?:sglang\.)?launch_server(?:\.py)?|__main__\.py): error: ",
        "SGLang's parser refused the command line",
        "compare the flag with the installed version's: `python -m sglang.launch_server --help`",
        where=Where.LINE,
    ),
    signature(
        Category.CONTEXT_TOO_LONG,
        r"context_length \(\d+\) is greater than the derived context_length",
        "--context-length is longer than the model's own",
        "lower it, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 when it is meant",
    ),
)

_PORTS_AND_SPACE: Tuple[Signature, ...] = (
    signature(
        Category.PORT_IN_USE,
        r"DistNetworkError.*(?:EADDRINUSE|address already in use)",
        "a port that the ranks meet at was taken in the meantime",
        "SGLang chooses another one at the next start, unless --dist-init-addr or --nccl-port names it",
        retry=True,
    ),
    signature(
        Category.PORT_IN_USE,
        r"\[Errno 98\]|EADDRINUSE|Port is already in use\.|\bat \d+ is not available in \d+ seconds",
        "a port that the server needs is held by another process",
        "see who holds it: `ss -ltnp`; SGLang checks its HTTP port only after the whole load",
        where=Where.LINE,
    ),
    signature(
        Category.SHARED_MEMORY,
        r"\bBus error\b|unable to (?:open|mmap|allocate) shared memory|crashed with exit code -7\b|exit code: -7\)"
        r"|/dev/shm/\S+.*No space left on device|No space left on device.*(?:/dev/shm|/psm_|/sgl_shm|/nccl-|/torch_)",
        "shared memory is full",
        "`df -h /dev/shm`; remove what dead servers left there, or enlarge it",
        where=Where.LINE,
    ),
    signature(
        Category.SHARED_MEMORY,
        r"No space left on device",
        "shared memory is full",
        "`df -h /dev/shm`; remove what dead servers left there, or enlarge it",
        stages=(Stage.SHARED_MEMORY,),
    ),
    signature(
        Category.DISK_FULL,
        r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]",
        "a disk is full",
        "`df -h` and `df -i` for /tmp, the home of the service's user (~/.cache) and where the log lies",
    ),
)

_MODEL: Tuple[Signature, ...] = (
    signature(
        Category.WARM_UP_PROXY,
        r"ProxyError|Cannot connect to proxy|Response \[(?:403|407|502|503|504)\]|(?i:AssertionError: <(?:!doctype |html))",
        "the warm-up request to itself went through a proxy",
        "set no_proxy and NO_PROXY to 127.0.0.1,localhost and the server's own address in the service's environment",
        where=Where.WARM_UP,
    ),
    signature(
        Category.WARM_UP_FAILED,
        r"Read timed out",
        "the warm-up request took too long, so the server ended itself",
        "kernels that were compiled are kept, so try again; or raise SGLANG_WARMUP_TIMEOUT",
        retry=True,
        where=Where.WARM_UP,
    ),
    signature(
        Category.HUB_UNREACHABLE,
        r"couldn't connect to 'https?://|Temporary failure in name resolution|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|host='(?:huggingface\.co|\S*modelscope\S*)'.*Max retries exceeded|Max retries exceeded with url: /\S*/resolve/",
        "the model is not on this box and its hub can't be reached",
        "give a local path, or fetch the model first and check HF_HOME of the service's user",
        retry=True,
    ),
    signature(
        Category.MODEL_NOT_FOUND,
        r"Repo id must be in the form|Can't load the configuration of"
        r"|is not a local folder and is not a valid model identifier|RepositoryNotFoundError"
        r"|GatedRepoError|Cannot find any model weights|No model weights found in"
        r"|No such file or directory: '[^']*(?:config\.json|\.safetensors)",
        "there is no such model on this box",
        "check --model-path as the service's user sees it",
    ),
    signature(
        Category.CHECKPOINT_UNREADABLE,
        r"SafetensorError|shard file\(s\) missing|checksum mismatch for presharded checkpoint|PytorchStreamReader failed"
        r"|not a valid JSON file|It looks like the config file at",
        "the checkpoint is damaged or incomplete",
        "compare the files' sizes and sums with their source, and fetch them again",
    ),
    signature(
        Category.CHECKPOINT_UNREADABLE,
        r"Permission denied: '[^']*(?:config\.json|\.safetensors|\.bin|tokenizer[^/']*)'|Stale file handle"
        r"|\[Errno (?:5|107|116|121)\] [^:]+: '/",
        "the checkpoint can't be read",
        "read it as the service's user: `sudo -u USER cat FILE > /dev/null`; look at the mount of its file system",
    ),
)

_PYTHON: Tuple[Signature, ...] = (
    signature(
        Category.VERSION_MISMATCH,
        r"is less than the minimum required version|with minimum required version .+ is not installed|undefined symbol|cannot import name"
        r"|GLIBC(?:XX)?_[\d.]+' not found|binary incompatibility|is required for a normal functioning of this module",
        "installed packages do not fit each other",
        _REINSTALL,
    ),
    signature(
        Category.MISSING_MODULE,
        r"ModuleNotFoundError: |ImportError:|cannot open shared object file",
        "a Python module or library that this launch needs is missing or does not import",
        "install it into the service's Python, or take a backend that does without",
    ),
    signature(
        Category.MISSING_MODULE,
        r"^\S*python[\d.]*: (?:Error while finding module specification for|No module named) '?sglang\b",
        "this Python has no SGLang",
        "set python: in the service to that of the virtual environment in which SGLang is installed",
        where=Where.LINE,
    ),
    signature(
        Category.ARGUMENT_REFUSED,
        r"^(?:AssertionError|ValueError|NotImplementedError)\b",
        "SGLang refused an argument or a combination of arguments",
        "the message and the line above it in the log say which",
        stages=(Stage.ARGUMENTS,),
    ),
)

_NUMA = "set SGLANG_AUTO_NUMA_BIND=0 in the service's environment, or widen the container's cpuset (cpuset.mems)"

_ENDINGS: Tuple[Signature, ...] = (
    signature(
        Category.JIT_LOCK,
        r"Failed to acquire lock for \S+ within \d+ seconds",
        "a process waited in vain for a lock in the cache of compiled kernels",
        REMOVE_LOCK,
        where=Where.LINE,
    ),
    signature(
        Category.JIT_LOCK,
        r"\(\S*(?:filelock/\w+|file_baton)\.py:\d+\)",
        "a scheduler hangs waiting for a lock in the cache of compiled kernels",
        REMOVE_LOCK,
        where=Where.HANG_DUMP,
    ),
    signature(
        Category.NUMA_BINDING,
        r"^(?:numactl|libnuma|set_mempolicy|setting membind|sched_setaffinity): "
        r"|^RuntimeError: (?:NUMA node \d+ has no CPU|numactl could not apply)"
        r"|<\d+> is invalid$",
        "memory or CPUs could not be bound to a NUMA node",
        _NUMA,
        where=Where.LINE,
    ),
    signature(
        Category.HANG,
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?!.*self\.soft=True)",
        "SGLang's own watchdog saw the scheduler make no step",
        "the Pyspy dump in the log shows where it stands; a collective that hangs at graph capture is often P2P over PCIe",
        where=Where.LINE,
    ),
    signature(
        Category.INTERRUPTED,
        r"Subprocess .* crashed with exit code -15",
        "the whole process group got a SIGTERM, so the schedulers died at once",
        "stop a server by SIGTERM to its main process only",
        retry=True,
        where=Where.LINE,
    ),
    signature(
        Category.KILLED,
        r"Subprocess .* crashed with exit code -9\b|exit code: -9\)|^Exit code: -9$",
        "one of its processes was killed (SIGKILL)",
        "look for the OOM killer: `dmesg | grep -i oom` on the host; otherwise somebody killed it",
        retry=True,
        where=Where.LINE,
    ),
    signature(
        Category.WARM_UP_FAILED,
        r"Initialization failed\. warmup error:",
        "the warm-up request failed, so the server ended itself",
        "the exception in the log says why; what the first request does is compiled or allocated then",
        where=Where.LINE,
    ),
)
"""Only after all exceptions: what is left when the log holds no cause."""

SIGNATURES: Tuple[Signature, ...] = (
    *_ARGUMENTS,
    *_PORTS_AND_SPACE,
    *MEMORY,
    *BACKENDS,
    *COMPILERS,
    *_MODEL,
    *NVIDIA,
    *_PYTHON,
    *_ENDINGS,
)
"""In order: the first that matches is the class."""

SILENT_SCHEDULER = signature(
    Category.NUMA_BINDING,
    r"Rank \d+ scheduler died during initialization \(exit code: 1\)|Rank \d+ scheduler is dead",
    "a scheduler ended without a word, as it does when memory can't be bound to a NUMA node",
    f"numactl can't bind in this container's cpuset: {_NUMA}",
    where=Where.LINE,
    stages=(Phase.IMPORTS,),
)
"""Only where no exception was logged: ``numactl --membind`` before the interpreter fails so (0.5.10.post1 to 0.5.17)."""
