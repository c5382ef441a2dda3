"""Real processes for the agent's tests: stand-in servers, and what must never be touched beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.agent import procfs
from orchestrator.agent.clean import take_stock
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import is_resource_tracker
from orchestrator.agent.processes import Server, find_servers

STANDIN = Path(__file__).parent / "standin"


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise TimeoutError(f"{what}: not within {seconds} s")


@dataclass
class Box:
    """Starts processes and ends, at its own end, whatever is left of them and of their descendants."""

    folder: Path
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)
    _shared_memory: set[str] = field(default_factory=set)

    def start(self, *argv: str, log: str = "out.log", environment: dict[str, str] | None = None, session: bool = True) -> int:
        """Start a program with its output in `log`; its pid."""
        with (self.folder / log).open("ab") as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=session,
                env={**os.environ, "PYTHONPATH": str(STANDIN), **(environment or {})},
            )
        self._children.append(child)
        return child.pid

    def serve(
        self,
        port: int,
        *,
        log: str | None = None,
        session: bool = True,
        marker: str | None = None,
        wrapper: Sequence[str] = (),
        extra: Sequence[str] = (),
        **settings: object,
    ) -> Server:
        """Start a stand-in server; returns when it listens or, with `loading`, when its children are there.

        `wrapper` is the command that starts it, `extra` further arguments of its own.
        """
        log = log or f"server-{port}.log"
        environment = {"STANDIN": json.dumps(settings), **({"ORCHESTRATOR_LAUNCH": marker} if marker else {})}
        command = [*wrapper, sys.executable, "-m", "sglang.launch_server", "--port", str(port), *extra]
        path = self.folder / log
        before = path.stat().st_size if path.exists() else 0
        self.start(*command, log=log, environment=environment, session=session)
        wait_for(f"server on {port}", lambda: any(word in path.read_text()[before:] for word in ("ready", "loading")))
        return self._watch(port)

    def _watch(self, port: int) -> Server:
        """The newest server for this port, as the agent finds it; its members are ended with this box."""
        server = max((found for found in find_servers() if found.port == port), key=lambda found: found.main.id.start_time)
        self._seen.update({member.pid: member.id.start_time for member in server.members})
        self._shared_memory |= set(take_stock(server).shared_memory)
        return server

    def reap(self) -> None:
        for child in self._children:
            child.poll()

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            if procfs.start_time(pid) == self._seen[pid]:
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        trackers = {pid for pid in self._seen if (found := procfs.read_process(pid)) is not None and is_resource_tracker(found)}
        self._kill(set(self._seen) - trackers)
        # These remove the semaphores of the killed from /dev/shm, and end by themselves.
        wait_until(lambda: not any(map(is_running, trackers)), Deadline(5.0))
        self._kill(trackers)
        for child in self._children:
            child.kill()
            child.wait()
        for path in self._shared_memory:
            Path(path).unlink(missing_ok=True)  # what a tracker that was killed too could not remove


def is_running(pid: int) -> bool:
    """Whether a process lives; one that only waits to be reaped doesn't."""
    process = procfs.read_process(pid)
    return process is not None and process.state not in "ZX"
