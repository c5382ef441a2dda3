"""The machine under test: its SSH server, its inventory, what runs on it, and what its GPUs hold."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from orchestrator.agent import gpu, procfs
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.journal import order_status, read_journal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.lab import build
from orchestrator.lab.layout import ADDRESS, Layout
from orchestrator.lab.processes import LabProcess, end_members, kill, members, server_pid
from tests.gpu.commands import REPOSITORY, Operator
from tests.gpu.setting import HOST, SERVICE, Setting
from tests.rig.inventory import write_inventory, write_service
from tests.rig.sglang import flags, healthy
from tests.rig.tiny_model import write_model

_START_SECONDS = 30.0


@dataclass(frozen=True)
class ByHand:
    """A server that a person started in a shell which they then closed. Its processes share the session `session`."""

    port: int
    session: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    def members(self) -> list[procfs.Process]:
        """What lives in its session."""
        return [process for process in procfs.scan().values() if process.session == self.session and not procfs.has_ended(process)]

    def end(self) -> None:
        """SIGKILL to what is left of it, by pid, until nothing is."""

        def gone() -> bool:
            left = self.members()
            for process in left:
                kill(process.pid, process.id.start_time)
            return not left

        wait_until(gone, Deadline(20.0), 0.2)


class Box:
    """One machine, on loopback. `ports` are kept by the run's record, so that a later call finds the same."""

    def __init__(self, folder: Path, setting: Setting, ports: dict[str, int]) -> None:
        self.folder = folder
        self.setting = setting
        self.port, self.neighbour_port = ports["service"], ports["neighbour"]
        self._ssh_port = ports["ssh"]
        self.layout = Layout.of(folder / "ssh")
        self.model = write_model(folder / "model", setting.architecture, setting.dimensions)
        self.state = StateFolder(str(folder / "state"), SERVICE)
        self.operator = Operator(folder / "inventory", folder, ("--host", HOST))

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    def bring_up(self) -> None:
        """Write keys and inventory, and start the SSH server where it does not run.

        Raises:
            RuntimeError: it did not come up.
        """
        build.write_keys(self.layout, [HOST])
        self._write_inventory()
        if server_pid(self.layout) is not None:
            return
        argv = [sys.executable, "-m", "tests.gpu.ssh_server", str(self.layout.directory), HOST, str(self._ssh_port)]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=_START_SECONDS, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the SSH server did not start: {done.stderr.strip()}")

    def take_down(self) -> list[str]:
        """End everything that was started over SSH, and the SSH server; what can't be ended."""
        left = end_members(self.layout)
        pid = server_pid(self.layout)
        started = procfs.start_time(pid) if pid is not None else None
        if pid is not None and started is not None:
            kill(pid, started, signal.SIGTERM)
        return [f"{process.pid} {process.title[:100]}" for process in left]

    def _write_inventory(self) -> None:
        host: dict[str, Any] = {
            "address": ADDRESS,
            "port": self._ssh_port,
            "user": getpass.getuser(),
            "identity_files": [str(self.layout.client_key)],
            "agent": False,
            "python": str(getattr(sys, "_base_executable", sys.executable)),
            "state_root": str(self.folder / "state"),
            "tuning": "observe",
            **({"gpus": len(self.gpu_memory())} if self.setting.has_gpu else {}),
        }
        known = f"[{ADDRESS}]:{self._ssh_port} {build.public_key(self.layout, HOST)}\n"
        inventory = write_inventory(self.folder / "inventory", {HOST: host}, known)
        for name in ("backends", "tuning"):
            shutil.copytree(REPOSITORY / "inventory" / name, inventory / name, dirs_exist_ok=True)
        write_service(inventory, SERVICE, self.setting.service(self.model, self.port))

    def listens(self) -> bool:
        """Whether somebody has the service's port."""
        return bool(procfs.listeners(self.port))

    def gpu_memory(self) -> dict[str, int]:
        """MiB in use by UUID; empty where there is no GPU."""
        return {found.uuid: found.memory_used for found in gpu.read_gpus()} if self.setting.has_gpu else {}

    def started(self) -> list[LabProcess]:
        """Everything that came over SSH and still lives: servers, supervisors, agents."""
        return members(self.layout)

    def started_but(self, *spared: ByHand) -> list[str]:
        """The same without certain servers, each as a person would name it."""
        sessions = {server.session for server in spared}
        return [f"{process.pid} {process.title[:120]}" for process in self.started() if _session(process.pid) not in sessions]

    def members_of(self, launch_id: str) -> list[procfs.Process]:
        """The processes of a launch of ours: those with its id in their environment."""
        found = (procfs.read_process(process.pid) for process in self.started())
        marked = [process for process in found if process is not None and _is_of(process.pid, launch_id)]
        return [process for process in marked if not procfs.has_ended(process)]

    def by_hand(self, port: int) -> ByHand:
        """Start a server as a person would: over SSH, with nohup and an ampersand."""
        log = self.folder / "by-hand" / f"{len(self._logs()) + 1:02}-port-{port}.log"
        log.parent.mkdir(exist_ok=True)
        words = [str(self.setting.python), "-m", "sglang.launch_server", "--model-path", str(self.model), "--host", ADDRESS]
        words += ["--port", str(port), *flags(dict(self.setting.arguments))]
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.setting.environment.items())
        session = log.with_suffix(".session")
        inner = f"echo $$ > {shlex.quote(str(session))}; exec env {variables} {shlex.join(words)}"
        self.shell(f"setsid nohup sh -c {shlex.quote(inner)} > {shlex.quote(str(log))} 2>&1 < /dev/null &")
        if not wait_until(lambda: session.exists() and bool(session.read_text().strip()), Deadline(_START_SECONDS), 0.05):
            raise RuntimeError("the server by hand was not started")
        return ByHand(port, int(session.read_text()), log)

    def _logs(self) -> list[Path]:
        return list((self.folder / "by-hand").glob("*.log"))

    def shell(self, command: str) -> None:
        """Run a command over SSH as the operator's own login would."""

        async def run() -> None:
            options: dict[str, Any] = {"client_keys": [str(self.layout.client_key)], "config": None, "agent_path": None}
            known = str(self.folder / "inventory" / "known_hosts")
            async with asyncssh.connect(ADDRESS, self._ssh_port, known_hosts=known, **options) as connection:
                await connection.run(command, check=True, timeout=_START_SECONDS)

        asyncio.run(run())

    def order_at_work(self) -> str | None:
        """The id of the newest order where its supervisor lives."""
        status = order_status(self.state)
        return status.order_id if status is not None and status.live else None

    def states(self, order_id: str) -> list[str]:
        """The states that an order has gone through."""
        return [entry.state for entry in read_journal(self.state.order_folder(order_id) / "journal.jsonl")]

    def wait_serving(self, server: ByHand, seconds: float) -> None:
        """Wait until /health of a server by hand is 200.

        Raises:
            TimeoutError: it is not in time, or the server has ended; with the end of its log.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end and server.members():
            if healthy(server.url):
                return
            time.sleep(0.5)
        tail = server.log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
        raise TimeoutError("; ".join(["the server by hand does not serve", *tail]))


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _is_of(pid: int, launch_id: str) -> bool:
    return (procfs.read_environment(pid) or {}).get("ORCHESTRATOR_LAUNCH") == launch_id


@contextlib.contextmanager
def memory_held(box: Box, megabytes: int) -> Iterator[subprocess.Popen[str]]:
    """A process of somebody's that holds GPU memory as long as the block lasts.

    Raises:
        RuntimeError: it could not take that much.
    """
    argv = [str(box.setting.python), str(Path(__file__).with_name("hold_memory.py")), str(megabytes)]
    environment = {**os.environ, **box.setting.environment}
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if said != "held":
                raise RuntimeError(f"GPU memory could not be held: {said}")
            yield process
        finally:
            process.kill()


def wait(condition: Callable[[], bool], seconds: float, what: str) -> list[str]:
    """Wait until it holds; a sentence where it does not in time."""
    return [] if wait_until(condition, Deadline(seconds), 0.25) else [f"not within {seconds:.0f} s: {what}"]
