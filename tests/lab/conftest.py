"""Real processes of the stand-in SGLang, and one real lab for a module's tests."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.lab import control
from orchestrator.lab.build import STANDIN
from orchestrator.lab.processes import kill, start_time

TIME_SCALE = 0.02
PATIENCE = 60.0
"""Seconds; a loaded machine takes its time to start ten Pythons."""


@dataclass(frozen=True)
class Member:
    """A process of a stand-in's session."""

    pid: int
    parent: int
    group: int
    state: str
    title: str


@dataclass
class Answer:
    """An HTTP answer, whatever its status; 0 for a refused connection."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Standin:
    """One running stand-in, started as a launcher would: own session, output to a file."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def members(self) -> list[Member]:
        """What lives in its session."""
        return [member for member in map(_member, _pids()) if member is not None and _session(member.pid) == self.pid]

    def titles(self) -> set[str]:
        return {member.title for member in self.members()}

    def member(self, title: str) -> Member:
        return next(member for member in self.members() if member.title == title)

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 20.0) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())
        except (urllib.error.URLError, ConnectionError):
            return Answer(0, b"")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        assert wait_until(condition, Deadline(PATIENCE), 0.02), f"never: {what}\n{self.log[-3000:]}"

    def wait_for_log(self, text: str) -> None:
        self.wait_for(lambda: text in self.log, text)

    def wait_ready(self) -> Standin:
        self.wait_for_log("fired up and ready to roll")
        return self

    def exit_code(self) -> int:
        return self.process.wait(timeout=PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """SIGKILL to the session, by pid."""
        for member in self.members():
            kill(member.pid, start_time(member.pid))
        self.process.kill()
        self.process.wait(timeout=PATIENCE)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _member(pid: int) -> Member | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else Member(pid, int(fields[1]), int(fields[2]), fields[0], title)


def free_port() -> int:
    """A port below the ephemeral ones that nobody has."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["GlmMoeDsaForCausalLM"], "max_position_embeddings": 4096}', encoding="utf-8")
    return folder


@pytest.fixture
def start(tmp_path: Path, model: Path) -> Iterator[Callable[..., Standin]]:
    """Start a stand-in: ``start("--flag", "value", port=..., time_scale=..., SETTING=...)``."""
    running: list[Standin] = []
    records = tmp_path / "processes"
    records.mkdir()

    def run(*arguments: str, port: int | None = None, environment: dict[str, str] | None = None, **settings: object) -> Standin:
        number = port or free_port()
        values = {"time_scale": TIME_SCALE, "processes": records, "tokens_per_second": 200, **settings}
        passed = {f"SGLANG_STANDIN_{name.upper()}": str(value) for name, value in values.items()}
        log = tmp_path / f"server{len(running)}.log"
        given = [] if "--model-path" in arguments else ["--model-path", str(model)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *given, "--port", str(number), *arguments],
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(STANDIN), **passed, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        running.append(Standin(process, number, log))
        return running[-1]

    yield run
    for standin in running:
        standin.end()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[control.LabInfo]:
    """A lab that is up, without servers."""
    folder = tmp_path_factory.mktemp("lab") / "lab"
    try:
        yield control.up(folder)
    finally:
        control.down(folder)
