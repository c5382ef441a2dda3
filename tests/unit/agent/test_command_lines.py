from __future__ import annotations

import pytest

from orchestrator.agent import wire
from orchestrator.agent.command_lines import argument_value, is_resource_tracker, is_spawned_child, named_port, server_arguments
from orchestrator.agent.procfs import Process

SERVERS = {
    "python -m sglang.launch_server --port 1": ["--port", "1"],
    "/opt/sglang/bin/python3.11 -m sglang.launch_server": [],
    "python3 -u -X dev -W ignore -m sglang.launch_server -x": ["-x"],
    "python -m sglang.cli.main serve --tp 8": ["--tp", "8"],
    "/opt/venv/bin/python3 /opt/venv/bin/sglang serve --port=9": ["--port=9"],
    "sglang serve --port 9": ["--port", "9"],
    "python /srv/sglang/python/sglang/launch_server.py --tp 2": ["--tp", "2"],
}
OTHERS = [
    "",
    "python -m sglang.bench_serving --port 30000",
    "python -m sglang_router.launch_server --port 30000",
    "bash -c python\u00a0-m\u00a0sglang.launch_server",
    "vim sglang/launch_server.py",
    "python -c import_sglang -m sglang.launch_server",
    "numactl --membind=0 python -m sglang.launch_server",
    "tee sglang.launch_server",
    "sglang bench",
    "python /opt/venv/bin/sglang check_env",
    "python -m",
    "grep -r sglang.launch_server .",
]
SPAWN = "python -B -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=7, pipe_handle=9) --multiprocessing-fork"
TRACKER = "python -B -c from multiprocessing.resource_tracker import main;main(6)"


def a_process(*arguments: str) -> Process:
    return Process(wire.ProcessId(2, 1), 1, 2, 2, 0, "S", " ".join(arguments), arguments, "/")


@pytest.mark.parametrize(("command", "arguments"), SERVERS.items())
def test_server_commands(command: str, arguments: list[str]) -> None:
    assert server_arguments(command.split(" ")) == arguments


@pytest.mark.parametrize("command", OTHERS)
def test_other_commands(command: str) -> None:
    assert server_arguments(command.split(" ") if command else []) is None


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["--port", "31000"], 31000),
        (["--port=31000"], 31000),
        (["--port", "1", "--port", "2"], 2),
        (["--nccl-port", "5"], None),
        (["--port"], None),
        ([], None),
    ],
)
def test_named_port(arguments: list[str], port: int | None) -> None:
    assert named_port(arguments) == port


def test_argument_value() -> None:
    assert argument_value(["--nnodes=2", "--tp", "8"], "--nnodes") == "2"


def test_children_are_recognised_before_and_after_they_have_their_title() -> None:
    code = SPAWN.split(" ", 3)
    assert is_spawned_child(a_process("python", "-B", "-c", code[3].replace(" --multiprocessing-fork", ""), "--multiprocessing-fork"))
    assert is_spawned_child(a_process("sglang::scheduler_TP0"))
    assert is_spawned_child(a_process(*TRACKER.split(" ", 3)))
    assert not is_spawned_child(a_process("vim", "from multiprocessing.spawn import spawn_main"))
    assert not is_spawned_child(a_process("tail", "-f", "sglang::scheduler"))
    assert not is_spawned_child(a_process())


def test_resource_tracker() -> None:
    assert is_resource_tracker(a_process(*TRACKER.split(" ", 3)))
    assert not is_resource_tracker(a_process("sglang::scheduler"))
