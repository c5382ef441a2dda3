"""A server in somebody's enabled unit is replaced under a real systemd; after a restart of the machine it is that unit's again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lxc.in_container import PYTHON, STATE
from tests.lxc.test_boot_unit import PIN, TURN, show
from tests.lxc.test_supervisor_killed import ARGUMENTS, PORT, STANDIN, Box, box
from tests.rig.commands import wait_for

__all__ = ["box"]

pytestmark = pytest.mark.lxc

UNIT = "somebodys.service"
TEXT = f"""\
[Service]
ExecStart={PYTHON} -m sglang.launch_server {" ".join(ARGUMENTS)}
Environment=PYTHONPATH={STANDIN} SGLANG_STANDIN_TIME_SCALE=0.05
Restart=always
[Install]
WantedBy=multi-user.target
"""


def serving(box: Box) -> list[Any]:
    return [server for server in box.look()["servers"] if server[1]]


@pytest.mark.slow
def test_somebodys_enabled_unit_has_its_server_back_at_boot_and_none_of_ours_is_beside_it(box: Box) -> None:
    container = box.agent.container
    container.write(f"/etc/systemd/system/{UNIT}", TEXT)
    container.shell(f"systemctl daemon-reload; systemctl enable --now {UNIT}")
    try:
        wait_for("the unit's server", lambda: serving(box) == [[None, True, PORT]], 30.0, 0.3)
        order_id = box.submit(box.agent.python(PIN, launch=box.launch("any")), box.launch("new"), "")
        seen = box.wait_end()
        assert seen["status"]["state"] == "DONE"
        assert seen["servers"] == [[f"{box.service}-new", True, PORT]]
        told = [verdict for verdict in box.journal(order_id)[-1]["data"]["result"]["verdicts"] if verdict["check"] == "boot unit"]
        assert [verdict["next_step"] for verdict in told] == [f"systemctl disable {UNIT}, then fab boot --on"]
        assert show(box)["unit"] is None

        container.stop()
        container.boot()
        wait_for("the unit's server at boot", lambda: serving(box) == [[None, True, PORT]], 40.0, 0.3)
        assert show(box)["manager"] == {"kind": "systemd_unit", "name": UNIT, "detail": ""}

        box.submit(box.agent.python(PIN, launch=box.launch("any")), box.launch("two"), "", order_id=f"order-{box.service}-two")
        assert box.wait_end()["status"]["state"] == "DONE"
        container.run("systemctl", "disable", UNIT)
        report = box.agent.python(TURN, launch=box.launch("any"), root=STATE, action="on")
        assert (report["unit"]["launch_id"], report["unit"]["armed"], report["verdicts"]) == (f"{box.service}-two", True, [])
    finally:
        container.shell(f"systemctl disable --now {UNIT}; rm -f /etc/systemd/system/{UNIT}; systemctl daemon-reload", check=False)
