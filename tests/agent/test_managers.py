"""Who manages a server, told from real processes. `supervisord` is a stand-in: a script of that name that starts the server."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from orchestrator.agent.processes import find_server
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.stopping import stop_server
from orchestrator.agent.wire import ManagerKind, Policy
from tests.agent.box import Box, is_running
from tests.rig.network import free_port

needs_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")


def test_nohup_is_named(box: Box) -> None:
    server = box.serve(free_port(), wrapper=["nohup"])
    assert (server.manager.kind, server.manager.name) == (ManagerKind.SESSION, "nohup")


def test_server_below_supervisord_standin_is_unsupported_and_not_stopped(box: Box, tmp_path: Path) -> None:
    script = tmp_path / "supervisord"
    script.write_text("import subprocess, sys\nsubprocess.run(sys.argv[1:])\n")
    server = box.serve(free_port(), wrapper=[sys.executable, str(script)])
    assert (server.manager.kind, server.manager.name) == (ManagerKind.UNSUPPORTED, "supervisord")
    with pytest.raises(AgentRefusal, match="supervisord"):
        stop_server(server, Policy(), lambda *_: None)
    assert is_running(server.main.pid)


def test_server_over_several_nodes_is_unsupported(box: Box) -> None:
    server = box.serve(free_port(), extra=["--nnodes=2"])
    assert (server.manager.kind, server.manager.detail) == (ManagerKind.UNSUPPORTED, "--nnodes 2")
    assert box.serve(free_port(), extra=["--nnodes", "1"]).manager.kind == ManagerKind.SESSION


@needs_root
def test_server_in_another_pid_namespace_is_unsupported(box: Box) -> None:
    server = box.serve(free_port(), wrapper=["unshare", "--pid", "--fork", "--mount-proc"])
    assert (server.manager.kind, server.manager.name) == (ManagerKind.UNSUPPORTED, "another PID namespace")
    assert find_server(server.port).manager == server.manager  # type: ignore[union-attr]


@needs_root
def test_server_in_another_network_namespace_is_not_on_our_port(box: Box) -> None:
    server = box.serve(free_port(), wrapper=["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"])
    assert (server.manager.kind, server.manager.name) == (ManagerKind.UNSUPPORTED, "another network namespace")
    assert find_server(server.port) is None
