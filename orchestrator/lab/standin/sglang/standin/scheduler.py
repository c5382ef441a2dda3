"""The process ``sglang::scheduler``: loads, then decodes at the speed that is set, one token for each request a step."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sglang.standin import backends, text
from sglang.standin.loading import SECONDS, LateError, Loader, enter_phase
from sglang.standin.log import log, set_rank
from sglang.standin.plan import Plan
from sglang.standin.process import Record, die_with_parent, set_title

_REMEMBERED_PROMPTS = 32


@dataclass
class Running:
    """One request in the batch."""

    rid: str
    prompt: list[int]
    writer: text.Writer
    max_new_tokens: int
    ignore_eos: bool
    sampled: bool
    cached_tokens: int
    produced: int = 0
    prefill_finished: float = 0.0


@dataclass
class _Interval:
    """What the next "Decode batch" line is about; as in SGLang it includes any pause before it."""

    steps: int = 0
    tokens: int = 0
    began: float = field(default_factory=time.monotonic)


class _ShutDown(Exception):  # noqa: N818
    """ShutdownReq from the main process."""


def run_scheduler(plan: Plan, rank: int, ready: Any, requests: Any, outputs: Any, gate_opened: Any) -> None:
    """Entry point of the child process; `outputs` is None on every rank but the first, `gate_opened` where there is no gate."""
    if plan.settings.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record = Record(plan.settings.processes, "scheduler")
    shared: Path | None = None
    try:
        enter_phase(plan, "child_imports")
        time.sleep(plan.settings.scaled(SECONDS["child_imports"]))
        die_with_parent()
        label = f"TP{rank}" if plan.ranks > 1 else ""
        set_title("sglang::scheduler" + (f"_{label}" if label else ""))
        set_rank(label)
        if rank == 0 and plan.settings.escapee:
            _start_escapee(plan)
        if rank == 0 and plan.settings.shared_memory:
            shared = _map_shared_memory()
        loader = Loader(plan, rank, record, gate_opened)
        loader.load()
        ready.send({"rank": rank, "max_total_num_tokens": loader.tokens, "timings": loader.timings})
        Scheduler(plan, loader, requests, outputs).serve()
    except _ShutDown:
        record.remove()
        if shared is not None:
            shared.unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001 - as the real one: whatever it is, it is logged and the parent is told
        _report(error, plan)


def _report(error: Exception, plan: Plan) -> None:
    """Log as run_scheduler_process does and tell the parent, unless this is an orphan by now."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    last = str(error) if isinstance(error, LateError) else "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    log(f"Scheduler hit an exception: Traceback (most recent call last):\n{frames}{last}\n")
    if os.getppid() == plan.main_pid:
        os.kill(plan.main_pid, signal.SIGQUIT)


def _start_escapee(plan: Plan) -> None:
    record = "from sglang.standin.process import Record; Record(sys.argv[2], 'escapee')"
    code = f"import sys, time; sys.path.append(sys.argv[1]); {record}; time.sleep(3600)"
    arguments = [sys.executable, "-c", code, str(Path(__file__).parents[2]), plan.settings.processes]
    subprocess.Popen(arguments, stdin=subprocess.DEVNULL, start_new_session=True)


def _map_shared_memory() -> Path:
    """A mapped file of the kind that SIGKILL leaves behind."""
    import mmap

    path = Path("/dev/shm") / f"psm_{secrets.token_hex(4)}"  # noqa: S108
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(descriptor, 4096)
    globals()["_mapping"] = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
    return path


