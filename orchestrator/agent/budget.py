"""The verb ``budget``: time a decode step's multiplications and sums over ranks with the service's own Python, beside its idle server."""

import json
import math
import statistics
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type

from orchestrator.agent import sglang, wire
from orchestrator.agent.clock import wait_set
from orchestrator.agent.gpu import ask_gpus
from orchestrator.agent.http import Client, HttpError
from orchestrator.agent.journal import order_status
from orchestrator.agent.locks import held_gpus, wanted_gpus
from orchestrator.agent.processes import MARKER, Server, find_server
from orchestrator.agent.procfs import read_environment
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.service_python import ServicePython, program_source
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.survey import address_of, api_key_of
from orchestrator.agent.wire_budget import BESIDE_WEIGHTS, LEFT_TO_SERVER, AllReduceTiming, BudgetReport, BudgetRequest, GemmTiming
from orchestrator.agent.wire_words import at_work

Emit = Callable[[str, Any], None]

_PROGRAM = "orchestrator.agent.budget_program"
_STATE = "BUDGET"
_LOOK_SECONDS = 1.0
_MEBIBYTE = 1 << 20


def budget(request: BudgetRequest, emit: Emit) -> BudgetReport:
    """Time what is asked. What speaks against the times is in the answer, not an error. An order that begins meanwhile ends it at once.

    Raises:
        AgentRefusal: ``locked``: an order is at work on the service or its GPUs, or has begun meanwhile. ``refused``: the server is loading
            or has requests, a GPU has too little free memory, or nothing could be run.
    """
    folder = StateFolder(request.state_root, request.service)
    refuse_beside_order(folder, {})
    server = find_server(request.port)
    if server is not None and not server.listening:
        raise AgentRefusal(
            "refused", f"process {server.main.pid} loads a server: what is timed beside it says nothing", next_step="fab status"
        )
    python = _python(request, server, folder)
    used = gpus_with_room(request, python.environment, beside_server=server is not None) if request.device == "cuda" else []
    indices = {gpu.uuid: gpu.index for gpu in used}
    refuse_beside_order(folder, indices)
    client = None if server is None else Client(request.port, address_of(server), api_key_of(server, folder))
    remarks = _refuse_busy(client)
    names = f"{len(request.gemms)} multiplications, {len(request.all_reduces)} sums over {len(request.devices)} GPU(s)"
    free = ", ".join(f"{_free(gpu)} MiB of GPU {gpu.index}" for gpu in used)
    room = f"; {free} are free, up to {_needed(request)} MiB of each are taken" if free else ""
    emit(wire.EventKind.PROGRESS, wire.Progress(_STATE, "timing", 0.0, names + room))
    begun = time.monotonic()
    with OthersWatch(client, lambda: refuse_beside_order(folder, indices)) as watch:
        lines, problem = _run(python, request, lambda: watch.refusal is not None)
    if watch.refusal is not None and problem is not None:
        raise watch.refusal
    report = read_report(request, lines)
    if problem is not None and not any(item.seconds is not None for item in report.gemms):
        raise AgentRefusal("refused", f"nothing could be timed with {python.path}: {problem}", next_step=f"{python.path} -c 'import torch'")
    begun_meanwhile = [] if watch.refusal is None else [str(watch.refusal)]
    disturbed = [*watch.seen, *begun_meanwhile, *([] if problem is None else [problem]), *_replaced(server, request.port)]
    return BudgetReport(
        gemms=report.gemms,
        all_reduces=report.all_reduces,
        torch=report.torch,
        device_name=report.device_name,
        ranks=len(request.devices),
        seconds=time.monotonic() - begun,
        disturbed=disturbed,
        remarks=[*remarks, *report.remarks],
    )


