"""Why a launch failed: from its log, exit status, memory events and timing to one class, the lines that show it, and advice.

The texts are in :mod:`failure_signatures`. In SGLang any error in a scheduler ends as ``Received sigquit from a child
process`` and exit -9, so the cause is the exception above it, not the last line and not the exit status.
"""

import re
from typing import List, Mapping, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.failure_classes import Category, Signature, Where
from orchestrator.agent.failure_log import CHILD_ENDED, Exceptions, FailedLog, last_lines, read_lines, read_log, unique
from orchestrator.agent.failure_signatures import REMOVE_LOCK, SIGNATURES, SILENT_SCHEDULER
from orchestrator.agent.oom_kills import OomKills
from orchestrator.agent.phases import Phase
from orchestrator.agent.sglang import Exit, exit_meaning

_LONGEST_EVIDENCE = 400
_MOST_EVIDENCE = 6

_WHO_STOPPED_IT = "find out who did it: a service manager, an operator, a session that ended; its children may still be loading"
_ASKED_TO_STOP = re.compile(r"SIGTERM received|Gracefully exiting")
_COMPILER_KILLED = re.compile(r"Killed signal terminated program|died due to signal 9")
_COMPILING = re.compile(r"run_ninja|\(subprocess\.py:")
_GPU_MEMORY = re.compile(
    r"total capacity of ([\d.]+) ([GM])iB of which ([\d.]+) ([GM])iB is free.*this process has ([\d.]+) ([GM])iB memory in use", re.DOTALL
)
"""PyTorch's OutOfMemoryError (c10/cuda/CUDACachingAllocator.cpp) tells what others hold by what it leaves out."""
_FOREIGN_SHARE = 0.10
"""Of a GPU's memory: less than this is the driver's and CUDA's own."""


class Gone:
    """What of a launch is not there, where no exit status tells of its end: the values of `gone` in :func:`classify`."""

    NOTHING = ""
    EVERYTHING = "no process of the launch was ever seen"
    SCHEDULER = "a scheduler is gone, and the log does not say why"


def classify(
    log_tail: Sequence[str],
    exit_status: Optional[str],
    phase: str,
    memory: Optional[OomKills] = None,
    version: Optional[str] = None,
    gone: str = Gone.NOTHING,
) -> wire.Failure:
    """Name the failure of a launch.

    Args:
        log_tail: the log's last lines as they are in the file (a thousand are plenty).
        exit_status: of the main process, in any spelling of :func:`sglang.exit_number`; None while it runs or when nobody knows.
        phase: where the load stood (:class:`phases.Phase`).
        memory: what the memory cgroup counted during the launch.
        version: SGLang's.
        gone: what was missed (:class:`Gone`).
    """
    log = read_log(log_tail)
    asked_to_stop = bool(log.matching(_ASKED_TO_STOP))
    meaning = exit_meaning(version, exit_status, asked_to_stop)
    exceptions = _decisive(log, meaning)
    failure = (
        _by_memory_events(memory, meaning, exceptions, log)
        or _by_interruption(meaning, phase)
        or _by_foreign_memory(exceptions)
        or _by_signature(exceptions, log, phase)
        or _by_exception(exceptions, log)
        or _by_exit(meaning, log, phase, memory, version, gone)
    )
    evidence = [_clip(item) for item in unique(failure.evidence)][:_MOST_EVIDENCE]
    return wire.Failure(failure.category, failure.summary, evidence, failure.advice, exit_status, failure.retry)


def _decisive(log: FailedLog, meaning: str) -> List[Exceptions]:
    """Those that ended a process, in order; else the last one, unless a signal ended the server and no child failed."""
    fatal = [item for item in log.exceptions if item.ends_process]
    if fatal:
        return fatal
    if meaning in (Exit.KILLED, Exit.CLEAN) and not log.matching(CHILD_ENDED):
        return []
    return [item for item in log.exceptions if not item.request][-1:]


def _by_memory_events(memory: Optional[OomKills], meaning: str, exceptions: Sequence[Exceptions], log: FailedLog) -> Optional[wire.Failure]:
    """The OOM killer, where what it killed is what failed: a process without a word, or a compiler."""
    if memory is None or not memory.kills:
        return None
    statuses = log.child_statuses()
    killed = -9 in statuses if statuses else meaning == Exit.KILLED and not log.matching(CHILD_ENDED)
    compiler = any(_COMPILER_KILLED.search(text) for item in exceptions for text in (*item.errors, *item.details))
    if not compiler and (exceptions or not killed):
        return None
    evidence = [f"{memory.source}: oom_kill grew by {memory.kills}", *log.matching(CHILD_ENDED)]
    advice = "the container's main memory does not suffice: raise its limit, or lower what the load needs (weights are read through it)"
    return wire.Failure(Category.HOST_OOM_KILL, "the kernel's OOM killer ended it", evidence, advice)


