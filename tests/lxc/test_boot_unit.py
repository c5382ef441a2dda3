"""What brings a server back after a crash and after a restart of the machine, under a real systemd. The server is the lab's stand-in."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.lxc.in_container import STATE
from tests.lxc.test_supervisor_killed import LOOK, PORT, Box, box
from tests.rig.commands import wait_for

__all__ = ["box"]

pytestmark = pytest.mark.lxc

SHOW = """
from orchestrator.agent.boot_state import describe
from orchestrator.agent.processes import find_server
server = find_server(given["launch"]["port"])
out({"unit": describe(folder()), "manager": server and server.manager, "main": server and server.main.pid})
"""
PIN = """
from orchestrator.agent.processes import find_server
out(find_server(given["launch"]["port"]).main.id)
"""
TURN = """
from orchestrator.agent.boot_unit import boot
from orchestrator.agent.wire_launches import BootRequest
out(boot(BootRequest(given["launch"]["service"], given["root"], given["launch"]["port"], given["action"]), ignore))
"""


SLOW = {"SGLANG_STANDIN_SLOW_START": "8"}
"""A load of eight seconds: longer than RestartSec."""


def relaunch(box: Box, name: str, point: str = "", **environment: str) -> dict[str, Any]:
    """Have the supervisor start a launch, whatever runs now; how it ended."""
    seen = box.look()
    old = show(box)["main"] if seen["servers"] else None
    pinned = box.agent.python(PIN, launch=box.launch("any")) if old is not None else None
    box.submit(pinned, box.launch(name, **environment), point, order_id=f"order-{box.service}-{name}")
    seen = box.wait_end()
    seen["journal"] = [(entry["state"], entry["reason"]) for entry in box.journal(f"order-{box.service}-{name}")]
    return seen


def show(box: Box) -> dict[str, Any]:
    shown: dict[str, Any] = box.agent.python(SHOW, launch=box.launch("any"))
    return shown


def serving(box: Box) -> list[str]:
    """The launches that listen now."""
    return [launch_id for launch_id, listening, _ in box.look()["servers"] if listening]


def crash(box: Box) -> int:
    """Kill the main process; its number."""
    main = int(show(box)["main"])
    box.agent.container.run("kill", "-KILL", str(main))
    return main


def wait_back(box: Box, launch_id: str, seconds: float = 40.0) -> None:
    wait_for(f"{launch_id} to serve", lambda: serving(box) == [launch_id], seconds, 0.3)


@pytest.mark.slow
def test_a_server_that_crashes_is_back_by_itself_as_the_same_launch_again_and_again(box: Box) -> None:
    seen = relaunch(box, "one")
    assert seen["status"]["state"] == "DONE", seen
    launch_id = f"{box.service}-one"
    unit = show(box)["unit"]
    assert (unit["launch_id"], unit["armed"], unit["restarts"], unit["problem"]) == (launch_id, True, 0, None)

    for count in (1, 2):
        crash(box)
        wait_for("its end", lambda: launch_id not in serving(box), 10.0, 0.05)
        wait_back(box, launch_id)
        shown = show(box)
        assert shown["manager"] == {"kind": "own_unit", "name": f"orchestrator-{box.service}.service", "detail": ""}
        assert (shown["unit"]["restarts"], shown["unit"]["ended"]) == (count, "signal killed KILL")
        assert shown["unit"]["last"] == pytest.approx(time.time(), abs=60)
    assert box.look()["leftovers"] == []
    keeper = box.agent.container.run("systemctl", "is-active", f"orchestrator-{box.service}:log.service", check=False).stdout.strip()
    assert keeper == "active"


@pytest.mark.slow
def test_a_relaunch_of_a_server_that_came_back_does_not_start_two_and_its_launch_is_the_one_that_comes_back_then(box: Box) -> None:
    relaunch(box, "one")
    crash(box)
    wait_back(box, f"{box.service}-one")
    seen = relaunch(box, "two")
    assert seen["status"]["state"] == "DONE"
    assert seen["servers"] == [[f"{box.service}-two", True, PORT]]
    assert show(box)["unit"]["launch_id"] == f"{box.service}-two"
    assert show(box)["unit"]["restarts"] == 0
    crash(box)
    wait_back(box, f"{box.service}-two")


@pytest.mark.slow
def test_nothing_starts_a_server_that_is_killed_in_a_stop(box: Box) -> None:
    relaunch(box, "one", SGLANG_STANDIN_IGNORE_SIGTERM="1")
    crash(box)
    wait_back(box, f"{box.service}-one")
    seen = relaunch(box, "two", **SLOW)
    assert seen["status"]["state"] == "DONE"
    assert box.look()["servers"] == [[f"{box.service}-two", True, PORT]]
    started = box.agent.text(f"{STATE}/{box.service}/launches/{box.service}-one/restarts").splitlines()
    assert len(started) == 1, "only after its crash"


@pytest.mark.slow
def test_after_a_restart_of_the_machine_the_last_verified_launch_serves(box: Box) -> None:
    relaunch(box, "one")
    relaunch(box, "two", SGLANG_STANDIN_FAIL_AT="weights")
    (back,) = serving(box)
    assert back.endswith("-back")
    assert show(box)["unit"]["launch_id"] == back
    container = box.agent.container
    container.stop()
    container.boot()
    wait_back(box, back)
    assert show(box)["unit"]["restarts"] == 1


@pytest.mark.slow
def test_after_a_teardown_nothing_comes_back_and_nothing_is_left(box: Box) -> None:
    relaunch(box, "one")
    box.submit(box.agent.python(PIN, launch=box.launch("any")), None, "", order_id=f"order-{box.service}-teardown", kind="teardown")
    assert box.wait_end()["status"]["state"] == "DONE"
    assert show(box)["unit"] is None
    container = box.agent.container
    assert box.service not in container.run("ls", "-R", "/etc/systemd/system", "/run/systemd/system").stdout
    container.stop()
    container.boot()
    time.sleep(3.0)
    assert box.look()["servers"] == []


@pytest.mark.slow
def test_one_command_takes_it_away_and_another_writes_it_again(box: Box) -> None:
    relaunch(box, "one")
    launch_id = f"{box.service}-one"
    crash(box)
    wait_back(box, launch_id)
    report = box.agent.python(TURN, launch=box.launch("any"), root=STATE, action="off")
    assert (report["unit"], report["changed"]) == (None, True)
    assert serving(box) == [launch_id], "the server goes on"
    report = box.agent.python(TURN, launch=box.launch("any"), root=STATE, action="on")
    assert (report["unit"]["launch_id"], report["unit"]["armed"], report["verdicts"]) == (launch_id, True, [])
    crash(box)
    wait_for("its end", lambda: not serving(box), 10.0, 0.05)
    wait_back(box, launch_id)
    box.agent.python(TURN, launch=box.launch("any"), root=STATE, action="off")
    crash(box)
    wait_for("its end", lambda: not serving(box), 10.0, 0.05)
    time.sleep(7.0)  # longer than RestartSec
    assert box.agent.python(LOOK, launch=box.launch("any"))["servers"] == []


@pytest.mark.slow
def test_a_start_waits_for_the_gpus_nodes_and_a_server_that_can_not_load_is_given_up(box: Box) -> None:
    relaunch(box, "one")
    launch_id = f"{box.service}-one"
    again = """