def _python(request: BudgetRequest, server: Optional[Server], folder: StateFolder) -> ServicePython:
    """The service's Python as its server has it, so that CUDA and NCCL see the same devices and settings.

    Without our marker: what carries it is taken for a part of that launch, and ended with it.
    """
    record = folder.read_launch(server.launch_id) if server is not None and server.launch_id is not None else None
    if record is not None:
        environment, path, user = dict(record.environment), record.python, record.user
    else:
        found = read_environment(server.main.pid) if server is not None else None
        environment, path, user = dict(found or request.environment), request.python, request.user
    environment.pop(MARKER, None)
    return ServicePython(path, environment, user)


def refuse_beside_order(folder: StateFolder, indices: Mapping[str, int]) -> None:
    """Raise AgentRefusal (``locked``) while an order is at work on the service or holds one of the GPUs (index by UUID)."""
    order = order_status(folder)
    if order is not None and order.live:
        raise AgentRefusal("locked", at_work(order), next_step="fab attach")
    held = [lock for lock in held_gpus(str(folder.path.parent)) if lock.uuid in indices]
    if held:
        what = f"order {held[0].order_id} of {held[0].service} holds GPU {indices[held[0].uuid]}"
        raise AgentRefusal("locked", what, next_step="fab status")


def _needed(request: BudgetRequest) -> int:
    return math.ceil((request.memory + BESIDE_WEIGHTS) / _MEBIBYTE)


def _free(gpu: wire.Gpu) -> int:
    return gpu.memory_total - gpu.memory_used


def gpus_with_room(request: BudgetRequest, environment: Mapping[str, str], *, beside_server: bool) -> List[wire.Gpu]:
    """The GPUs that are timed; AgentRefusal (``refused``) unless each has room for it.

    The server has taken what it wants; what is taken beside it now must not be what it needs for its next batch.
    """
    reading = ask_gpus()
    if reading.problem is not None or not reading.gpus:
        said = reading.problem or "nvidia-smi shows no GPU"
        raise AgentRefusal("refused", f"no GPU can be timed: {said}", list(reading.said), "nvidia-smi")
    by_uuid = {gpu.uuid: gpu for gpu in reading.gpus}
    visible = wanted_gpus(sorted(reading.gpus, key=lambda gpu: gpu.index), environment)
    if max(request.devices) >= len(visible):
        raise AgentRefusal("refused", f"{max(request.devices) + 1} GPUs are needed, the server's environment shows {len(visible)}")
    used = [by_uuid[visible[number]] for number in request.devices]
    needed, left = _needed(request), LEFT_TO_SERVER // _MEBIBYTE if beside_server else 0
    parts = f": {needed} MiB for the timing, {left} MiB left to the server" if beside_server else ""
    for gpu in used:
        if _free(gpu) < needed + left:
            raise AgentRefusal(
                "refused",
                f"GPU {gpu.index} has {_free(gpu)} MiB free, {needed + left} MiB are needed{parts}",
                next_step="fab teardown, then fab budget --measured RUN: without a server all memory is free"
                if beside_server
                else "nvidia-smi",
            )
    return used


def _refuse_busy(client: Optional[Client]) -> List[str]:
    """Raise AgentRefusal while the server has requests; remarks on what could not be told."""
    if client is None:
        return ["no server runs: timed on GPUs of which nothing is in use"]
    try:
        running = sglang.running_and_queued(client)
    except HttpError as error:
        raise AgentRefusal("refused", f"the server does not answer rightly: {error}", next_step="fab status; fab logs") from None
    if running:
        what = f"{running} requests run or wait: they would disturb the timing, and it them"
        raise AgentRefusal("refused", what, next_step="wait until fab status shows an idle server")
    return ["whether the server is idle could not be read"] if running is None else []


