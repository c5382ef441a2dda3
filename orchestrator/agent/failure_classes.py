"""The classes of failure, and the form of a text that gives one away."""

import re
from typing import Optional, Tuple

from orchestrator.agent.codec import record


class Category:
    """The values of :attr:`wire.Failure.category`."""

    ARGUMENT_REFUSED = "argument_refused"
    CONTEXT_TOO_LONG = "context_too_long"
    QUANTIZATION_UNSUPPORTED = "quantization_unsupported"
    BACKEND_UNSUPPORTED = "backend_unsupported"
    MODEL_UNSUPPORTED = "model_unsupported"
    KERNEL_MISSING = "kernel_missing"
    """The kernels exist, and not for this GPU's architecture."""
    COMPILATION_FAILED = "compilation_failed"
    JIT_LOCK = "jit_lock"
    """A process waits for a lock in a cache of compiled kernels that nobody will release."""
    MODEL_NOT_FOUND = "model_not_found"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    HUB_UNREACHABLE = "hub_unreachable"
    PORT_IN_USE = "port_in_use"
    OUT_OF_MEMORY_WEIGHTS = "out_of_memory_weights"
    OUT_OF_MEMORY_KV_CACHE = "out_of_memory_kv_cache"
    OUT_OF_MEMORY_GRAPHS = "out_of_memory_graphs"
    OUT_OF_MEMORY_RUNNING = "out_of_memory_running"
    OUT_OF_MEMORY = "out_of_memory"
    """GPU memory; the log does not say at what."""
    GPU_OCCUPIED = "gpu_occupied"
    """Other processes hold memory of GPUs: some have less room than the rest, or too little."""
    GPU_MISSING = "gpu_missing"
    CUDA_INIT = "cuda_init"
    CUDA_ERROR = "cuda_error"
    VERSION_MISMATCH = "version_mismatch"
    MISSING_MODULE = "missing_module"
    NCCL = "nccl"
    SHARED_MEMORY = "shared_memory"
    DISK_FULL = "disk_full"
    NUMA_BINDING = "numa_binding"
    HANG = "hang"
    WARM_UP_PROXY = "warm_up_proxy"
    WARM_UP_FAILED = "warm_up_failed"
    HOST_OOM_KILL = "host_oom_kill"
    """Main memory: the kernel's OOM killer, as the memory cgroup counts."""
    KILLED = "killed"
    """By somebody else, or nobody knows by whom."""
    INTERRUPTED = "interrupted"
    SCHEDULER_DIED = "scheduler_died"
    """A rank ended by an exception that no signature knows, by a crash in native code, or without a word."""
    NOT_WHAT_WAS_ASKED = "not_what_was_asked"
    """It serves, and shows other arguments than it was given."""
    WRONG_ANSWERS = "wrong_answers"
    """It serves, and does not say what the old server said."""
    KV_CAPACITY = "kv_capacity"
    """It serves, with much less room for the KV cache than the last verified launch: other processes hold memory, or the backend does."""
    GATE_OPENED = "gate_opened"
    """A staged server was activated by somebody else, or did not wait at its gate: it loads while the old server serves."""
    NOT_ACTIVATED = "not_activated"
    """A staged server is not at its gate any more, or does not take its activation."""
    GENERATION_FAILED = "generation_failed"
    STALLED = "stalled"
    TIMED_OUT = "timed_out"
    NOT_DRAINED = "not_drained"
    """The router does not let its server go: it does not answer, too few others serve, or requests do not end."""
    CANCELLED = "cancelled"
    """The operator wanted it stopped safely."""
    REBOOTED = "rebooted"
    SUPERVISOR_ENDED = "supervisor_ended"
    """What carries the order out was killed again and again."""
    ANOTHER_RANK = "another_rank"
    """Of a server over several nodes: another node's part failed, or its supervisor is not heard of."""
    UNEXPECTED = "unexpected"
    """A fault of this program on the box."""
    UNKNOWN = "unknown"
    """Nothing that is known; its last error is told."""


class Where:
    """Where a text counts: the values of :attr:`Signature.where`."""

    EXCEPTION = "exception"
    """In an exception that ended a process."""
    WARM_UP = "warm_up"
    """In the exception that ended the warm-up."""
    LINE = "line"
    """In any line."""
    HANG_DUMP = "hang_dump"
    """In the stacks that SGLang's watchdog dumps before it ends a server that makes no step."""


class Stage:
    """What a failed process was at, where that is no phase of the load (:class:`phases.Phase`)."""

    ARGUMENTS = "arguments"
    SHARED_MEMORY = "shared_memory"


@record(frozen=True)
class Signature:
    """One text that gives a class away.

    `retry`: the very same launch may succeed when it is tried again. `stages`: it counts only for what failed at one of
    these (the empty tuple: at any). `context`: other lines that belong to the evidence.
    """

    category: str
    pattern: "re.Pattern[str]"
    summary: str
    advice: str
    retry: bool = False
    where: str = Where.EXCEPTION
    stages: Tuple[str, ...] = ()
    context: "Optional[re.Pattern[str]]" = None


def signature(
    category: str,
    pattern: str,
    summary: str,
    advice: str,
    *,
    retry: bool = False,
    where: str = Where.EXCEPTION,
    stages: Tuple[str, ...] = (),
    context: Optional[str] = None,
) -> Signature:
    """A :class:`Signature` whose patterns are given as text."""
    return Signature(category, re.compile(pattern), summary, advice, retry, where, stages, None if context is None else re.compile(context))