def _by_interruption(meaning: str, phase: str) -> Optional[wire.Failure]:
    if meaning != Exit.INTERRUPTED:
        return None
    return wire.Failure(Category.INTERRUPTED, f"it was ended by a signal (phase {phase})", [], _WHO_STOPPED_IT, retry=True)


def _by_foreign_memory(exceptions: Sequence[Exceptions]) -> Optional[wire.Failure]:
    for item in exceptions:
        match = next((found for found in map(_GPU_MEMORY.search, item.errors) if found is not None), None)
        if match is None:
            continue
        total, free, own = (float(match.group(index)) / (1 if match.group(index + 1) == "G" else 1024) for index in (1, 3, 5))
        foreign = total - free - own
        if foreign > total * _FOREIGN_SHARE:
            summary = f"other processes hold {foreign:.1f} of {total:.1f} GiB of a GPU, and the rest does not suffice"
            advice = "see who holds it on the host: `nvidia-smi`; a server of before may not have released it yet"
            return wire.Failure(Category.GPU_OCCUPIED, summary, item.cause.splitlines(), advice, retry=True)
    return None


def _by_signature(exceptions: Sequence[Exceptions], log: FailedLog, phase: str) -> Optional[wire.Failure]:
    for signature in SIGNATURES:
        evidence = _evidence_of(signature, exceptions, log, phase)
        if evidence:
            context = [] if signature.context is None else log.matching(signature.context, most=1)
            return _from_signature(signature, [*evidence, *context])
    return None


def _evidence_of(signature: Signature, exceptions: Sequence[Exceptions], log: FailedLog, phase: str) -> List[str]:
    """The lines that show it; none where the signature does not fit."""
    if signature.where == Where.HANG_DUMP:
        compiles = any(_COMPILING.search(line) for line in log.dump)
        return [] if compiles else [line.strip() for line in log.dump if signature.pattern.search(line)]
    for item in exceptions:
        if signature.where == Where.WARM_UP and not item.warm_up:
            continue
        if signature.stages and (item.stage or phase) not in signature.stages:
            continue
        shown = _matching_errors(signature, item)
        if shown:
            return [*shown, *log.matching(CHILD_ENDED)]
    if signature.where != Where.LINE or (signature.stages and phase not in signature.stages):
        return []
    matching = log.matching(signature.pattern)
    return [*matching, *(line for item in exceptions for line in item.cause.splitlines())] if matching else []


def _matching_errors(signature: Signature, item: Exceptions) -> List[str]:
    """The cause of a chain in which an error matches, with that error or line of details when the cause itself does not."""
    cause = item.cause.splitlines()
    if signature.pattern.search(item.cause):
        return cause
    others = [error.splitlines()[0] for error in item.errors[:-1] if signature.pattern.search(error)]
    others += [line.strip() for line in item.details if signature.pattern.search(line)]
    return [*cause, *others[:3]] if others else []


def _from_signature(signature: Signature, evidence: List[str]) -> wire.Failure:
    return wire.Failure(signature.category, signature.summary, evidence, signature.advice, retry=signature.retry)


def _by_exception(exceptions: Sequence[Exceptions], log: FailedLog) -> Optional[wire.Failure]:
    if not exceptions:
        return None
    cause = exceptions[0].cause.splitlines()
    child = log.matching(CHILD_ENDED)
    advice = "the traceback in the server's log shows where"
    if exceptions[0].ends_process or child:
        return wire.Failure(Category.SCHEDULER_DIED, f"a scheduler failed: {_clip(cause[0])}", [*cause, *child], advice)
    return wire.Failure(Category.UNKNOWN, f"it ended with an exception: {_clip(cause[0])}", cause, advice)


def _by_exit(meaning: str, log: FailedLog, phase: str, memory: Optional[OomKills], version: Optional[str], gone: str) -> wire.Failure:
    """Where the log holds no cause: by how it and its children ended."""
    child = log.matching(CHILD_ENDED)
    asked = log.matching(_ASKED_TO_STOP)
    if meaning == Exit.CLEAN and not asked and phase == Phase.IMPORTS:
        summary = "it ended by itself and with status 0, before it had loaded anything"
        return wire.Failure(Category.UNKNOWN, summary, log.last(), "is `python:` in the service really a Python?")
    # Without the version, a SIGKILL after the drain may be the server's own hand.
    if meaning == Exit.CLEAN or (meaning == Exit.KILLED and asked and version is None and not child):
        return wire.Failure(Category.INTERRUPTED, f"it was asked to stop, and did (phase {phase})", asked, _WHO_STOPPED_IT, retry=True)
    silent = _evidence_of(SILENT_SCHEDULER, [], log, phase)
    if silent:
        return _from_signature(SILENT_SCHEDULER, silent)
    if child:
        return _by_child(child, log.child_statuses())
    if meaning == Exit.KILLED:
        return _killed(log, memory)
    if meaning == Exit.BIND_FAILED:
        return wire.Failure(Category.PORT_IN_USE, "it could not bind its port", log.last(), "see who holds it: `ss -ltnp`")
    if meaning == Exit.REFUSED_ARGUMENTS:
        return wire.Failure(Category.ARGUMENT_REFUSED, "SGLang's parser refused the command line", log.last(), "read the log's last lines")
    if gone == Gone.SCHEDULER:
        return wire.Failure(Category.SCHEDULER_DIED, gone, log.last(), "look at the kernel log of the host (`dmesg`)", retry=True)
    summary = gone or f"it ended in phase {phase}, and the log does not say why"
    return wire.Failure(Category.UNKNOWN, summary, log.last(), "read the server's log")


