"""Reading a failed server's log: noise out, tracebacks with their chains, how its children ended. It decides no class."""

import dataclasses
import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from orchestrator.agent.failure_classes import Stage
from orchestrator.agent.phases import LogLine, Phase, parse_line, split_lines

_NOISE = re.compile(
    r"^INFO: |^(?:Prefill|Decode) batch|^server_args=|Ignor(?:e|ing) .*import error"
    r"|[Ss]kipping tactic|\[Auto[Tt]uner\]|self\.soft=True|RLIMIT_NOFILE"
    r"|destroy_process_group\(\) was not called|^.{1,300}:\d+: \w*Warning: |^\s*warnings\.warn|Health check failed"
    r"|^resource_tracker: |leaked (?:semaphore|shared_memory) objects|^numactl rejected |^(?!\w*Error).*skipping NUMA binding"
    r"|Setup Custom allreduce failed|^\[rank\d+\]:\[W|^Pyspy failed |pyspy dump attempts failed|^(?!\w*Error).* is deprecated"
)
"""Lines that look bad and are not, and chatter that would part a message.

FlashInfer's autotuner tries kernels that can't run, a soft watchdog only tells.
"""

_DUMP = re.compile(r"^Pyspy dump for PID |^Process \d+: |^Python v\d|^Thread \S+ \(|^\s+\S+ \(\S+:\d+\)$|^\s+Arguments:$|^\s+Locals:$")
"""Lines of a stack dump (py-spy), which a soft watchdog writes too."""

_WATCHDOG = re.compile(r"[Ww]atchdog timeout \(self\.watchdog_timeout=")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?(?!\[)")
"""PyTorch's before each line of an uncaught exception."""

_ERROR_LINE = re.compile(r"^(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Exit|Timeout|Warning|NotFound|IsEnabled)\w*(?::|$)")
_CHAINED = re.compile(r"direct cause of the following exception|During handling of the above exception")
_TRACEBACK = "Traceback (most recent call last):"
_ENDS_PROCESS = re.compile(r"(?:Scheduler|\w+Manager|\w+Controller) hit an exception: Traceback|warmup error: Traceback")
_WARM_UP = re.compile(r"warmup error: Traceback")
_REQUEST_FAILED = re.compile(r"Exception in ASGI application|Exception in callback")
_TERMINATED = re.compile(r"^terminate called after throwing an instance of '([^']+)'")
_WHAT = re.compile(r"^\s*what\(\):\s+(.*)$")

CHILD_ENDED = re.compile(
    r"Received sigquit from a child process|SIGQUIT received|Rank \d+ scheduler (?:died|is dead)"
    r"|Subprocess .* crashed with exit code|Exit code: -?\d+"
)
"""What a main process says of a child that ended: never the cause."""

_WRAPPER = re.compile(
    r"Rank \d+ scheduler died during initialization|^RuntimeError: Initialization failed\. Please see the error messages above"
)
_CHILD_STATUS = re.compile(r"crashed with exit code (-?\d+)|\(exit code: (-?\d+)\)|^Exit code: (-?\d+)$")

_STAGES: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    (Stage.SHARED_MEMORY, re.compile(r"multiprocessing/(?:shared_memory|synchronize)\.py")),
    (Phase.READY, re.compile(r", in (?:event_loop_\w+|run_event_loop|process_batch_result)$")),
    (Phase.AUTOTUNE, re.compile(r"flashinfer/autotuner|, in \w*flashinfer_autotune\w*$")),
    (
        Phase.GRAPH_CAPTURE,
        re.compile(r"(?:cuda|cpu)_graph_\w*(?:runner|setup|backend)\.py|, in (?:init_device_graphs|init_cuda_graphs|capture\w*)$"),
    ),
    (
        Phase.KV_CACHE,
        re.compile(r"memory_pool\w*\.py|pool_configurator|kv_cache_configurator|kv_cache_mixin|, in (?:init|alloc)_memory_pool$"),
    ),
    (Phase.WEIGHTS, re.compile(r"/model_loader/|, in load_model$")),
    (
        Phase.DISTRIBUTED,
        re.compile(r", in (?:init_torch_distributed|init_distributed_environment|init_process_group)$|/distributed/bootstrap\.py"),
    ),
    (Stage.ARGUMENTS, re.compile(r"/arg_groups/|/server_args\w*\.py")),
)
"""Frames of a traceback -> what was being done, in order: graphs are replayed while serving, weights are loaded below a loader."""

_SHOWN_LINES = 4
_MOST_LINES = 80


@dataclass(frozen=True)
class Exceptions:
    """One traceback with those it is chained to, oldest first.

    `errors`: the first lines of each one's message; `details`: what follows of all of them (a compiler's output). `stage`:
    what was being done, by the frames (None: they don't tell). `ends_process`: SGLang logged it as fatal. `warm_up`: in the
    warm-up. `request`: it was one request's, and the server went on.
    """

    errors: Tuple[str, ...]
    ends_process: bool
    request: bool = False
    warm_up: bool = False
    stage: Optional[str] = None
    details: Tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        return self.errors[-1] if self.errors else ""


