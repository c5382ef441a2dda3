"""Runners: how a launch is started and looked at. One in systemd's hands where systemd runs, one in a session of its own elsewhere.

They are stopped by one algorithm, :mod:`orchestrator.agent.stopping`.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import List, Optional, Protocol, Sequence

from orchestrator.agent import own_session, procfs, systemd, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.launch_files import LOG_LIMIT, SYSTEM_PATH, ExitStatus, LaunchFiles, prepare, read_exit_status
from orchestrator.agent.private_files import write_private
from orchestrator.agent.processes import launch_members
from orchestrator.agent.procfs import Process
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.systemd import start_unit

__all__ = [
    "LOG_LIMIT",
    "ExitStatus",
    "OwnSession",
    "Runner",
    "Started",
    "SystemdUnit",
    "choose_runner",
    "runner_of",
    "start_detached",
    "start_unit",
]

_LIMITS = {"Max open files": "open_files", "Max locked memory": "locked_memory", "Max processes": "processes"}


@dataclass(frozen=True)
class Started:
    """A launch that is running. `main` is None when it had ended before it could be looked at."""

    name: str
    main: Optional[wire.ProcessId]
    facts: List[wire.Fact] = field(default_factory=list)


class Runner(Protocol):
    """One launch, as it is run."""

    @property
    def name(self) -> str:
        """The unit, or ``session NUMBER``."""

    def start(self) -> Started:
        """Write the launch's files and start it, detached from whoever calls.

        Raises:
            AgentRefusal: what :func:`launch_files.prepare` refuses, or the program could not be executed.
        """

    def members(self) -> List[Process]:
        """The living processes of the launch, also when its main process has gone."""

    def exit_status(self, seconds: float = 0.0) -> Optional[ExitStatus]:
        """How the main process ended; waits up to `seconds` for it to be recorded. None: not ended, or nobody knows."""


class _Recorded:
    """What both runners know from the launch's folder."""

    def __init__(self, folder: StateFolder, launch: wire.Launch) -> None:
        self.launch = launch
        self._state = folder
        self._folder = folder.launch_folder(launch.launch_id)

    def exit_status(self, seconds: float = 0.0) -> Optional[ExitStatus]:
        path = self._folder / "exit"
        wait_until(lambda: read_exit_status(path) is not None, Deadline(seconds), 0.02)
        return read_exit_status(path)

    def _prepare(self) -> LaunchFiles:
        return prepare(self._state, self.launch)

    def _waiter(self) -> List[str]:
        """The command of waiter.py, which is put into the launch's folder: it must outlive the agent's own archive."""
        program = self._folder / "waiter.py"
        write_private(program, _source("waiter.py"))
        return [sys.executable, "-I", "-S", str(program)]


class SystemdUnit(_Recorded):
    """A transient unit (see :func:`systemd.launch_properties`)."""

    def __init__(self, folder: StateFolder, launch: wire.Launch) -> None:
        super().__init__(folder, launch)
        self.unit = systemd.unit_name(launch.service, launch.launch_id)

    @property
    def name(self) -> str:
        return self.unit

    def start(self) -> Started:
        crash_point("before the launch's files")
        files = self._prepare()
        crash_point("the launch's files")
        systemd.start_launch(files, self._waiter())
        return _started(self.name, systemd.main_process(self.name))

    def members(self) -> List[Process]:
        return launch_members(self.launch.launch_id, unit=self.name)


class OwnSession(_Recorded):
    """A session of its own, with a waiter beside it that records the exit status and keeps the log small."""

    @property
    def name(self) -> str:
        session = own_session.recorded_session(self._folder)
        return f"session {session['pid']}" if session else "session"

    def start(self) -> Started:
        crash_point("before the launch's files")
        files = self._prepare()
        crash_point("the launch's files")
        own_session.start_launch(files, self._waiter())
        session = own_session.recorded_session(self._folder)
        return _started(self.name, procfs.read_process(session["pid"]) if session else None)

    def members(self) -> List[Process]:
        session = own_session.recorded_session(self._folder)
        return launch_members(self.launch.launch_id, session=session["pid"] if session else None)


def choose_runner(folder: StateFolder, launch: wire.Launch) -> Runner:
    """The runner for a new launch in this place."""
    return SystemdUnit(folder, launch) if systemd.is_available() else OwnSession(folder, launch)


def runner_of(folder: StateFolder, launch: wire.Launch) -> Runner:
    """The runner that a launch was started with, from what it left in its folder."""
    session = folder.launch_folder(launch.launch_id) / "session"
    return OwnSession(folder, launch) if session.exists() else choose_runner(folder, launch)


def start_detached(name: str, argv: Sequence[str], log: Path, properties: Sequence[str] = ()) -> str:
    """Start a program of ours that must outlive this connection, the way a server is started; returns its unit or session.

    `properties` are for its unit, where systemd runs it.

    Raises:
        AgentRefusal: it could not be executed.
    """
    os.close(os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    if systemd.is_available():
        systemd.start_transient(f"{name}.service", argv, ["KillMode=mixed", *systemd.append_to(log), *properties], name)
        return f"{name}.service"
    with open(log, "ab") as output:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/", env=_own_environment()
        )
    _detached.append(child)
    return f"session {child.pid}"


_detached: "List[subprocess.Popen[bytes]]" = []
"""Kept, so that Python neither warns of them nor reaps them when their objects go."""


def _own_environment() -> "dict[str, str]":
    return {"LANG": "C.UTF-8", "PATH": SYSTEM_PATH, **{name: os.environ[name] for name in ("PATH", "HOME", "USER") if name in os.environ}}


def _started(name: str, main: Optional[Process]) -> Started:
    if main is None:
        return Started(name, None)
    limits = procfs.read_limits(main.pid)
    source = f"/proc/{main.pid}/limits"
    facts = [wire.Fact(f"limit.{short}", limits[long], source) for long, short in _LIMITS.items() if long in limits]
    return Started(name, main.id, facts)


def _source(name: str) -> str:
    """The text of a module of this package, from its folder or its zip."""
    import pkgutil

    data = pkgutil.get_data(__package__, name)
    if data is None:
        raise FileNotFoundError(name)
    return data.decode()
