"""A gate that nftables closes to other machines, in real containers: here this machine is the other one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.lxc.in_container import PYTHON, AgentInContainer
from tests.rig.commands import wait_for
from tests.rig.container import Container, Flavour
from tests.rig.network import Bridge
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

PORT = 15555
LISTEN = f"import socket, time; s = socket.create_server(('0.0.0.0', {PORT})); time.sleep(300)"
CLOSE = """
from orchestrator.agent import gate_firewall
out([gate_firewall.who_can_reach("0.0.0.0"), gate_firewall.close("0.0.0.0", given["port"])])
"""
SWEEP = "from orchestrator.agent import gate_firewall\ngate_firewall.sweep()\nout(None)"
OWN = f"import socket; [socket.create_connection((a, {PORT}), 1.0) for a in ('127.0.0.1', '{{address}}')]; print('reached')"


@pytest.fixture(params=list(Flavour), ids=lambda flavour: flavour.name.lower())
def place(request: pytest.FixtureRequest, workspace: Workspace, bridge: Bridge) -> Iterator[Container]:
    if request.param is Flavour.PRIVILEGED:
        yield request.getfixturevalue("container")
        return
    made = Container.start(workspace, bridge, flavour=request.param)
    yield made
    made.stop()


def reaches(address: str) -> bool:
    try:
        socket.create_connection((address, PORT), 1.0).close()
    except OSError:
        return False
    return True


def test_another_machine_does_not_reach_a_gate_that_was_closed_and_the_place_itself_does(place: Container) -> None:
    agent = AgentInContainer.install(place)
    place.run("systemd-run", "--quiet", "--unit=gate-listener", "--collect", PYTHON, "-c", LISTEN)
    try:
        wait_for("the listener", lambda: reaches(place.address), 10.0, 0.1)
        foreseen, closed = agent.python(CLOSE, port=PORT)
        assert (foreseen["outcome"], closed["outcome"]) == ("pass", "pass"), (foreseen, closed)
        assert not reaches(place.address)
        assert place.run(PYTHON, "-c", OWN.format(address=place.address)).stdout == "reached\n"
        agent.python(SWEEP)
        assert reaches(place.address), "its server has gone, as far as anybody can see"
        assert "orchestrator" not in place.run("nft", "list", "tables").stdout
    finally:
        place.run("systemctl", "stop", "gate-listener", check=False)
