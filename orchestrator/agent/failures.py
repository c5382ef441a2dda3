"""Why a launch failed: from its log, exit status and memory events to one class, the lines that show it, and advice.

The texts are in :mod:`failure_signatures`. In SGLang any error in a scheduler ends as ``Received sigquit from a child
process`` and exit -9, so the cause is the exception above it, not the last line and not the exit status.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.failure_signatures import SIGNATURES, Category, Signature
from orchestrator.agent.phases import LogLine, Phase, parse_line, split_lines
from orchestrator.agent.sglang import Exit, exit_meaning

_LONGEST_EVIDENCE = 400
_MOST_EVIDENCE = 6


_NOISE = re.compile(
    r"^INFO: |^server_args=|Ignore import error when loading|[Ss]kipping tactic|\[Autotuner\]|self\.soft=True|RLIMIT_NOFILE"
    r"|destroy_process_group\(\) was not called|^\S+:\d+: \w*Warning: |warnings\.warn|Health check failed"
)
"""Lines that look bad and are not: FlashInfer's autotuner tries kernels that can't run, a soft watchdog only tells."""

_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Timeout|Warning|NotFound)\b(?::|$)")
_WHO_STOPPED_IT = "find out who did it: a service manager, an operator, a session that ended; its children may still be loading"

_CHAINED = re.compile(r"direct cause of the following exception|During handling of the above exception")
_ENDS_PROCESS = re.compile(r"(?:Scheduler|\w+Manager|\w+Controller) hit an exception: Traceback|warmup error: Traceback")
_REQUEST_FAILED = re.compile(r"Exception in ASGI application|Exception in callback")
_CHILD_ENDED = re.compile(
    r"Received sigquit from a child process|SIGQUIT received|Rank \d+ scheduler (?:died|is dead)"
    r"|Subprocess .* crashed with exit code|Exit code: \d+"
)
_SILENT_CHILD = re.compile(
    r"Rank \d+ scheduler (?:died during initialization \(exit code: 1\)|is dead)|numactl|membind|set_mempolicy|libnuma"
)


@dataclass(frozen=True)
class Exceptions:
    """One traceback with those it is chained to, oldest first: the last lines of each.

    `ends_process`: SGLang logged it as fatal. `request`: it was one request's, and the server went on.
    """

    errors: Tuple[str, ...]
    ends_process: bool
    request: bool = False

    @property
    def cause(self) -> str:
        return self.errors[-1] if self.errors else ""


def find_exceptions(lines: Sequence[LogLine]) -> List[Exceptions]:
    """The tracebacks of a log, each with the message that ends it (follow-on lines of a message included)."""
    found: List[Exceptions] = []
    chained = False
    request = False
    index = 0
    while index < len(lines):
        text = lines[index].text
        chained = chained or bool(_CHAINED.search(text))
        request = request or bool(_REQUEST_FAILED.search(text))
        if "Traceback (most recent call last):" not in text:
            index += 1
            continue
        index, error = _read_traceback(lines, index + 1)
        if chained and found:
            found[-1] = dataclasses.replace(found[-1], errors=(*found[-1].errors, error))
        else:
            found.append(Exceptions((error,), bool(_ENDS_PROCESS.search(text)), request))
        chained = request = False
    return [item for item in found if item.cause]


def _read_traceback(lines: Sequence[LogLine], index: int) -> Tuple[int, str]:
    while index < len(lines) and not _ERROR_LINE.match(lines[index].text):
        if lines[index].stamp is not None or "Traceback (most recent" in lines[index].text:
            return index, ""
        index += 1
    message: List[str] = []
    while index < len(lines) and len(message) < 4:
        line = lines[index]
        if message and (line.stamp is not None or not line.text or line.text.startswith((" ", "Traceback"))):
            break
        message.append(line.text)
        index += 1
    return index, "\n".join(message)


def classify(
    log_tail: Sequence[str],
    exit_status: Optional[str],
    phase: str,
    memory_events: Optional[Mapping[str, int]] = None,
    version: Optional[str] = None,
) -> wire.Failure:
    """Name the failure of a launch.

    Args:
        log_tail: the log's last lines as they are in the file (a thousand are plenty).
        exit_status: of the main process, in any spelling of :func:`sglang.exit_number`; None while it runs or when nobody knows.
        phase: where the load stood (:class:`phases.Phase`).
        memory_events: by how much the counters of cgroup v2's ``memory.events`` grew during the launch.
        version: SGLang's.
    """
    lines = [parse_line(piece) for raw in log_tail for piece in split_lines(raw)]
    kept = [line for line in lines if not _NOISE.search(line.text)]
    meaning = exit_meaning(version, exit_status, asked_to_stop=False)
    exceptions = _decisive(find_exceptions(kept), meaning, kept)
    failure = (
        _by_memory_events(memory_events, meaning, kept)
        or _by_interruption(meaning, phase)
        or _by_signature(exceptions, kept)
        or _by_exception(exceptions, kept)
        or _by_exit(meaning, kept, phase)
    )
    return wire.Failure(
        failure.category, failure.summary, [_clip(item) for item in failure.evidence][:_MOST_EVIDENCE], failure.advice, exit_status
    )


def _decisive(found: List[Exceptions], meaning: str, lines: Sequence[LogLine]) -> List[Exceptions]:
    """Those that ended a process, in order; else the last one, unless a signal ended the server and no child failed."""
    fatal = [item for item in found if item.ends_process]
    if fatal:
        return fatal
    if meaning in (Exit.KILLED, Exit.CLEAN) and not _matching(lines, _CHILD_ENDED):
        return []
    return [item for item in found if not item.request][-1:]


def _by_memory_events(events: Optional[Mapping[str, int]], meaning: str, lines: Sequence[LogLine]) -> Optional[wire.Failure]:
    kills = (events or {}).get("oom_kill", 0)
    if not kills or (meaning != Exit.KILLED and not _matching(lines, _CHILD_ENDED)):
        return None
    evidence = [f"memory.events: oom_kill grew by {kills}", *_matching(lines, _CHILD_ENDED)]
    advice = "the container's main memory does not suffice: raise its limit, or lower what the load needs (weights are read through it)"
    return wire.Failure(Category.KILLED, "the kernel's OOM killer ended it", evidence, advice)


def _by_interruption(meaning: str, phase: str) -> Optional[wire.Failure]:
    if meaning != Exit.INTERRUPTED:
        return None
    return wire.Failure(Category.INTERRUPTED, f"it was ended by a signal (phase {phase})", [], _WHO_STOPPED_IT)


def _by_signature(exceptions: Sequence[Exceptions], lines: Sequence[LogLine]) -> Optional[wire.Failure]:
    for signature in SIGNATURES:
        for item in exceptions:
            if any(signature.pattern.search(error) for error in item.errors):
                return _from_signature(
                    signature, _unique([*item.cause.splitlines(), *_other_errors(item, signature), *_matching(lines, _CHILD_ENDED)])
                )
        if signature.anywhere:
            matching = _matching(lines, signature.pattern)
            if matching:
                causes = [line for item in exceptions for line in item.cause.splitlines()]
                return _from_signature(signature, _unique([*matching, *causes]))
    return None


def _other_errors(item: Exceptions, signature: Signature) -> List[str]:
    """The chained error that matched, when it is not the last of its chain."""
    return [
        error.splitlines()[0] for error in item.errors[:-1] if signature.pattern.search(error) and not signature.pattern.search(item.cause)
    ]


def _from_signature(signature: Signature, evidence: List[str]) -> wire.Failure:
    return wire.Failure(signature.category, signature.summary, evidence, signature.advice)


def _by_exception(exceptions: Sequence[Exceptions], lines: Sequence[LogLine]) -> Optional[wire.Failure]:
    if not exceptions:
        return None
    cause = exceptions[0].cause.splitlines()
    child = _matching(lines, _CHILD_ENDED)
    advice = "the traceback in the server's log shows where"
    if exceptions[0].ends_process or child:
        return wire.Failure(Category.SCHEDULER_DIED, f"a scheduler failed: {_clip(cause[0])}", _unique([*cause, *child]), advice)
    return wire.Failure(Category.ERROR, f"it ended with an exception: {_clip(cause[0])}", cause, advice)


def _by_exit(meaning: str, lines: Sequence[LogLine], phase: str) -> wire.Failure:
    if meaning == Exit.CLEAN:
        evidence = _matching(lines, re.compile(r"SIGTERM received|Shutting down"))
        return wire.Failure(Category.INTERRUPTED, f"it was asked to stop, and did (phase {phase})", evidence, _WHO_STOPPED_IT)
    child = _matching(lines, _CHILD_ENDED)
    silent = _matching(lines, _SILENT_CHILD)
    if silent:
        advice = "numactl can't bind in this container's cpuset: set SGLANG_AUTO_NUMA_BIND=0, or widen cpuset.mems"
        return wire.Failure(
            Category.NUMA_BINDING, "a scheduler ended without a word, as it does when memory can't be bound to a NUMA node", silent, advice
        )
    if child:
        return wire.Failure(
            Category.SCHEDULER_DIED, "one of its processes ended, and the log does not say why", child, "look at the kernel log of the host"
        )
    if meaning == Exit.KILLED:
        advice = "look for the OOM killer: `dmesg | grep -i oom` on the host; otherwise somebody killed it"
        return wire.Failure(Category.KILLED, "it was killed (SIGKILL), and the log does not say why", _last(lines), advice)
    if meaning == Exit.BIND_FAILED:
        return wire.Failure(Category.PORT_IN_USE, "it could not bind its port", _last(lines), "see who holds it: `ss -ltnp`")
    if meaning == Exit.REFUSED_ARGUMENTS:
        return wire.Failure(
            Category.ARGUMENT_REFUSED, "SGLang's parser refused the command line", _last(lines), "read the log's last lines"
        )
    return wire.Failure(Category.UNKNOWN, f"it ended in phase {phase}, and the log does not say why", _last(lines), "read the server's log")


_STALL_HINTS: Mapping[str, str] = {
    Phase.DISTRIBUTED: "the ranks wait for each other: look for a rank that died, and try NCCL_DEBUG=INFO",
    Phase.WEIGHTS: "the disk or network file system that holds the model may hang: look for processes in state D",
    Phase.AUTOTUNE: "FlashInfer may be fetching kernels without a network, or waiting for a stale lock in ~/.cache/flashinfer",
    Phase.GRAPH_CAPTURE: "a collective may hang: on PCIe boxes try NCCL_P2P_DISABLE=1 and check IOMMU and ACS; or a stale JIT lock",
    Phase.WARM_UP: "the first forward may hang: see where with `py-spy dump --pid PID` on the scheduler",
}


def out_of_time(
    category: str, limit: str, seconds: float, phase: str, detail: str, last_sign: str, log_tail: Sequence[str]
) -> wire.Failure:
    """A load that was given up: `category` is STALLED or TIMED_OUT, `limit` the name of the deadline that ran out."""
    lines = [parse_line(piece) for raw in log_tail for piece in split_lines(raw)]
    where = f"{phase} ({detail})" if detail else phase
    summary = f"{limit} of {seconds:g} s ran out in phase {where}; last sign of life: {last_sign}"
    return wire.Failure(
        category, summary, [_clip(text) for text in _last(lines)], _STALL_HINTS.get(phase, "see where with `py-spy dump --pid PID`")
    )


def _matching(lines: Sequence[LogLine], pattern: "re.Pattern[str]") -> List[str]:
    return _unique([line.text for line in lines if pattern.search(line.text)])[:3]


def _last(lines: Sequence[LogLine], count: int = 3) -> List[str]:
    return [line.text for line in lines if line.text.strip() and not line.text.startswith("server_args=")][-count:]


def _unique(texts: Sequence[str]) -> List[str]:
    return list(dict.fromkeys(text for text in texts if text.strip()))


def _clip(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_EVIDENCE else text[: _LONGEST_EVIDENCE - 3] + "..."
