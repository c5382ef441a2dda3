"""Listening sockets by netlink are those that /proc shows, and where netlink does not answer /proc is read."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from orchestrator.agent import procfs, socket_diag


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_netlink_and_proc_show_the_same_sockets(family: socket.AddressFamily, address: str) -> None:
    if family == socket.AF_INET6 and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server((address, 0), family=family) as server, socket.create_connection(server.getsockname()[:2]):
        asked = [*socket_diag._listening(socket.AF_INET), *socket_diag._listening(socket.AF_INET6)]
        read = procfs.proc_listeners()
        mine = procfs.Listener(server.getsockname()[1], os.fstat(server.fileno()).st_ino, os.geteuid())
    assert asked.count(mine) == read.count(mine) == 1
    inodes = [listener.inode for listener in asked]
    assert len(inodes) == len(set(inodes))


def test_without_netlink_proc_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_diag, "_NETLINK_SOCK_DIAG", 31)  # no such protocol
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in {listener.port for listener in socket_diag.all_listeners()}


def test_a_refusal_is_an_error_and_an_answer_that_is_cut_off_too() -> None:
    refusal = struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -2)
    with pytest.raises(OSError, match="sock_diag") as caught:
        list(socket_diag.parse_answer(refusal))
    assert caught.value.errno == 2
    with pytest.raises(struct.error):
        list(socket_diag.parse_answer(struct.pack("=IHHII", 88, 20, 2, 1, 0)))


def test_one_variable_is_read_as_with_all_of_them() -> None:
    pid = os.getpid()
    everything = procfs.read_environment(pid) or {}
    for name in (*list(everything)[:5], "NO_SUCH_VARIABLE"):
        assert procfs.read_variable(pid, name) == everything.get(name)
    assert procfs.read_variable(1 << 22, "PATH") is None
