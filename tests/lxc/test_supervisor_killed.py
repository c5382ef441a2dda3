"""A supervisor that dies under a real systemd, in a real container, is started again and goes on. The server is the lab's stand-in."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import orchestrator.lab
from tests.lxc.in_container import PYTHON, STATE, AgentInContainer
from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.tiny_model import write_model

pytestmark = pytest.mark.lxc

STANDIN = "/opt/lab-standin"
MODEL = "/srv/models/standin"
PORT = 30077
ARGUMENTS = ["--model-path", MODEL, "--host", "127.0.0.1", "--port", str(PORT)]

LAUNCH_OLD = """
from orchestrator.agent.runner import choose_runner
from orchestrator.agent.ready import wait_ready
runner = choose_runner(folder(), launch())
started = runner.start()
wait_ready(launch(), runner.members, None, wire.Policy(load_total=60), ignore, runner.exit_status)
folder().mark_verified(launch().launch_id, {})
out(started.main)
"""
SUBMIT = """
from orchestrator.agent.supervisor import submit
out(submit(wire.from_json(wire.Order, given["order"]), ignore))
"""
CANCEL = """
from orchestrator.agent.supervisor import cancel
out(cancel(wire.Cancel(given["launch"]["service"], given["root"], given["order_id"], "bob@desk"), ignore))
"""
LOOK = """
from orchestrator.agent.journal import order_status
from orchestrator.agent.processes import find_leftovers, find_servers
servers = find_servers()
out({"status": order_status(folder()), "servers": [[s.launch_id, s.listening, s.port] for s in servers],
     "leftovers": [str(left.process) for left in find_leftovers()]})
