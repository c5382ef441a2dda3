"""The two traps in which a naive script takes a real server for ready: somebody else has its port."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.archive import agent_archive
from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.sglang import ENVIRONMENT, START_SECONDS, ContainerProcess, ServerByHand, generate, listening_ports
from tests.sglang.stage import NEIGHBOUR_PORT, PORT, Stage

IN_CONTAINER = Path(__file__).parent / "in_container"
SILENT_PORT = 31003


def await_ready(stage: Stage, port: int, claim: str) -> dict[str, Any]:
    """Start a launch on a port that is taken, wait for SGLang's `claim` in its log, and return what the agent makes of it."""
    container = stage.service.container
    container.path("/root/agent.zip").write_bytes(agent_archive())
    container.write("/root/await_ready.py", (IN_CONTAINER / "await_ready.py").read_text(encoding="utf-8"))
    python, _, _, *arguments = stage.service.command(port)
    launch = wire.Launch(f"trap-{port}", "trap", "auto", python, arguments, "0.0.0.0", port, environment=dict(ENVIRONMENT))
    argv = ["python3", "-I", "-S", "-B", "/root/await_ready.py", "/root/agent.zip", "/root/trap-state", claim]
    answer = container.run(*argv, stdin=json.dumps(wire.to_json(launch)), timeout=START_SECONDS + 60.0)
    decoded: dict[str, Any] = json.loads(answer.stdout)
    return decoded


@contextmanager
def silent_listener(container: Container, *arguments: str) -> Iterator[None]:
    """Run the silent listener in the container; it ends with the block, if it has not yet."""
    container.write("/root/silent_listener.py", (IN_CONTAINER / "silent_listener.py").read_text(encoding="utf-8"))
    argv = container.attach_argv("python3", "-I", "-S", "/root/silent_listener.py", *arguments)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as client:
        try:
            yield
        finally:
            # Ending lxc-attach would leave what runs inside.
            listed = container.run("ps", "-eo", "pid,args").stdout.splitlines()
            for pid in (line.split()[0] for line in listed if "silent_listener.py" in line):
                container.run("kill", "-KILL", pid, check=False)
            client.wait(timeout=10.0)


def test_old_server_on_the_port_makes_the_new_one_say_ready_but_not_us(stage: Stage, neighbour: ServerByHand) -> None:
    answer = await_ready(stage, NEIGHBOUR_PORT, "The server is fired up and ready to roll!")

    assert answer["claimed"], "the trap is gone: SGLang no longer claims to be ready on another server's port"
    assert not answer["ready"]
    assert answer["category"] == "port_in_use"


def test_silent_listener_on_the_port_is_not_waited_for(stage: Stage, neighbour: ServerByHand) -> None:
    with silent_listener(stage.service.container, str(SILENT_PORT)):
        wait_for("the listener", lambda: SILENT_PORT in listening_ports(stage.service.container), 10.0)
        answer = await_ready(stage, SILENT_PORT, "error while attempting to bind on address")

    assert answer["claimed"], "the trap is gone: SGLang no longer says that its port is taken"
    assert not answer["ready"]
    assert answer["category"] == "port_in_use"


def test_silent_listener_that_takes_the_port_during_a_relaunch_is_rolled_back(
    stage: Stage, serving: ContainerProcess, neighbour: ServerByHand
) -> None:
    with silent_listener(stage.service.container, str(PORT), "dfs-weight"):
        answer = stage.operator.ask("relaunch", "--backend", "dfs-weight", "--yes", "--no-measure", "--sequential")

    answer.expect(6)
    assert answer.document["result"]["failure"]["category"] == "port_in_use"
    assert stage.argument("schedule_policy") != "dfs-weight"
    assert generate(stage.url, 4) == 4
