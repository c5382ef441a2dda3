"""A small SGLang that somebody started by hand, as an ordinary process of the tests' own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import http, wire
from orchestrator.agent.clock import Deadline, wait_until

SMALL = Path(__file__).parents[1] / "data/small_sglang"
BY_HAND = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SMALL), "PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm", "HOME": "/root"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass(frozen=True)
class Service:
    """A service of the tests: its state folder's root, port and model."""

    root: Path
    port: int
    model: Path

    def launch(self, *arguments: str, environment: dict[str, str] | None = None, backend_flags: tuple[str, ...] = ()) -> wire.Launch:
        """A candidate like the server that :meth:`serving` starts, and `arguments`."""
        return wire.Launch(
            launch_id="new",
            service="small",
            backend="b",
            python=sys.executable,
            arguments=["--model-path", str(self.model), "--host", "127.0.0.1", "--port", str(self.port), *arguments],
            host="127.0.0.1",
            port=self.port,
            environment={"PYTHONPATH": str(SMALL), "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
            backend_flags=list(backend_flags),
        )

    @contextlib.contextmanager
    def serving(self, *arguments: str, environment: dict[str, str] | None = None, port: int | None = None) -> Iterator[int]:
        """The server, answering; its process."""
        chosen = port or self.port
        command = [sys.executable, "-m", "sglang.launch_server", "--model", str(self.model), "--port", str(chosen), *arguments]
        process = subprocess.Popen(command, env={**BY_HAND, **(environment or {})}, cwd="/", start_new_session=True)
        try:
            assert wait_until(lambda: http.listens("127.0.0.1", chosen), Deadline(20))
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
