"""The lab's SSH server with a paramiko client: commands, bytes, endings, keys."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.lab.control import LabInfo
from orchestrator.lab.layout import Layout


def login(lab: LabInfo, key: paramiko.PKey | None, *, user: str = "", password: str | None = None) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.load_host_keys(str(lab.inventory / "known_hosts"))
    client.connect(
        "127.0.0.1",
        port=lab.hosts[0].ssh_port,
        username=user or _user(),
        password=password,
        pkey=key,
        allow_agent=False,
        look_for_keys=False,
        timeout=20,
    )
    return client


def _user() -> str:
    import getpass

    return getpass.getuser()


@pytest.fixture
def key(lab: LabInfo) -> paramiko.PKey:
    return paramiko.Ed25519Key.from_private_key_file(str(Layout.of(lab.directory).client_key))


@pytest.fixture
def client(lab: LabInfo, key: paramiko.PKey) -> Iterator[paramiko.SSHClient]:
    client = login(lab, key)
    yield client
    client.close()


def execute(client: paramiko.SSHClient, command: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    channel = _open(client, command)
    channel.sendall(stdin)
    channel.shutdown_write()
    output, errors = channel.makefile("rb").read(), channel.makefile_stderr("rb").read()
    return channel.recv_exit_status(), output, errors


def _open(client: paramiko.SSHClient, command: str) -> paramiko.Channel:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session(timeout=20)
    channel.settimeout(60)
    channel.exec_command(command)
    return channel


def test_exit_status_and_the_two_outputs(client: paramiko.SSHClient) -> None:
    assert execute(client, "printf out; printf err >&2; exit 7") == (7, b"out", b"err")


def test_bytes_pass_unchanged_both_ways(client: paramiko.SSHClient) -> None:
    data = os.urandom(3 * 1024 * 1024)
    channel = _open(client, "cat")
    received = bytearray()
    sent = 0
    while len(received) < len(data):
        if sent < len(data) and channel.send_ready():
            sent += channel.send(data[sent : sent + 32768])
            if sent == len(data):
                channel.shutdown_write()
        if channel.recv_ready() or sent == len(data):
            received += channel.recv(65536)
    assert bytes(received) == data
    assert channel.recv_exit_status() == 0


def test_each_command_has_a_session_and_the_hosts_path(lab: LabInfo, client: paramiko.SSHClient) -> None:
    folder = Layout.of(lab.directory).host(lab.hosts[0].name)
    status, output, _ = execute(client, "echo $PATH; pwd; ps -o sid= -p $$; echo $$; command -v systemd-run")
    path, home, session, shell = output.decode().split()
    assert (status, path, home) == (127, str(folder / "bin"), str(folder / "home"))
    assert session == shell


def test_a_killed_command_is_told_apart_from_an_exit(client: paramiko.SSHClient) -> None:
    channel = _open(client, "kill -9 $$")
    assert channel.recv_exit_status() == -1


def test_a_command_survives_a_lost_connection_and_sees_the_end(lab: LabInfo, key: paramiko.PKey, tmp_path: Path) -> None:
    lost = login(lab, key)
    mark = tmp_path / "mark"
    _open(lost, f"cat > /dev/null; (trap '' PIPE; echo x; echo status $?) >> {mark}.out 2>&1; sh -c 'echo y || true'; echo done > {mark}")
    transport = lost.get_transport()
    assert transport is not None
    transport.sock.close()
    assert wait_until(mark.exists, Deadline(20))


def test_output_after_a_lost_connection_is_a_broken_pipe(lab: LabInfo, key: paramiko.PKey, tmp_path: Path) -> None:
    lost = login(lab, key)
    mark = tmp_path / "mark"
    _open(lost, f"cat > /dev/null; trap '' PIPE; while printf 0123456789 2>/dev/null; do sleep 0.02; done; echo ended > {mark}")
    lost.close()
    assert wait_until(mark.exists, Deadline(20))


def test_a_background_process_outlives_its_command(client: paramiko.SSHClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    began = time.monotonic()
    assert execute(client, f"(sleep 0.5; echo here > {mark}) > /dev/null 2>&1 < /dev/null &")[0] == 0
    assert time.monotonic() - began < 20
    assert wait_until(mark.exists, Deadline(20))


def test_keepalives_are_answered(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    transport.global_request("keepalive@openssh.com", wait=True)
    assert transport.is_active()


def test_no_pty_no_shell(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    for request in ("get_pty", "invoke_shell"):
        with pytest.raises(paramiko.SSHException):
            getattr(transport.open_session(timeout=20), request)()


def test_only_the_labs_key_and_user_come_in(lab: LabInfo, key: paramiko.PKey, tmp_path: Path) -> None:
    other = paramiko.RSAKey.generate(2048)
    with pytest.raises(paramiko.AuthenticationException):
        login(lab, other)
    with pytest.raises(paramiko.AuthenticationException):
        login(lab, key, user="nobody-at-all")
    with pytest.raises(paramiko.SSHException):
        login(lab, None, password="password")


def test_many_commands_at_once(client: paramiko.SSHClient) -> None:
    channels = [_open(client, f"sleep 0.2; echo {number}") for number in range(8)]
    assert [channel.makefile("rb").read() for channel in channels] == [f"{number}\n".encode() for number in range(8)]
