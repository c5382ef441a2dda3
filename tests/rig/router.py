"""SGLang's real router, from an environment of its own: no GPU and no torch is needed for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.router_protocol import read_counters
from orchestrator.lab.processes import kill, start_time
from tests.rig.commands import wait_for

VARIABLE = "ORCHESTRATOR_ROUTERS"
"""Names a folder of such environments made elsewhere."""
REQUIRE = "ORCHESTRATOR_REQUIRE_TIERS"
REPOSITORY = Path(__file__).resolve().parents[2]
_COMMANDS = {"sglang-router": ("bin/python", "-m", "sglang_router.launch_router"), "smg": ("bin/smg", "launch")}
_QUICK = (
    *("--health-check-interval-secs", "2", "--health-check-timeout-secs", "4"),
    *("--health-failure-threshold", "2", "--health-success-threshold", "1"),
)
"""A dead worker is missed in seconds instead of minutes."""
_START_SECONDS = 60.0


def missing_routers() -> str | None:
    """Why rolls can't be tested here, None where they can."""
    absent = [kind for kind, (program, *_) in _COMMANDS.items() if not (_folder(kind) / program).exists()]
    return f"no {' and no '.join(absent)}: run `make routers`, or name their folder in ${VARIABLE}" if absent else None


def _folder(kind: str) -> Path:
    return Path(os.environ.get(VARIABLE) or REPOSITORY / ".cache/routers").absolute() / kind


def router_program(kind: str) -> list[str]:
    """The command of ``sglang-router`` or ``smg``; skips the test where there is none, unless every tier is required."""
    folder = _folder(kind)
    program, *more = _COMMANDS[kind]
    if not (folder / program).exists():
        reason = f"no {kind} in {folder}: run `make routers`, or name their folder in ${VARIABLE}"
        if os.environ.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, and there is {reason}")
        pytest.skip(reason)
    return [str(folder / program), *more]


@dataclass
class RealRouter:
    """A router, on loopback unless told otherwise, for as long as it is wanted."""

    kind: str
    port: int
    metrics: int
    log: Path
    address: str = "127.0.0.1"
    pid: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self.address}:{self.metrics}/metrics"

    def start(self, workers: Sequence[str], *flags: str) -> None:
        """Start it with these workers on its command line, and wait until it has them. Of a flag that is there twice the last counts."""
        command = [*router_program(self.kind), "--host", self.address, "--port", str(self.port), "--policy", "round_robin", *_QUICK]
        command += ["--prometheus-host", self.address, "--prometheus-port", str(self.metrics), *flags]
        command += ["--worker-urls", *workers] if workers else []
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.pid = self._process.pid
        wait_for(f"{self.kind} with {len(workers)} workers", lambda: len(self.serving()) >= len(workers) and self.answers(), _START_SECONDS)

    def answers(self) -> bool:
        return self.ask("/health") is not None

    def ask(self, path: str) -> Any:
        """The JSON (or text) under a path; None where nobody answers."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=10)
        try:
            connection.request("GET", path)
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def serving(self) -> set[str]:
        """The urls of its healthy workers."""
        listed = self.ask("/workers")
        return {item["url"] for item in listed["workers"] if item["is_healthy"]} if isinstance(listed, dict) else set()

    def sends_to_all(self) -> bool:
        """Whether no worker's circuit breaker is open, by its metrics: such a one gets no request, however healthy it looks."""
        connection = http.client.HTTPConnection(self.address, self.metrics, timeout=10)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return not read_counters(text).broken

    def kill(self) -> None:
        """SIGKILL to it and what it has started."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            kill(self.pid, start_time(self.pid))
        self._process.wait(timeout=30)
        self._process = None