class Scheduler:
    """The event loop after loading. Ranks other than the first only wait for their end."""

    def __init__(self, plan: Plan, loader: Loader, requests: Connection, outputs: Connection | None) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._loader = loader
        self._requests = requests
        self._outputs = outputs
        self._running: dict[str, Running] = {}
        self._waiting: deque[Running] = deque()
        self._prompts: deque[list[int]] = deque(maxlen=_REMEMBERED_PROMPTS)
        self._next_step = 0.0
        self._interval = _Interval()
        self._last_prefill = time.monotonic()
        self._compiled_sampling = False
        self.last_throughput = 0.0
        self._step_times: dict[int, list[float]] | None = {} if os.environ.get("SGLANG_RECORD_STEP_TIME") in ("1", "true") else None
        speed = plan.settings.tokens_per_second or backends.tokens_per_second(plan.runner)
        self._step_seconds = 1.0 / speed

    def serve(self) -> None:
        """Until ShutdownReq.

        Raises:
            _ShutDown: the ordered end. EOFError: the main process is gone. LateError: the first forward failed.
        """
        if self._settings.crash_after and self._outputs is not None:
            threading.Timer(self._settings.crash_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            if self._requests.poll(self._patience()):
                self._handle(self._requests.recv())
                continue
            self._decode()

    def _patience(self) -> float | None:
        return max(0.0, self._next_step - time.monotonic()) if self._running else None

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "shutdown":
            raise _ShutDown
        if kind == "generate":
            self._admit(message)
        elif kind == "abort":
            self._abort(message["rids"])
        elif kind == "flush":
            self._prompts.clear()
        elif kind == "internal_state":
            self._send({"kind": "internal_state", "rid": message["rid"], "state": self._internal_state()})

    def _internal_state(self) -> dict[str, Any]:
        recorded = {} if self._step_times is None else {"step_time_dict": self._step_times}
        return {"last_gen_throughput": round(self.last_throughput, 2), **recorded}

    def _admit(self, message: dict[str, Any]) -> None:
        prompt = message["prompt"]
        writer = text.Writer(prompt, greedy=not message["sampled"], garbage=self._settings.garbage)
        cached = 0 if message["scores_prompt"] else self._cached_tokens(prompt)
        request = Running(
            rid=message["rid"],
            prompt=prompt,
            writer=writer,
            max_new_tokens=message["max_new_tokens"],
            ignore_eos=message["ignore_eos"],
            sampled=message["sampled"],
            cached_tokens=cached,
        )
        if len(self._running) >= int(self._plan["max_running_requests"]):
            self._waiting.append(request)
        else:
            self._prefill(request)

    def _cached_tokens(self, prompt: list[int]) -> int:
        """The longest prefix that an earlier prompt shares; the last token is always computed."""
        if self._plan["disable_radix_cache"]:
            return 0
        best = 0
        for earlier in self._prompts:
            shared = 0
            for mine, theirs in zip(prompt, earlier):  # noqa: B905 - Python 3.9; the shorter one ends it
                if mine != theirs:
                    break
                shared += 1
            best = max(best, shared)
        return min(best, len(prompt) - 1)

    def _prefill(self, request: Running) -> None:
        if not self._plan.has_graphs:
            self._loader.check_forward()
        fresh = len(request.prompt) - request.cached_tokens
        seconds = self._settings.first_token_seconds + fresh / self._settings.prefill_tokens_per_second
        if request.sampled and not self._compiled_sampling:
            seconds += self._settings.first_sampled_seconds
            self._compiled_sampling = True
        time.sleep(seconds)
        now = time.monotonic()
        rate = fresh / max(1e-3, now - self._last_prefill)
        self._last_prefill = now
        log(
            f"Prefill batch, #new-seq: 1, #new-token: {fresh}, #cached-token: {request.cached_tokens}, token usage: {self._usage():.2f}, "
            f"#running-req: {len(self._running)}, #queue-req: {len(self._waiting)}, #pending-token: 0, "
            f"{self._plan.graph_label}: {self._plan.has_graphs and fresh > 1}, input throughput (token/s): {rate:.2f}"
        )
        self._prompts.append(request.prompt)
        request.prefill_finished = time.time()
        self._next_step = max(self._next_step, now + self._step_seconds)
        if request.max_new_tokens == 0:
            self._finish(request, {"type": "length", "length": 0}, [])
            return
        self._running[request.rid] = request
        self._emit(request)

    def _decode(self) -> None:
        for request in list(self._running.values()):
            self._emit(request)
            self._interval.tokens += 1
        self._interval.steps += 1
        if self._interval.steps >= int(self._plan["decode_log_interval"]):
            self._log_decode()
        self._next_step = max(self._next_step + self._step_seconds, time.monotonic())
        while self._waiting and len(self._running) < int(self._plan["max_running_requests"]):
            self._prefill(self._waiting.popleft())

    def _log_decode(self) -> None:
        passed = max(1e-6, time.monotonic() - self._interval.began)
        self.last_throughput = self._interval.tokens / passed
        if self._step_times is not None:
            self._step_times.setdefault(len(self._running), []).append(passed / self._interval.steps)
        used = sum(len(request.prompt) + request.produced for request in self._running.values())
        log(
            f"Decode batch, #running-req: {len(self._running)}, #token: {used}, token usage: {self._usage():.2f}, "
            f"{self._plan.graph_label}: {self._plan.has_graphs}, gen throughput (token/s): {self.last_throughput:.2f}, "
            f"#queue-req: {len(self._waiting)}"
        )
        self._interval = _Interval()

    def _emit(self, request: Running) -> None:
        token = request.writer.next()
        request.produced += 1
        if request.produced >= request.max_new_tokens:
            self._finish(request, {"type": "length", "length": request.max_new_tokens}, [token])
        elif not request.ignore_eos and request.produced >= request.writer.natural_length:
            self._finish(request, {"type": "stop", "matched": text.EOS}, [text.EOS])
        else:
            self._send_tokens(request, [token], None)

    def _abort(self, rids: list[str] | None) -> None:
        for request in [*self._running.values(), *self._waiting]:
            if rids is None or any(request.rid.startswith(rid) for rid in rids):
                self._finish(request, {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, [])
        self._waiting = deque(request for request in self._waiting if rids is not None and request.rid not in rids)

    def _finish(self, request: Running, reason: dict[str, Any], tokens: list[int]) -> None:
        self._running.pop(request.rid, None)
        self._send_tokens(request, tokens, reason)

    def _send_tokens(self, request: Running, tokens: list[int], reason: dict[str, Any] | None) -> None:
        self._send(
            {
                "kind": "tokens",
                "rid": request.rid,
                "tokens": tokens,
                "finish_reason": reason,
                "cached_tokens": request.cached_tokens,
                "prefill_finished": request.prefill_finished,
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        if self._outputs is None:
            return
        try:
            self._outputs.send(message)
        except OSError:
            # The detokenizer is gone. The real one would not notice either: it sends over ZeroMQ.
            return

    def _usage(self) -> float:
        used = sum(len(request.prompt) + request.produced for request in self._running.values())
        return used / max(1, self._loader.tokens)
