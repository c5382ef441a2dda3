"""Finding servers among real processes. The servers are stand-ins with SGLang's process tree."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from orchestrator.agent import procfs
from orchestrator.agent.processes import find_leftovers, find_server, find_servers, launch_members, members_of, remaining_members, scan
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire import ManagerKind
from tests.agent.box import Box, is_running, wait_for
from tests.rig.network import free_port


def test_listening_server_is_found_with_its_children(box: Box) -> None:
    port = free_port()
    started = box.serve(port)
    server = find_server(port)
    assert server is not None
    assert server.main.id == started.main.id
    assert server.listening
    assert server.manager.kind == ManagerKind.SESSION
    assert server.launch_id is None
    titles = [member.title for member in server.members]
    assert len(titles) == 4
    assert sum("spawn_main" in title for title in titles) == 2
    assert sum("resource_tracker" in title for title in titles) == 1


def test_loading_server_is_found_by_its_arguments(box: Box) -> None:
    port = free_port()
    started = box.serve(port, loading=True)
    server = find_server(port)
    assert server is not None
    assert server.main.id == started.main.id
    assert not server.listening
    assert len(server.members) == 4


def test_marker_makes_a_server_ours(box: Box) -> None:
    server = box.serve(free_port(), marker="20260101T000000-test")
    assert server.launch_id == "20260101T000000-test"
    assert server.manager.kind == ManagerKind.OWN_SESSION
    assert {member.id for member in launch_members("20260101T000000-test")} == {member.id for member in server.members}


def test_another_server_a_client_and_an_editor_are_no_part_of_it(box: Box) -> None:
    port, other_port = free_port(), free_port()
    log = "shared.log"
    other = box.serve(other_port, log="other.log")
    client = box.start(sys.executable, "-m", "sglang.bench_serving", "--port", str(port), log=log)
    editor = box.start(sys.executable, "-c", "import time; time.sleep(300)", "python -m sglang.launch_server", "--port", str(port), log=log)
    server = box.serve(port, log=log)
    found = {member.pid for member in server.members}
    assert not found & {client, editor, os.getpid(), os.getppid(), *(member.pid for member in other.members)}
    assert {found.main.pid for found in find_servers()} >= {server.main.pid, other.main.pid}
    assert find_server(port).main.id == server.main.id  # type: ignore[union-attr]
    assert len(found) == 4


@pytest.mark.parametrize("escape", [False, True], ids=["orphans in its session", "an orphan that left its session"])
def test_orphans_of_a_loading_server_are_still_its_members(box: Box, escape: bool) -> None:
    server = box.serve(free_port(), loading=True, escape=escape)
    neighbour = box.serve(free_port())
    os.kill(server.main.pid, signal.SIGTERM)
    wait_for("main's end", lambda: not is_running(server.main.pid))
    box.reap()
    left = {member.pid for member in remaining_members(server.ties)}
    assert left == {member.pid for member in server.members} - {server.main.pid}
    assert left.isdisjoint(member.pid for member in neighbour.members)


@pytest.mark.slow
def test_orphan_that_fits_two_servers_is_nobodys(box: Box) -> None:
    dead = box.serve(free_port(), loading=True, log="both.log")
    first = box.serve(free_port(), log="both.log")
    second = box.serve(free_port(), log="both.log")
    os.kill(dead.main.pid, signal.SIGKILL)
    wait_for("main's end", lambda: not is_running(dead.main.pid))
    orphans = {member.pid for member in dead.members} - {dead.main.pid}
    assert orphans.isdisjoint(member.pid for member in members_of(first.ties, scan(), others=[second.ties]))
    assert orphans.isdisjoint(member.pid for server in find_servers() for member in server.members)


def test_leftovers_of_ours_carry_the_launch_id(box: Box) -> None:
    server = box.serve(free_port(), loading=True, marker="20260101T000000-left")
    os.kill(server.main.pid, signal.SIGKILL)
    wait_for("main's end", lambda: not is_running(server.main.pid))
    left = {leftover.process.pid for leftover in find_leftovers() if leftover.launch_id == "20260101T000000-left"}
    assert left == {member.pid for member in server.members} - {server.main.pid}


def test_stranger_on_the_port_is_unsupported() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert procfs.listening_pids(port) == {os.getpid()}
        server = find_server(port)
    assert server is not None
    assert server.manager.kind == ManagerKind.UNSUPPORTED
    assert str(os.getpid()) in server.manager.detail


def test_inner_port_of_another_server_is_not_that_server(box: Box) -> None:
    inner_port = free_port()
    other = box.serve(free_port(), inner_port=inner_port)
    holder = find_server(inner_port)
    assert holder is not None
    assert holder.manager.kind == ManagerKind.UNSUPPORTED
    assert find_server(other.port).main.id == other.main.id  # type: ignore[union-attr]


def test_two_loading_servers_for_one_port_are_refused(box: Box) -> None:
    port = free_port()
    box.serve(port, loading=True, log="first.log")
    box.serve(port, loading=True, log="second.log")
    with pytest.raises(AgentRefusal, match="2 SGLang servers"):
        find_server(port)
