"""Bringing the lab up and down, and looking at it. Each is safe to repeat, and safe after a crash of any part."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.errors import ConnectError, OrchestratorError, UsageError
from orchestrator.lab.layout import ADDRESS, HOSTS, LabHost, Layout, Ports, read_ports
from orchestrator.lab.processes import LabProcess, end_members, kill, members, own_processes, server_pid

_START_SECONDS = 20.0
_READY_SECONDS = 60.0
_ATTEMPTS = 3


@dataclass(frozen=True)
class LabHostInfo:
    """One lab host. `sglang_pid` is the main process of its server, ready or not, None when there is none."""

    name: str
    about: str
    ssh_port: int
    service: str
    sglang_port: int
    sglang_pid: int | None


@dataclass(frozen=True)
class LabInfo:
    """The lab as it is now. `ssh_pid` is None when it is down; `processes` counts what runs on its hosts."""

    directory: Path
    inventory: Path
    ssh_pid: int | None
    hosts: tuple[LabHostInfo, ...]
    processes: int
    removed: bool = False
    """There was a lab, and it was just taken down."""

    @property
    def is_up(self) -> bool:
        return self.ssh_pid is not None


def up(directory: Path, *, start_servers: bool = False) -> LabInfo:
    """Make the lab in `directory`, start its SSH server, and write its inventory.

    With `start_servers` each host also gets a server with the `auto` backend, started over SSH the way a person would by
    hand; this waits until they are ready.

    Raises:
        UsageError: the folder holds something else, or the lab's extra dependency is missing.
        ConnectError: the SSH server did not come up.
    """
    layout = Layout.of(directory)
    _refuse_foreign(layout)
    _require_asyncssh()
    with _locked(layout):
        ports = read_ports(layout)
        if ports is None or server_pid(layout) is None:
            ports = _start_server(layout, ports)
        if start_servers:
            _start_servers(layout, ports)
    return status(directory)


def down(directory: Path) -> LabInfo:
    """End every process of the lab and remove what it wrote; does nothing where there is no lab.

    Raises:
        UsageError: the folder is not a lab's.
        OrchestratorError: a process can't be ended.
    """
    layout = Layout.of(directory)
    if not layout.directory.exists():
        return _absent(layout)
    _refuse_foreign(layout)
    was_there = layout.mark.exists()
    with _locked(layout):
        end_members(layout)
        _end_server(layout)
        # Again, for what its last commands started in the meantime.
        left = end_members(layout)
        if left:
            raise OrchestratorError(
                "processes of the lab can't be ended", evidence=[f"{process.pid} {process.title[:100]}" for process in left]
            )
        _remove_files(layout)
    return _absent(layout, removed=was_there)


def status(directory: Path) -> LabInfo:
    """Look at the lab; changes nothing.

    Raises:
        UsageError: the folder is not a lab's.
    """
    layout = Layout.of(directory)
    ports = read_ports(layout)
    if ports is None:
        return _absent(layout)
    running = members(layout)
    hosts = tuple(_host_info(layout, host, ports[host.name], running) for host in HOSTS)
    return LabInfo(layout.directory, layout.inventory, server_pid(layout), hosts, len(running))


def _absent(layout: Layout, *, removed: bool = False) -> LabInfo:
    return LabInfo(layout.directory, layout.inventory, None, (), 0, removed)


def _host_info(layout: Layout, host: LabHost, ports: Ports, running: list[LabProcess]) -> LabHostInfo:
    python = str(layout.python(host.name)).encode()
    mains = [process for process in running if python in process.arguments[:1] and b"sglang.launch_server" in process.arguments]
    pid = mains[0].pid if mains else None
    return LabHostInfo(host.name, host.about, ports.ssh, host.service, ports.sglang, pid)


def _require_asyncssh() -> None:
    if importlib.util.find_spec("asyncssh") is None:
        raise UsageError("the lab needs asyncssh", next_step=f"{sys.executable} -m pip install {_what_to_install()}")


def _what_to_install() -> str:
    """This project with what the lab needs, as pip names it: from the clone that runs, else from the registry."""
    clone = Path(__file__).resolve().parents[2]
    return f"-e '{clone}[lab]'" if (clone / "pyproject.toml").is_file() else "'lxc-gpu-orchestrator[lab]'"


def _refuse_foreign(layout: Layout) -> None:
    """Never write into, and above all never remove, a folder that is somebody's."""
    if not layout.directory.exists() or layout.mark.exists() or layout.lock.exists():
        return
    if not layout.directory.is_dir() or any(layout.directory.iterdir()):
        raise UsageError(f"{layout.directory} is not empty and not a lab's", next_step="name another folder")


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """One at a time. `down` removes the file, so who waited for it may hold one that is no longer there, and tries again."""
    while True:
        layout.directory.mkdir(parents=True, exist_ok=True)
        with layout.lock.open("w", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if layout.lock.exists() and os.path.samestat(os.fstat(stream.fileno()), layout.lock.stat()):
                yield
                return


def _start_server(layout: Layout, ports: dict[str, Ports] | None) -> dict[str, Ports]:
    """Start the SSH server on the ports it had; on others where those have been taken meanwhile."""
    from orchestrator.lab import build

    problem = ""
    for _ in range(_ATTEMPTS):
        ports = ports or build.choose_ports()
        build.write_lab(layout, ports)
        command = [sys.executable, "-m", "orchestrator.lab.server", str(layout.directory)]
        started = subprocess.run(command, capture_output=True, text=True, timeout=_START_SECONDS, check=False)
        if started.returncode == 0:
            return dict(ports)
        problem, ports = started.stderr.strip(), None
    raise ConnectError("the lab's SSH server did not start", evidence=problem.splitlines()[-5:], next_step=f"look at {layout.server_log}")


def _end_server(layout: Layout) -> None:
    pid = server_pid(layout)
    process = own_processes().get(pid) if pid else None
    if process is not None:
        kill(process.pid, process.start_time)
        wait_until(lambda: server_pid(layout) is None, Deadline(5.0))
    layout.server_record.unlink(missing_ok=True)


def _remove_files(layout: Layout) -> None:
    for name in ("keys", "models", "inventory", "hosts"):
        shutil.rmtree(layout.directory / name, ignore_errors=True)
    for path in (layout.server_log, layout.mark, layout.lock):
        path.unlink(missing_ok=True)
    if not any(layout.directory.iterdir()):
        layout.directory.rmdir()


def _start_servers(layout: Layout, ports: dict[str, Ports]) -> None:
    """Both at once, since loading is mostly waiting."""
    missing = [host for host in status(layout.directory).hosts if host.sglang_pid is None]
    asyncio.run(_start_over_ssh(layout, {host.name: _by_hand(layout, host, ports[host.name]) for host in missing}, ports))
    for host in missing:
        log = layout.host(host.name) / "home" / "sglang.log"
        if not wait_until(lambda log=log: _is_ready(log), Deadline(_READY_SECONDS), 0.1):  # type: ignore[misc]
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:] if log.exists() else []
            raise OrchestratorError(f"the server on {host.name} did not become ready", evidence=tail, next_step=f"look at {log}")