class OthersWatch:
    """Looks once a second, from entry to exit, whether the server has requests, and whether `refuse` raises.

    `seen` says the one, at most once; `refusal` is the other: what was refused before it began is to be ended.
    """

    def __init__(self, client: Optional[Client], refuse: Callable[[], None] = lambda: None, every: float = _LOOK_SECONDS) -> None:
        self.refusal: Optional[AgentRefusal] = None
        self._client = client
        self._refuse = refuse
        self._every = every
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="others", daemon=True)

    @property
    def seen(self) -> List[str]:
        return [f"the server had {self._most} requests meanwhile"] if self._most else []

    def __enter__(self) -> "OthersWatch":
        self._thread.start()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        ended = False
        while not ended and self.refusal is None:
            ended = wait_set(self._ended, self._every)
            try:
                self._refuse()
            except AgentRefusal as refusal:
                self.refusal = refusal
            self._count()

    def _count(self) -> None:
        if self._client is None:
            return
        try:
            self._most = max(self._most, sglang.running_and_queued(self._client, self._every) or 0)
        except HttpError:
            self._client = None  # whoever asks afterwards finds that it has gone


def _replaced(server: Optional[Server], port: int) -> List[str]:
    now = find_server(port)
    before, after = (None if item is None else item.main.id for item in (server, now))
    return [] if before == after else ["another server runs now than at the beginning"]


def _run(python: ServicePython, request: BudgetRequest, stop: Callable[[], bool]) -> Tuple[List[Dict[str, Any]], Optional[str]]:
    """The program's lines, and why there are not all of them."""
    question = wire.to_json(request)
    asked = {name: question[name] for name in ("gemms", "all_reduces", "devices", "device", "memory", "seconds")}
    done = python.run(["-c", program_source(_PROGRAM)], request.seconds, json.dumps(asked), stop)
    lines = [line for line in map(_parsed, done.output.splitlines()) if line is not None]
    failed = [f"rank {line['rank']}: {line['failed']}" for line in lines if "failed" in line]
    problem = done.problem or "; ".join(failed[:1])
    if not problem and done.status != 0:
        problem = "; ".join(done.last_errors(1)) or f"it ended with status {done.status}"
    return lines, problem or None


def _parsed(line: str) -> Optional[Dict[str, Any]]:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "rank" in found else None


def read_report(request: BudgetRequest, lines: Sequence[Mapping[str, Any]]) -> BudgetReport:
    """Put the ranks' lines together. Pure.

    A step waits for the slowest rank, so a multiplication takes as long as it took there. Of a sum each rank's time holds its waiting for
    the others to begin, so the one that waited least is right.
    """
    gemms = [
        _gemm_timing(gemm, kind, [line for line in lines if line.get("gemm") == index and line.get("format") == kind])
        for index, gemm in enumerate(request.gemms)
        for kind in dict.fromkeys(str(line["format"]) for line in lines if line.get("gemm") == index)
    ]
    sums = []
    for index, item in enumerate(request.all_reduces):
        own = [line for line in lines if line.get("all_reduce") == index]
        best = min((list(line["samples"]) for line in own if line["samples"]), key=statistics.median, default=[])
        sums.append(AllReduceTiming(item, *_three(best), len(best), _why_none(own, best)))
    heads = [line for line in lines if "torch" in line]
    names = list(dict.fromkeys(str(line["device_name"]) for line in heads))
    remarks = [f"the GPUs differ: {', '.join(names)}"] if len(names) > 1 else []
    return BudgetReport(gemms, sums, str(heads[0]["torch"]) if heads else "", names[0] if names else "", remarks=remarks)


def _gemm_timing(gemm: Any, kind: str, lines: Sequence[Mapping[str, Any]]) -> GemmTiming:
    slowest = max((line for line in lines if line["samples"]), key=lambda line: statistics.median(line["samples"]), default=None)
    samples = [] if slowest is None else list(slowest["samples"])
    how = "" if slowest is None else str(slowest["how"])
    return GemmTiming(gemm, kind, *_three(samples), len(samples), how, _why_none(lines, samples))


def _three(samples: Sequence[float]) -> Tuple[Optional[float], Optional[float], Optional[float]]:
    return (statistics.median(samples), min(samples), max(samples)) if samples else (None, None, None)


def _why_none(lines: Sequence[Mapping[str, Any]], samples: Sequence[float]) -> Optional[str]:
    if samples:
        return None
    said = [str(line["problem"]) for line in lines if line.get("problem")]
    return said[0] if said else "no rank has timed it"
