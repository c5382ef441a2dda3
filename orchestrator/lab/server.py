"""The lab's SSH server: one process of the user, one port on 127.0.0.1 for each lab host.

``python -m orchestrator.lab.server DIR`` binds the ports, then leaves a process of its own behind and returns; :func:`run` does it for
other hosts than the lab's. It behaves as OpenSSH does without a pty: a command runs through ``sh -c`` in a session of its own, survives
a lost connection, and then sees the end of its input and EPIPE on its output. Only public keys are accepted, only the lab's own, only
for commands.

The process is a child subreaper (prctl(2)): whatever a command leaves behind stays its descendant, so that the lab can be
taken down without guessing.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import asyncssh

from orchestrator.agent.private_files import write_private
from orchestrator.lab.layout import ADDRESS, MARKER, Layout, read_ports
from orchestrator.lab.processes import start_time

_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 64 * 1024
_HIGH_WATER = 1024 * 1024
"""Bytes of a command's input that are held before the client is told to wait."""
_READY = b"ready\n"

Environment = Callable[[str, int], dict[str, str]]
"""The variables of a command, by the host's name and the client's port."""


class Reaper:
    """Collects every child, adopted ones included; who started one is told its wait status."""

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[int], None]] = {}

    def install(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._collect)

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        self._waiting[pid] = ended

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._waiting.pop(pid, None)
            if ended is not None:
                ended(status)


class Command:
    """One command and its three pipes, for as long as somebody listens."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], reaper: Reaper, command: str, environment: dict[str, str]) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._pending = bytearray()
        self._input_ended = False
        self._status: int | None = None
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd=environment["HOME"],
            start_new_session=True,
        )
        reaper.watch(self._process.pid, self._ended)
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        self._outputs: dict[int, int | None] = {self._stdout: None, self._stderr: asyncssh.EXTENDED_DATA_STDERR}
        for descriptor in (self._stdin, *self._outputs):
            os.set_blocking(descriptor, False)
        self.resume_output()

    def write(self, data: bytes) -> None:
        """Input from the client."""
        if self._stdin < 0:
            return
        self._pending += data
        if len(self._pending) > _HIGH_WATER:
            self._channel.pause_reading()
        self._flush()

    def end_input(self) -> None:
        self._input_ended = True
        self._flush()

    def _flush(self) -> None:
        while self._pending and self._stdin >= 0:
            try:
                written = os.write(self._stdin, self._pending)
            except BlockingIOError:
                self._loop.add_writer(self._stdin, self._flush)
                return
            except OSError:
                self._pending.clear()
                self._close_input()
                return
            del self._pending[:written]
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            if self._input_ended:
                self._close_input()
        self._channel.resume_reading()

    def _close_input(self) -> None:
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def pause_output(self) -> None:
        for descriptor in self._outputs:
            self._loop.remove_reader(descriptor)

    def resume_output(self) -> None:
        for descriptor in self._outputs:
            self._loop.add_reader(descriptor, self._forward, descriptor)

    def _forward(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        if data:
            self._channel.write(data, self._outputs[descriptor])
            return
        self._close_output(descriptor)
        self._finish()

    def _close_output(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        del self._outputs[descriptor]
        os.close(descriptor)

    def signal(self, name: str) -> None:
        number = getattr(signal, f"SIG{name}", None)
        if number is not None and self._status is None:
            os.killpg(self._process.pid, number)

    def abandon(self) -> None:
        """The channel is gone: end of input, EPIPE on output, and nothing more."""
        self._pending.clear()
        self._close_input()
        for descriptor in list(self._outputs):
            self._close_output(descriptor)

    def _ended(self, status: int) -> None:
        self._status = status
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._finish()

    def _finish(self) -> None:
        """Like sshd: the channel closes when the command has ended and nobody holds its output any more."""
        if self._status is None or self._outputs:
            return
        self._close_input()
        if os.WIFSIGNALED(self._status):
            name = signal.Signals(os.WTERMSIG(self._status)).name.removeprefix("SIG")
            self._channel.exit_with_signal(name, os.WCOREDUMP(self._status))
        else:
            self._channel.exit(os.waitstatus_to_exitcode(self._status))


class Session(asyncssh.SSHServerSession[bytes]):
    """One channel: a command, never a shell, a pty or a subsystem (asyncssh refuses those by default)."""

    def __init__(self, reaper: Reaper, environment: dict[str, str]) -> None:
        self._reaper = reaper
        self._environment = environment
        self._line = ""
        self._running: Command | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        self._line = command
        return True

    def session_started(self) -> None:
        try:
            self._running = Command(self._channel, self._reaper, self._line, self._environment)
        except OSError as error:
            self._channel.write(f"lab: can't start the command: {error}\n".encode(), asyncssh.EXTENDED_DATA_STDERR)
            self._channel.exit(126)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._running is not None:
            self._running.write(data)

    def eof_received(self) -> bool:
        if self._running is not None:
            self._running.end_input()
        return True

    def signal_received(self, signal: str) -> None:
        if self._running is not None:
            self._running.signal(signal)

    def pause_writing(self) -> None:
        if self._running is not None:
            self._running.pause_output()

    def resume_writing(self) -> None:
        if self._running is not None:
            self._running.resume_output()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running is not None:
            self._running.abandon()


class HostServer(asyncssh.SSHServer):
    """The connections of one lab host."""

    def __init__(self, reaper: Reaper, layout: Layout, host: str, environment: Environment) -> None:
        self._reaper = reaper
        self._host = host
        self._environment = environment
        self._key = asyncssh.read_public_key(f"{layout.client_key}.pub")

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._peer = conn.get_extra_info("peername")

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == getpass.getuser() and key.public_data == self._key.public_data

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        return Session(self._reaper, self._environment(self._host, self._peer[1]))


def environment_of(layout: Layout, host: str, client_port: int = 0) -> dict[str, str]:
    """What sshd would give a command on this host; nothing of the lab's own environment."""
    folder = layout.host(host)
    user = getpass.getuser()
    return {
        "PATH": str(folder / "bin"),
        "HOME": str(folder / "home"),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "SSH_CONNECTION": f"{ADDRESS} {client_port} {ADDRESS} 22",
        MARKER: str(layout.directory),
    }