def _is_ready(log: Path) -> bool:
    return log.exists() and "fired up and ready to roll" in log.read_text(encoding="utf-8", errors="replace")


def _by_hand(layout: Layout, host: LabHostInfo, ports: Ports) -> str:
    """What a person would type into their SSH session."""
    words = [
        *(str(layout.python(host.name)), "-m", "sglang.launch_server", "--model-path", str(layout.model)),
        *("--host", ADDRESS, "--port", str(ports.sglang), "--tp-size", "8", "--quantization", "modelopt_fp4"),
        *("--enable-metrics", "--moe-runner-backend", "auto"),
    ]
    return f"rm -f sglang.log; setsid nohup {shlex.join(words)} > sglang.log 2>&1 < /dev/null &"


async def _start_over_ssh(layout: Layout, commands: dict[str, str], ports: dict[str, Ports]) -> None:
    import asyncssh

    for name, command in commands.items():
        options = {"known_hosts": str(layout.inventory / "known_hosts"), "client_keys": [str(layout.client_key)], "config": None}
        async with asyncssh.connect(ADDRESS, ports[name].ssh, agent_path=None, **options) as connection:
            await connection.run(command, check=True)


def describe(info: LabInfo) -> str:
    """The lab as lines for the screen."""
    if info.removed:
        return f"lab in {info.directory}: stopped and removed"
    if not info.is_up and not info.hosts:
        return f"no lab in {info.directory}"
    state = f"up, SSH server is process {info.ssh_pid}" if info.is_up else "its SSH server does not run: lab.up starts it again"
    lines = [f"lab in {info.directory}: {state}; {info.processes} process(es) on its hosts"]
    for host in info.hosts:
        serving = f"process {host.sglang_pid}" if host.sglang_pid else "no server"
        service = f"{host.service} on {ADDRESS}:{host.sglang_port}: {serving}"
        lines.append(f"  {host.name}  ssh {ADDRESS}:{host.ssh_port}  {service}  ({host.about})")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """``python -m orchestrator.lab.control up|down|status [DIR]``, without the rest of the program."""
    from orchestrator.lab.layout import DEFAULT_DIRECTORY

    actions = {"up": up, "down": down, "status": status}
    if not arguments or arguments[0] not in actions:
        sys.stderr.write("usage: python -m orchestrator.lab.control up|down|status [DIR]\n")
        return UsageError.exit_code
    try:
        info = actions[arguments[0]](Path(arguments[1]) if len(arguments) > 1 else DEFAULT_DIRECTORY)
    except OrchestratorError as error:
        sys.stderr.write("\n".join([error.message, *error.evidence, *([f"next: {error.next_step}"] if error.next_step else [])]) + "\n")
        return error.exit_code
    sys.stdout.write(describe(info) + "\n")
    return 0


def as_json(info: LabInfo) -> str:
    """The lab as one JSON document."""
    document = {
        "directory": str(info.directory),
        "inventory": str(info.inventory),
        "up": info.is_up,
        "ssh_pid": info.ssh_pid,
        "processes": info.processes,
        "hosts": [vars(host) for host in info.hosts],
    }
    return json.dumps(document)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