"""


@dataclass
class Box:
    """A service of its own in the container, whose server is the stand-in."""

    agent: AgentInContainer
    service: str
    environment: dict[str, str] = field(default_factory=lambda: {"PYTHONPATH": STANDIN, "SGLANG_STANDIN_TIME_SCALE": "0.05"})

    def launch(self, launch_id: str, **environment: str) -> dict[str, Any]:
        return {
            "launch_id": f"{self.service}-{launch_id}",
            "service": self.service,
            "backend": launch_id,
            "python": PYTHON,
            "arguments": ARGUMENTS,
            "host": "127.0.0.1",
            "port": PORT,
            "environment": {**self.environment, **environment},
        }

    def start_old(self) -> dict[str, Any]:
        main: dict[str, Any] = self.agent.python(LAUNCH_OLD, launch=self.launch("old"))
        return main

    def submit(
        self, old: dict[str, Any] | None, new: dict[str, Any] | None, point: str, order_id: str = "", kind: str = "relaunch", **more: Any
    ) -> str:
        """Hand in an order whose supervisor dies when it passes `point`."""
        order_id = order_id or f"order-{self.service}"
        order = {
            "order_id": order_id,
            "kind": kind,
            "service": self.service,
            "state_root": STATE,
            "port": PORT,
            "policy": {"measure": False, "drain": 1, "grace": 10, "clean": 10, "load_total": 60},
            "operator": "ann@laptop",
            "old": old,
            "new": new,
            **more,
        }
        if point:
            self.write("crash-point", point)
        self.agent.python(SUBMIT, launch=self.launch("any"), order=order)
        return order_id

    def write(self, name: str, text: str) -> None:
        self.agent.container.write(f"{STATE}/{self.service}/{name}", text)

    def look(self) -> dict[str, Any]:
        seen: dict[str, Any] = self.agent.python(LOOK, launch=self.launch("any"))
        return seen

    def journal(self, order_id: str) -> list[dict[str, Any]]:
        text = self.agent.text(f"{STATE}/{self.service}/orders/{order_id}/journal.jsonl")
        return [json.loads(line) for line in text.partition("\0")[0].splitlines()]

    def seconds_to_load(self, order_id: str) -> float:
        """How long Python takes at the moment to start and load an order's code: half a second where nothing else runs."""
        modules = ", ".join(f"orchestrator.agent.{name}" for name in ("supervisor", "box_steps", "relaunch"))
        archive = f"{STATE}/{self.service}/orders/{order_id}/agent.zip"
        began = time.monotonic()
        self.agent.container.run(PYTHON, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {archive!r}); import {modules}")
        return time.monotonic() - began

    def resumed(self, order_id: str) -> int:
        """How often a supervisor took the order over."""
        return max(int(entry["data"].get("resumed", 0)) for entry in self.journal(order_id))

    def wait_end(self, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until the order has come to its end; what there is then."""
        seen: dict[str, Any] = {}

        def ended() -> bool:
            seen.update(self.look())
            return not seen["status"]["live"] and not seen["status"]["state"].startswith("INTERRUPTED")

        wait_for("the order's end", ended, seconds, 0.3)
        return seen


@pytest.fixture
def box(container: Container, request: pytest.FixtureRequest) -> Iterator[Box]:
    agent = AgentInContainer.install(container)
    source = Path(orchestrator.lab.__file__).parent / "standin"
    shutil.copytree(source, container.path(STANDIN), dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    write_model(container.path(MODEL))
    made = Box(agent, f"killed{time.monotonic_ns()}")
    yield made
    remove = f"find /etc/systemd/system -name 'orchestrator-{made.service}*' -delete; rm -rf {STATE}/{made.service}"
    end = f"systemctl kill --signal=KILL 'orchestrator-{made.service}*'; systemctl stop 'orchestrator-{made.service}*'"
    container.shell(f"rm -f {STATE}/{made.service}/boot; {end}; {remove}", check=False)


FORWARD = ["journal: LOCKED", "stop: grace", "journal: STARTING", "started", "journal: VERIFIED"]
"""A few; the fault campaign (tests/faults) goes through all of them."""


@pytest.mark.slow
@pytest.mark.parametrize("point", FORWARD)
def test_a_supervisor_killed_on_the_way_is_followed_by_one_that_finishes(box: Box, point: str) -> None:
    old = box.start_old()
    new = box.launch("new")
    order_id = box.submit(old, new, point)
    seen = box.wait_end()
    journal = box.journal(order_id)
    assert seen["status"]["state"] == "DONE"
    assert seen["servers"] == [[new["launch_id"], True, PORT]]
    assert seen["leftovers"] == []
    resumed = [entry["state"] for entry in journal if "resumed" in entry["data"]]
    assert len(resumed) == (0 if point == FORWARD[0] else 1)
    assert box.agent.container.run("ls", "/etc/systemd/system", check=True).stdout.count("-resume.service") == 0


@pytest.mark.slow
@pytest.mark.parametrize("point", ["journal: ROLLING_BACK", "journal: STARTING#2", "journal: LOADING#2", "journal: ANSWERING"])
def test_a_supervisor_killed_while_it_rolls_back_brings_the_old_server_back(box: Box, point: str) -> None:
    old = box.start_old()
    order_id = box.submit(old, box.launch("new", SGLANG_STANDIN_FAIL_AT="weights"), point)
    seen = box.wait_end()
    assert seen["status"]["state"] == "RESTORED"
    ((launch_id, listening, _),) = seen["servers"]
    assert listening
    assert launch_id.endswith("-back")
    assert seen["leftovers"] == []
    assert any("resumed" in entry["data"] for entry in box.journal(order_id))


@pytest.mark.slow
def test_a_killed_supervisor_is_back_within_a_second_and_can_still_be_stopped_safely(box: Box) -> None:
    old = box.start_old()
    order_id = box.submit(old, box.launch("new", SGLANG_STANDIN_HANG_AT="weights"), "")
    wait_for("the load", lambda: box.look()["status"]["state"] == "LOADING", 30.0, 0.2)
    unit = f"orchestrator-{box.service}-order-{order_id}.service"
    gaps = []
    for count, number in enumerate(("KILL", "TERM", "KILL"), 1):
        killed = time.time()
        box.agent.container.shell(f"kill -{number} $(systemctl show --property MainPID --value {unit})")
        wait_for("its return", lambda: box.resumed(order_id) == count, 20.0, 0.05)  # noqa: B023 - waited for here
        gaps.append(box.journal(order_id)[-1]["time"] - killed)
    busy = box.seconds_to_load(order_id)
    assert min(gaps) < max(1.0, 0.5 + 1.5 * busy), (gaps, busy)

    box.agent.python(CANCEL, launch=box.launch("any"), root=STATE, order_id=order_id)

    seen = box.wait_end()
    assert seen["status"]["state"] == "RESTORED"
    assert [listening for _, listening, _ in seen["servers"]] == [True]


@pytest.mark.slow
def test_an_order_that_a_restart_of_the_container_cut_off_puts_the_old_server_back_at_boot(box: Box) -> None:
    old = box.start_old()
    container = box.agent.container
    order_id = box.submit(old, box.launch("new", SGLANG_STANDIN_HANG_AT="weights"), "")
    wait_for("the load", lambda: box.look()["status"]["state"] == "LOADING", 30.0, 0.2)
    assert f"orchestrator-{box.service}-resume.service" in container.run("ls", "/etc/systemd/system").stdout

    container.stop()
    container.boot()

    seen = box.wait_end()
    assert seen["status"]["state"] == "RESTORED"
    ((launch_id, listening, _),) = seen["servers"]
    assert (launch_id.endswith("-back"), listening) == (True, True)
    assert any("restarted" in entry["reason"] for entry in box.journal(order_id))
    assert "resume" not in container.run("ls", "/etc/systemd/system").stdout
