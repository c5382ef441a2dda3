"""A relaunch whose new server is started beside the old one, under a real systemd in a real container. The server is a stand-in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lxc.in_container import STATE
from tests.lxc.test_boot_unit import PIN, crash, relaunch, serving, show, wait_back
from tests.lxc.test_supervisor_killed import PORT, Box, box
from tests.rig.commands import wait_for

__all__ = ["box"]

pytestmark = pytest.mark.lxc

POINTS = ["the staged launch is started", "the gate is reached", "journal: DRAINING", "before the activation", "the activation"]
RESULT = """
from pathlib import Path
import json
out(json.loads((Path(folder().order_folder(given["order_id"])) / "result.json").read_text()))
"""


def stage(box: Box, name: str, point: str = "", *, host: str = "127.0.0.1", **environment: str) -> str:
    """Hand in an order that is to stage a launch beside what runs; its id."""
    launch = box.launch(name, **environment)
    launch["host"] = launch["arguments"][launch["arguments"].index("--host") + 1] = host
    pinned = box.agent.python(PIN, launch=box.launch("any"))
    return box.submit(pinned, launch, point, order_id=f"order-{box.service}-{name}", staged=True)


def result(box: Box, order_id: str) -> dict[str, Any]:
    found: dict[str, Any] = box.agent.python(RESULT, launch=box.launch("any"), order_id=order_id)
    return found


def tables(box: Box) -> str:
    return box.agent.container.run("nft", "list", "tables").stdout


def states(box: Box, order_id: str) -> list[str]:
    return [entry["state"] for entry in box.journal(order_id)]


@pytest.mark.slow
def test_a_staged_server_takes_over_comes_back_after_a_crash_and_leaves_nothing(box: Box) -> None:
    relaunch(box, "one")
    order_id = stage(box, "two", host="0.0.0.0")
    seen = box.wait_end()
    told = result(box, order_id)
    assert (told["state"], told["staged"]) == ("DONE", True), told
    assert {"STAGING", "ACTIVATING"} <= set(states(box, order_id))
    assert seen["servers"] == [[f"{box.service}-two", True, PORT]]
    assert "orchestrator_gate_" in tables(box)
    unit = show(box)["unit"]
    assert (unit["launch_id"], unit["armed"]) == (f"{box.service}-two", True)

    crash(box)
    wait_back(box, f"{box.service}-two")
    assert "--gated-launch-port" not in box.agent.container.shell("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").stdout

    box.submit(box.agent.python(PIN, launch=box.launch("any")), None, "", order_id=f"order-{box.service}-end", kind="teardown")
    assert box.wait_end()["servers"] == []
    assert "orchestrator_gate_" not in tables(box)


@pytest.mark.slow
def test_a_staged_server_that_dies_at_its_gate_costs_nothing_and_starts_nothing(box: Box) -> None:
    relaunch(box, "one")
    before = show(box)
    order_id = stage(box, "two", SGLANG_STANDIN_DIE_AT_GATE="0.01")
    seen = box.wait_end()
    assert seen["status"]["state"] == "REFUSED", result(box, order_id)
    assert seen["servers"] == [[f"{box.service}-one", True, PORT]]
    after = show(box)
    assert (after["main"], after["unit"]["armed"], after["unit"]["restarts"]) == (before["main"], True, 0)
    crash(box)
    wait_back(box, f"{box.service}-one")


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_supervisor_killed_beside_a_staged_server_is_followed_by_one_that_finishes(box: Box, point: str) -> None:
    relaunch(box, "one")
    order_id = stage(box, "two", point)
    seen = box.wait_end()
    told = result(box, order_id)
    assert (told["state"], told["staged"]) == ("DONE", True), told
    assert box.resumed(order_id) == 1
    assert seen["servers"] == [[f"{box.service}-two", True, PORT]]
    assert seen["leftovers"] == []
    assert states(box, order_id).count("DRAINING") <= 2


@pytest.mark.slow
def test_an_old_server_that_crashes_beside_a_staged_one_is_followed_by_that_though_systemd_starts_it_again(box: Box) -> None:
    relaunch(box, "one")
    order_id = stage(box, "two", SGLANG_STANDIN_TIME_SCALE="0.5")
    wait_for("staging", lambda: "STAGING" in states(box, order_id), 30.0, 0.2)
    crash(box)
    seen = box.wait_end(90.0)
    told = result(box, order_id)
    assert (told["state"], told["staged"]) == ("DONE", True), told
    assert seen["servers"] == [[f"{box.service}-two", True, PORT]]
    assert serving(box) == [f"{box.service}-two"]
    assert seen["leftovers"] == []


@pytest.mark.slow
def test_a_failure_after_the_switch_is_rolled_back_by_a_staged_start(box: Box) -> None:
    relaunch(box, "one")
    order_id = stage(box, "two", SGLANG_STANDIN_FAIL_AT="weights")
    seen = box.wait_end(90.0)
    told = result(box, order_id)
    assert (told["state"], told["staged"]) == ("RESTORED", True), told
    ((launch_id, listening, _),) = seen["servers"]
    assert listening
    assert launch_id.endswith("-back")
    assert seen["leftovers"] == []
    unit = show(box)["unit"]
    assert (unit["launch_id"], unit["armed"]) == (launch_id, True)
    assert box.agent.text(f"{STATE}/{box.service}/boot").strip() == launch_id