@dataclass(frozen=True)
class FailedLog:
    """A log as the classes are looked for in it: `lines` without noise, `dump` the stacks of a watchdog that ended the server."""

    lines: Tuple[LogLine, ...]
    exceptions: Tuple[Exceptions, ...]
    dump: Tuple[str, ...]

    def matching(self, pattern: "re.Pattern[str]", most: int = 3) -> List[str]:
        return unique([line.text for line in self.lines if pattern.search(line.text)])[:most]

    def child_statuses(self) -> List[int]:
        """How children ended, by what the main process says, in :mod:`subprocess`'s spelling."""
        found = (_CHILD_STATUS.search(line.text) for line in self.lines)
        return [int(next(group for group in match.groups() if group)) for match in found if match is not None]

    def last(self, count: int = 3) -> List[str]:
        return last_lines(self.lines, count)


def read_log(raw: Sequence[str]) -> FailedLog:
    """Take a log's last lines apart, as they are in the file."""
    every = read_lines(raw)
    kept = tuple(line for line in every if not _NOISE.search(line.text) and not _DUMP.search(line.text))
    return FailedLog(kept, tuple(find_exceptions(kept)), _fatal_dump(every))


def _fatal_dump(lines: Sequence[LogLine]) -> Tuple[str, ...]:
    """The stacks before the line of a watchdog that ends the server; a soft one writes its own before its line too."""
    dump: List[str] = []
    for line in lines:
        if _WATCHDOG.search(line.text):
            if "self.soft=True" not in line.text:
                return tuple(dump)
            dump = []
        elif _DUMP.search(line.text):
            dump.append(line.text)
    return ()


def read_lines(raw: Sequence[str]) -> List[LogLine]:
    lines = (parse_line(piece) for text in raw for piece in split_lines(text))
    return [dataclasses.replace(line, text=_RANK_PREFIX.sub("", line.text)) for line in lines]


def find_exceptions(lines: Sequence[LogLine]) -> List[Exceptions]:
    """The exceptions of a log, each with the message that ends it; those that only tell of another process's end are left out."""
    found: List[Exceptions] = []
    chained = request = False
    index = 0
    while index < len(lines):
        text = lines[index].text
        chained = chained or bool(_CHAINED.search(text))
        request = request or bool(_REQUEST_FAILED.search(text))
        if _TRACEBACK not in text:
            found += _native(lines, index)
            index += 1
            continue
        index, item = _read_traceback(lines, index, request)
        if chained and found:
            found[-1] = _chain(found[-1], item)
        else:
            found.append(item)
        chained = request = False
    dead_rank = any("scheduler is dead" in line.text for line in lines)
    return [item for item in found if item.cause and not _WRAPPER.search(item.cause) and not (dead_rank and item.cause == "EOFError")]


def _chain(first: Exceptions, then: Exceptions) -> Exceptions:
    errors = tuple(error for error in (*first.errors, *then.errors) if error)
    return dataclasses.replace(first, errors=errors, details=(*first.details, *then.details), stage=first.stage or then.stage)


def _native(lines: Sequence[LogLine], index: int) -> List[Exceptions]:
    """An exception of native code that nobody caught: ``terminate called``, and what it says a line or so later."""
    match = _TERMINATED.search(lines[index].text)
    if match is None:
        return []
    what = next((found for found in (_WHAT.search(line.text) for line in lines[index + 1 : index + 9]) if found is not None), None)
    if what is None:
        return []
    return [Exceptions((f"{match.group(1).split('::')[-1]}: {what.group(1)}",), ends_process=True)]


def _read_traceback(lines: Sequence[LogLine], index: int, request: bool) -> Tuple[int, Exceptions]:
    head = lines[index].text
    index += 1
    frames: List[str] = []
    message: List[str] = []
    while index < len(lines):
        text = lines[index].text
        if _starts_another(lines[index]):
            if message or not _goes_on(lines, index):
                break
        elif message or _ERROR_LINE.match(text):
            message.append(text)
        else:
            frames.append(text)
        index += 1
    shown = next((count for count, text in enumerate(message) if count and (not text or text.startswith(" "))), len(message))
    shown = min(shown, _SHOWN_LINES)
    item = Exceptions(
        ("\n".join(message[:shown]),),
        ends_process=bool(_ENDS_PROCESS.search(head)),
        request=request,
        warm_up=bool(_WARM_UP.search(head)),
        stage=_stage(frames),
        details=tuple(message[shown:_MOST_LINES]),
    )
    return index, item


def _goes_on(lines: Sequence[LogLine], index: int) -> bool:
    """Whether a line in a traceback is another process's, written in between."""
    if lines[index].stamp is None or _TRACEBACK in lines[index].text or index + 1 == len(lines):
        return False
    after = lines[index + 1]
    return after.stamp is None and (after.text.startswith("  ") or bool(_ERROR_LINE.match(after.text)))


def _starts_another(line: LogLine) -> bool:
    text = line.text
    return line.stamp is not None or _TRACEBACK in text or bool(_CHAINED.search(text) or _TERMINATED.search(text))


def _stage(frames: Sequence[str]) -> Optional[str]:
    return next((stage for stage, pattern in _STAGES if any(pattern.search(frame) for frame in frames)), None)


def last_lines(lines: Sequence[LogLine], count: int = 3) -> List[str]:
    """The last lines that say something; the dump of all arguments may hold secrets and never does."""
    return [line.text for line in lines if line.text.strip() and not line.text.startswith("server_args=")][-count:]


def unique(texts: Sequence[str]) -> List[str]:
    return list(dict.fromkeys(text for text in texts if text.strip()))