from orchestrator.agent import boot_unit
boot_unit.install(folder(), folder().read_launch(given["id"]), ["/dev/nvidia-test0"], boot_unit.waiter_command(folder(), given["id"]))
"""
    box.agent.python(again, launch=box.launch("any"), id=launch_id)
    crash(box)
    wait_for("its end", lambda: not serving(box), 10.0, 0.05)
    time.sleep(2.0)
    assert box.look()["servers"] == []
    container = box.agent.container
    container.shell("mknod /dev/nvidia-test0 c 1 3")
    wait_back(box, launch_id)
    container.shell("rm /dev/nvidia-test0")
    container.shell(f"echo 'SGLANG_STANDIN_FAIL_AT=\"weights\"' >> {STATE}/{box.service}/launches/{launch_id}/environment")
    container.shell("mknod /dev/nvidia-test0 c 1 3")
    crash(box)

    def given_up() -> bool:
        return bool(show(box)["unit"]["problem"])

    wait_for("systemd to give up", given_up, 90.0, 1.0)
    container.shell("rm /dev/nvidia-test0")
    assert show(box)["unit"]["restarts"] == 5
    assert "given it up after 5 restarts" in show(box)["unit"]["problem"]
    keeper = f"orchestrator-{box.service}:log.service"
    wait_for(
        "the keeper's end", lambda: container.run("systemctl", "is-active", keeper, check=False).stdout.strip() == "inactive", 15.0, 0.5
    )
    assert relaunch(box, "two")["status"]["state"] == "DONE"
    assert show(box)["unit"]["problem"] is None
    crash(box)
    wait_back(box, f"{box.service}-two")


POINTS = ["before the switch", "the switch", "the switch#2", "before the boot unit", "the boot unit", "journal: VERIFIED"]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_supervisor_killed_at_the_boot_unit_leaves_one_server_and_it_is_the_one_that_comes_back(box: Box, point: str) -> None:
    relaunch(box, "one")
    crash(box)
    wait_back(box, f"{box.service}-one")
    seen = relaunch(box, "two", point)
    assert seen["status"]["state"] == "DONE"
    assert box.resumed(f"order-{box.service}-two") == 1
    assert seen["servers"] == [[f"{box.service}-two", True, PORT]]
    unit = show(box)["unit"]
    assert (unit["launch_id"], unit["armed"], unit["restarts"]) == (f"{box.service}-two", True, 0)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before the boot unit is removed", "the boot unit is removed"])
def test_a_supervisor_killed_in_a_teardown_leaves_nothing_that_comes_back(box: Box, point: str) -> None:
    relaunch(box, "one")
    order_id = box.submit(
        box.agent.python(PIN, launch=box.launch("any")), None, point, order_id=f"order-{box.service}-teardown", kind="teardown"
    )
    assert box.wait_end()["status"]["state"] == "DONE"
    assert box.resumed(order_id) == 1
    assert show(box)["unit"] is None
    assert box.service not in box.agent.container.run("ls", "-R", "/etc/systemd/system", "/run/systemd/system").stdout


@pytest.mark.slow
@pytest.mark.parametrize(("point", "state"), [("the boot unit", "RESTORED"), ("journal: VERIFIED", "DONE")])
def test_a_restart_of_the_machine_while_an_order_is_open_and_the_unit_armed_starts_one_server(box: Box, point: str, state: str) -> None:
    relaunch(box, "one", **SLOW)
    order_id = f"order-{box.service}-two"
    two = box.launch("two", SGLANG_STANDIN_IGNORE_SIGTERM="1")
    container = box.agent.container
    stays_dead = f"/run/systemd/system/orchestrator-{box.service}-order-{order_id}.service.d"
    container.shell(f"mkdir -p {stays_dead}; printf '[Service]\\nRestart=no\\n' > {stays_dead}/zz.conf; systemctl daemon-reload")
    box.submit(box.agent.python(PIN, launch=box.launch("any")), two, point, order_id=order_id)
    wait_for("its death", lambda: box.look()["status"]["state"].startswith("INTERRUPTED"), 40.0, 0.3)
    unit = show(box)["unit"]
    assert (unit["launch_id"], unit["armed"]) == (f"{box.service}-two", True)

    container.stop()
    container.boot()

    seen = box.wait_end()
    assert seen["status"]["state"] == state
    assert seen["leftovers"] == []
    ((launch_id, listening, _),) = seen["servers"]
    assert listening
    shown = show(box)
    assert (shown["unit"]["launch_id"], shown["unit"]["armed"]) == (launch_id, True)
    runners = [entry["data"]["runner"] for entry in box.journal(order_id) if "runner" in entry["data"]]
    assert runners[-1] == shown["manager"]["name"], "what the journal tells is what serves"
    restarts = box.agent.text(f"{STATE}/{box.service}/launches/{box.service}-two/restarts").splitlines()
    assert len(restarts) <= 1, "at boot; and not again while it is cleared away"


@pytest.mark.slow
def test_a_supervisor_is_back_also_after_systemd_was_reloaded(box: Box) -> None:
    order_id = box.submit(None, box.launch("one", SGLANG_STANDIN_HANG_AT="weights"), "")
    wait_for("the load", lambda: box.look()["status"]["state"] == "LOADING", 30.0, 0.2)
    container = box.agent.container
    container.run("systemctl", "daemon-reload")
    container.shell(f"kill -KILL $(systemctl show --property MainPID --value orchestrator-{box.service}-order-{order_id}.service)")
    wait_for("its return", lambda: box.resumed(order_id) == 1, 10.0, 0.1)