async def serve(layout: Layout, sockets: dict[str, socket.socket], environment: Environment, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM; `ready` is called once every host answers."""
    reaper = Reaper()
    reaper.install()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    acceptors = []
    for host, listener in sockets.items():

        def factory(host: str = host) -> HostServer:
            return HostServer(reaper, layout, host, environment)

        options: dict[str, Any] = {
            "server_host_keys": [str(layout.keys / host)],
            "password_auth": False,
            "kbdint_auth": False,
            "host_based_auth": False,
            "allow_pty": False,
            "encoding": None,
        }
        acceptors.append(await asyncssh.listen(sock=listener, server_factory=factory, **options))
    ready()
    await stop.wait()
    for acceptor in acceptors:
        acceptor.close()


def bind(ports: Mapping[str, int]) -> dict[str, socket.socket]:
    """Listening sockets, one a host.

    Raises:
        OSError: a port is taken.
    """
    sockets: dict[str, socket.socket] = {}
    try:
        for host, port in ports.items():
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets[host] = listener
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((ADDRESS, port))
            listener.listen(64)
    except OSError:
        for listener in sockets.values():
            listener.close()
        raise
    return sockets


def _run_detached(layout: Layout, sockets: dict[str, socket.socket], environment: Environment, report: int) -> NoReturn:
    os.setsid()
    log = os.open(str(layout.server_log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)

    def ready() -> None:
        record = {"pid": os.getpid(), "start_time": start_time(os.getpid())}
        write_private(layout.server_record, json.dumps(record))
        os.write(report, _READY)
        os.close(report)

    asyncio.run(serve(layout, sockets, environment, ready))
    raise SystemExit(0)


def main(arguments: list[str]) -> int:
    """Serve the lab in a folder; see :func:`run`."""
    layout = Layout.of(Path(arguments[0]))
    ports = read_ports(layout)
    if ports is None:
        sys.stderr.write(f"{layout.directory} is not a lab\n")
        return 1
    return run(layout, {name: port.ssh for name, port in ports.items()}, functools.partial(environment_of, layout))


def run(layout: Layout, ports: Mapping[str, int], environment: Environment) -> int:
    """Bind (`ports` by host), detach, and return once the server answers: 0, or 1 with the reason on stderr.

    A host's key and the client's public one are expected in the layout's `keys`.
    """
    try:
        sockets = bind(ports)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 1
    answer, report = os.pipe()
    if os.fork() == 0:
        os.close(answer)
        _run_detached(layout, sockets, environment, report)
    os.close(report)
    if os.read(answer, len(_READY)) == _READY:
        return 0
    sys.stderr.write(f"the server did not come up: see {layout.server_log}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
