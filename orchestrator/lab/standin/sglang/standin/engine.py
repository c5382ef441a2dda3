"""The main process around its children: start, wait, watch, drain, and the several ways to end."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NoReturn

from sglang.standin.detokenizer import run_detokenizer
from sglang.standin.log import log
from sglang.standin.plan import Plan
from sglang.standin.requests import Requests
from sglang.standin.scheduler import run_scheduler

_DRAIN_POLL = 5.0
_SCHEDULER_EXIT = 15.0
_DIAGNOSTICS = 5.0
_COREDUMPS = 60.0
_WATCH = 1.0
_SIGNAL_SECONDS = 0.02
"""Not scaled: how long a signal may go unnoticed."""

DRAINED = "drained"
INTERRUPTED = "interrupted"
CRASHED = "crashed"


class Engine:
    """Children, their pipes and what signals mean in each state (managers/tokenizer_manager.py of 0.5.23).

    SIGTERM has its default action until serving begins; ends uvicorn until the first request; drains afterwards.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.draining = False
        self.frozen = threading.Event()
        """Set while the crash path sleeps: the port stays open and nothing answers."""
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        """What the main thread waits for; a SimpleQueue may be put to from a signal handler."""
        self._handles_requests = threading.Event()
        self._watching = threading.Event()
        self._term_received = False
        self._started = time.monotonic()
        self._start_children()

    def _start_children(self) -> None:
        signal.signal(signal.SIGQUIT, self._child_failed_while_loading)
        spawn = multiprocessing.get_context("spawn")
        tokens_out, tokens_in = spawn.Pipe(duplex=False)
        texts_out, texts_in = spawn.Pipe(duplex=False)
        self._gate_opened = spawn.Event() if self.plan.gate_port is not None else None
        self._ready: list[Connection] = []
        self._controls: list[Connection] = []
        self.schedulers: list[BaseProcess] = []
        for rank in range(self.plan.ranks):
            ready_out, ready_in = spawn.Pipe(duplex=False)
            control_out, control_in = spawn.Pipe(duplex=False)
            outputs = tokens_in if rank == 0 else None
            number = self.plan.first_rank + rank
            scheduler = spawn.Process(target=run_scheduler, args=(self.plan, number, ready_in, control_out, outputs, self._gate_opened))
            scheduler.start()
            ready_in.close()
            control_out.close()
            self._ready.append(ready_out)
            self._controls.append(control_in)
            self.schedulers.append(scheduler)
        self.detokenizer: BaseProcess = spawn.Process(target=run_detokenizer, args=(self.plan, tokens_out, texts_in))
        self.detokenizer.start()
        for end in (tokens_in, tokens_out, texts_in):
            end.close()
        self.requests = Requests(self.plan, self._controls[0], texts_out)

    def _child_failed_while_loading(self, _number: int, _frame: FrameType | None) -> None:
        log("Received sigquit from a child process. It usually means the child failed.")
        self.kill_everything()

    def wait_until_loaded(self) -> dict[str, Any]:
        """The first rank's answer once all have loaded.

        Raises:
            RuntimeError: a scheduler ended without a word; exit code 1.
        """
        answers: list[dict[str, Any]] = []
        for rank, connection in enumerate(self._ready):
            while not connection.poll(0.1):
                self._raise_if_dead(rank)
            try:
                answers.append(connection.recv())
            except EOFError:
                self.schedulers[rank].join(timeout=1)
                self._raise_if_dead(rank)
                # It has reported an exception and its SIGQUIT is on the way.
                time.sleep(10)
                raise RuntimeError(f"Rank {rank} scheduler ended without an answer") from None
        timings = answers[0]["timings"]
        log(
            f"Engine startup timings (s): load_weight={timings['weights']:.2f}, kv_cache_allocation={timings['kv_cache']:.2f}, "
            f"scheduler_e2e={sum(timings.values()):.2f}, cuda_graph={{prefill=0.00, decode={timings['graph_capture']:.2f}, "
            f"target_verify=0.00, draft_prefill=0.00, draft_decode=0.00, draft_extend=0.00}}, "
            f"tokenizer_e2e={time.monotonic() - self._started:.2f}"
        )
        return answers[0]

    def _raise_if_dead(self, rank: int) -> None:
        process = self.schedulers[rank]
        if process.exitcode:
            raise RuntimeError(
                f"Rank {rank} scheduler died during initialization (exit code: {process.exitcode}). If exit code is -9 (SIGKILL), "
                "a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
            )

    def begin_serving(self) -> None:
        """Uvicorn's handlers, the watchdog, and SIGQUIT's meaning from here on."""
        signal.signal(signal.SIGQUIT, lambda _number, _frame: self.events.put(CRASHED))
        signal.signal(signal.SIGINT, lambda _number, _frame: self.events.put(INTERRUPTED))
        terminate: Any = signal.SIG_IGN if self.plan.settings.ignore_sigterm else self._on_sigterm
        signal.signal(signal.SIGTERM, terminate)
        self._watching.set()
        threading.Thread(target=self._watch_children, daemon=True).start()

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if not self._handles_requests.is_set():
            self.events.put(INTERRUPTED)
            return
        if not self._term_received:
            log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self._term_received = self.draining = True

    def first_request(self) -> None:
        """From the first request on SIGTERM drains; the phase of its 5 s poll starts here."""
        if not self._handles_requests.is_set():
            self._handles_requests.set()
            threading.Thread(target=self._drain_when_told, daemon=True).start()

    def _drain_when_told(self) -> None:
        poll = self.plan.settings.scaled(_DRAIN_POLL)
        while not self._term_received:
            time.sleep(poll)
        while True:
            if self._dead_children():
                # The watchdog has the word now. In the real one its sleep stops the loop that would drain.
                return
            remaining = self.requests.rids()
            log(f"Gracefully exiting... Remaining number of requests {len(remaining)}. Remaining requests remaining_rids={remaining}.")
            if not remaining:
                break
            time.sleep(poll)
        self._watching.clear()
        self.events.put(DRAINED)

    def _watch_children(self) -> None:
        """SubprocessWatchdog (srt/utils/watchdog.py): one dead child is the end of the server."""
        while True:
            time.sleep(self.plan.settings.scaled(_WATCH))
            dead = self._dead_children()
            if dead and self._watching.is_set():
                name, process = dead[0]
                log(f"Subprocess {name} (pid={process.pid}) crashed with exit code {process.exitcode}. Triggering SIGQUIT for cleanup...")
                os.kill(os.getpid(), signal.SIGQUIT)
                return

    def _dead_children(self) -> list[tuple[str, BaseProcess]]:
        children = [(f"scheduler_{rank}", process) for rank, process in enumerate(self.schedulers)]
        children.append(("detokenizer", self.detokenizer))
        return [(name, process) for name, process in children if process.exitcode is not None]

    def next_event(self) -> str:
        """Wait for what ends the server.

        In short waits: the kernel may hand a signal to any thread, Python runs its handler in the main one, and that one
        would never notice while it sleeps in a single long wait.
        """
        while True:
            try:
                return self.events.get(timeout=_SIGNAL_SECONDS)
            except queue.Empty:
                continue

    def crash(self) -> NoReturn:
        """The end after SIGQUIT: diagnostics for seconds or a minute, then SIGKILL to all, this process included."""
        self._watching.clear()
        self.frozen.set()
        settings = self.plan.settings
        log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        log("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(settings.scaled(_DIAGNOSTICS))
        if any(process.exitcode is None for process in self.schedulers):
            log("Waiting 60.0 seconds for CUDA coredumps before exiting.")
            time.sleep(settings.scaled(_COREDUMPS))
        else:
            log("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        self.kill_everything()

    def end_with_the_others(self) -> NoReturn:
        """Another node's part has ended: a scheduler hits an exception, and so main gets its SIGQUIT; from any thread."""
        if self._watching.is_set():
            os.kill(os.getpid(), signal.SIGQUIT)
            raise SystemExit(1)
        self.kill_everything()

    def release_schedulers(self) -> None:
        """ShutdownReq to every rank, and up to 15 s for them to let go of their GPUs."""
        self._watching.clear()
        for control in self._controls:
            try:
                control.send({"kind": "shutdown"})
            except OSError:
                continue
        deadline = time.monotonic() + self.plan.settings.scaled(_SCHEDULER_EXIT)
        while time.monotonic() < deadline and any(process.exitcode is None for process in self.schedulers):
            time.sleep(0.02)
        stragglers = [process.pid for process in self.schedulers if process.exitcode is None]
        if stragglers:
            log(f"Schedulers still alive 15s after ShutdownReq, killing them before they released: {stragglers}")
        self.kill_children()

    def kill_children(self) -> None:
        log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
        self._kill_children()

    def kill_everything(self) -> NoReturn:
        """kill_process_tree with the parent included: the exit status is -9, whatever the reason."""
        log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        self._kill_children()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(1)

    def _kill_children(self) -> None:
        for process in [*self.schedulers, getattr(self, "detokenizer", None)]:
            if process is not None and process.pid and process.exitcode is None:
                process.kill()
        for process in [*self.schedulers, getattr(self, "detokenizer", None)]:
            if process is not None:
                process.join(timeout=5)
