"""Under a real systemd: who watches does not lose a supervisor that is started again, one that was stopped is resumed, GPUs are held."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lxc.in_container import STATE
from tests.lxc.test_supervisor_killed import Box, box
from tests.rig.commands import wait_for

__all__ = ["box"]

pytestmark = [pytest.mark.lxc, pytest.mark.slow]

SMI = "/opt/one-gpu/nvidia-smi"
"""/usr is the machine's; systemd is told to look here too."""
ONE_GPU = """\
#!/bin/sh
case "$1" in --query-gpu=*) echo "0, GPU-5f1d0000-1111, Stand-in, 12.0, 0, 97887";; esac
"""
FOLLOW = """
from orchestrator.agent.follow import follow
out(follow(wire.OrderReference(given["launch"]["service"], given["root"], given["order_id"]), lambda kind, data: None))
"""
RESUME = """
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.supervisor import resume
try:
    out(resume(wire.OrderReference(given["launch"]["service"], given["root"], given["order_id"]), ignore))
except AgentRefusal as refusal:
    out(refusal.failure)
"""
OTHER = """
from orchestrator.agent.follow import follow
from orchestrator.agent.supervisor import submit
order = wire.Order("other", "teardown", given["launch"]["service"] + "-b", given["root"], 30078, wire.Policy(), "bob@desk",
                   new=launch())
submit(order, ignore)
out(follow(wire.OrderReference(order.service, order.state_root, "other"), lambda kind, data: None))
"""
DESCRIPTORS = """
import os
from orchestrator.agent.processes import find_servers
out([os.readlink(f"/proc/{m.pid}/fd/{name}") for s in find_servers() for m in s.members for name in os.listdir(f"/proc/{m.pid}/fd")
     if os.path.exists(f"/proc/{m.pid}/fd/{name}")])
"""


@pytest.fixture
def gpu(box: Box) -> Iterator[None]:
    container = box.agent.container
    container.write(SMI, ONE_GPU, 0o755)
    container.run("systemctl", "set-environment", "PATH=/opt/one-gpu:/usr/sbin:/usr/bin")
    yield
    container.shell(f"systemctl unset-environment PATH; rm -f {SMI}; rm -rf {STATE}/.gpus {STATE}/{box.service}-b", check=False)


def loading(box: Box, **environment: str) -> tuple[str, str]:
    """An order whose new server loads, and the supervisor's unit."""
    order_id = box.submit(box.start_old(), box.launch("new", **environment), "")
    wait_for("the load", lambda: box.look()["status"]["state"] == "LOADING", 30.0, 0.2)
    return order_id, f"orchestrator-{box.service}-order-{order_id}.service"


def ask(box: Box, script: str, order_id: str) -> Any:
    return box.agent.python(script, launch=box.launch("any"), root=STATE, order_id=order_id)


def test_who_watches_sees_the_end_although_the_supervisor_was_killed_in_between(box: Box) -> None:
    order_id, unit = loading(box)
    ends: list[dict[str, Any]] = []
    watching = threading.Thread(target=lambda: ends.append(ask(box, FOLLOW, order_id)))
    watching.start()
    box.agent.container.shell(f"kill -KILL $(systemctl show --property MainPID --value {unit})")
    again = ask(box, RESUME, order_id)
    watching.join(60)
    assert "category" in again or "systemd has started" in again["holder"]
    assert [end["state"] for end in ends] == ["DONE"]
    assert box.resumed(order_id) == 1


def test_an_order_whose_supervisor_was_stopped_is_resumed_in_a_unit_again(box: Box) -> None:
    order_id, unit = loading(box)
    box.agent.container.run("systemctl", "stop", unit)
    assert box.look()["status"]["state"] == "INTERRUPTED(LOADING)"
    assert ask(box, RESUME, order_id) == {"order_id": order_id, "holder": unit}
    seen = box.wait_end()
    assert (seen["status"]["state"], seen["status"]["resumed"]) == ("DONE", 1)
    assert ask(box, RESUME, order_id)["category"] == "refused"


@pytest.mark.usefixtures("gpu")
def test_a_gpu_stays_with_an_order_through_its_supervisors_death_and_no_server_holds_it(box: Box) -> None:
    order_id, unit = loading(box, SGLANG_STANDIN_HANG_AT="weights")
    box.agent.container.shell(f"kill -KILL $(systemctl show --property MainPID --value {unit})")
    refused = ask(box, OTHER, order_id)
    assert (refused["state"], refused["exit_code"]) == ("REFUSED", 5)
    assert f"GPU-5f1d0000-1111 is held by the relaunch {order_id} of {box.service} by ann@laptop" in refused["summary"]
    wait_for("its return", lambda: box.resumed(order_id) == 1, 20.0, 0.1)
    held = ask(box, DESCRIPTORS, order_id)
    assert not [path for path in held if path.endswith("/lock") or "/.gpus/" in path]
    assert [path for path in held if path.endswith("server.log")]

    box.agent.python(
        "from orchestrator.agent.supervisor import cancel\n"
        "out(cancel(wire.Cancel(given['launch']['service'], given['root'], given['order_id'], 'bob@desk'), ignore))",
        launch=box.launch("any"),
        root=STATE,
        order_id=order_id,
    )

    assert box.wait_end()["status"]["state"] == "RESTORED"
    box.agent.container.shell(f"rm -rf {STATE}/{box.service}-b")
    assert ask(box, OTHER, order_id)["exit_code"] == 0