def _by_child(evidence: List[str], statuses: Sequence[int]) -> wire.Failure:
    crash = next((-status for status in statuses if status in (-4, -6, -8, -11)), None)
    if crash is not None:
        names = {4: "SIGILL", 6: "SIGABRT", 8: "SIGFPE", 11: "SIGSEGV"}
        summary = f"one of its processes crashed in native code ({names[crash]})"
        advice = "look for Xid lines and segfaults in the kernel log of the host; the log's last lines may name the library"
        return wire.Failure(Category.SCHEDULER_DIED, summary, evidence, advice)
    summary = "one of its processes ended, and the log does not say why"
    return wire.Failure(Category.SCHEDULER_DIED, summary, evidence, "look at the kernel log of the host")


def _killed(log: FailedLog, memory: Optional[OomKills]) -> wire.Failure:
    """SIGKILL without a word: by somebody, or by an OOM killer whose count nobody could read."""
    if memory is not None and memory.kills == 0:
        evidence = [f"{memory.source}: oom_kill did not grow", *log.last()]
        return wire.Failure(
            Category.KILLED, "somebody killed it (SIGKILL), and not the kernel's OOM killer", evidence, _WHO_STOPPED_IT, retry=True
        )
    machine = memory.machine if memory is not None else None
    counted = [f"/proc/vmstat: oom_kill grew by {machine} on this machine, its other containers included"] if machine else []
    advice = "look for the OOM killer: `dmesg | grep -i oom` on the host; otherwise somebody killed it"
    summary = "it was killed (SIGKILL), and the log does not say why"
    return wire.Failure(Category.KILLED, summary, [*counted, *log.last()], advice, retry=True)


_STALL_HINTS: Mapping[str, str] = {
    Phase.DISTRIBUTED: "the ranks wait for each other: look for a rank that died, and try NCCL_DEBUG=INFO",
    Phase.WEIGHTS: "the disk or network file system that holds the model may hang: look for processes in state D",
    Phase.AUTOTUNE: "FlashInfer may be fetching kernels without a network, or waiting for a stale lock in ~/.cache/flashinfer",
    Phase.GRAPH_CAPTURE: "a collective may hang: on PCIe boxes try NCCL_P2P_DISABLE=1 and check IOMMU and ACS; or a stale JIT lock",
    Phase.WARM_UP: "the first forward may hang: see where with `py-spy dump --pid PID` on the scheduler",
}

_COMPILING_PHASES = frozenset({Phase.AUTOTUNE, Phase.GRAPH_CAPTURE, Phase.WARM_UP})


def out_of_time(
    category: str,
    limit: str,
    seconds: float,
    phase: str,
    detail: str,
    last_sign: str,
    log_tail: Sequence[str],
    locks: Sequence[str] = (),
) -> wire.Failure:
    """A load that was given up: `category` is STALLED or TIMED_OUT, `limit` the name of the deadline that ran out.

    `locks`: of JIT caches, held by somebody else or left behind (:func:`jit_locks.foreign_locks`); a load that stands still
    beside one waits for it. One that ran out of the whole time in a phase that compiles may succeed when it is tried again,
    since what was compiled is kept.
    """
    where = f"{phase} ({detail})" if detail else phase
    summary = f"{limit} of {seconds:g} s ran out in phase {where}; last sign of life: {last_sign}"
    last = [_clip(text) for text in last_lines(read_lines(log_tail))]
    if locks and category == Category.STALLED:
        return wire.Failure(
            Category.JIT_LOCK, f"{summary}; it waits for a lock in the cache of compiled kernels", [*locks, *last], REMOVE_LOCK
        )
    retry = category == Category.TIMED_OUT and phase in _COMPILING_PHASES
    return wire.Failure(category, summary, last, _STALL_HINTS.get(phase, "see where with `py-spy dump --pid PID`"), retry=retry)


def _clip(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_EVIDENCE else text[: _LONGEST_EVIDENCE - 3] + "..."
