"""The one line that each kind of place is entered by, and the logins behind it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.config import Inventory, load_inventory
from orchestrator.remote.endpoint import Endpoint
from orchestrator.remote.place import PlaceDescription, command, describe, login_endpoints

ENDPOINT = Endpoint("gpu1", "192.0.2.1", "root")
ARGV = ["python3", "-c", "print('a b'); $HOME"]
QUOTED = "python3 -c " + shlex.quote(ARGV[2])


@pytest.mark.parametrize(
    ("reached_by", "become", "expected"),
    [
        ("ssh", "none", QUOTED),
        ("ssh", "sudo", "sudo -n -- " + QUOTED),
        ("pct", "none", "pct exec 101 --keep-env 0 -- " + QUOTED),
        ("pct", "sudo", "sudo -n -- pct exec 101 --keep-env 0 -- " + QUOTED),
        ("lxc-attach", "none", "lxc-attach --clear-env -n 101 -- " + QUOTED),
        ("incus", "sudo", "sudo -n -- incus exec 101 -T -- " + QUOTED),
    ],
)
def test_command(reached_by: str, become: str, expected: str) -> None:
    place = PlaceDescription("gpu1/101", ENDPOINT, reached_by, "101", become)

    assert command(place, ARGV) == expected


HOSTS = """\
hosts:
  bastion:
    address: 192.0.2.9
    user: hop
  gpu1:
    address: 192.0.2.1
    port: 2222
    jump: bastion
    become: sudo
    user: oncall
    identity_files: [/keys/gpu1]
    agent: false
    python: /usr/bin/python3.12
    container:
      reached_by: ssh
      name: sglang
      address: 192.0.2.2
      jump: gpu1
  gpu2:
    address: 192.0.2.3
    container: {reached_by: pct, id: 101}
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    for folder in ("services", "backends"):
        (tmp_path / folder).mkdir()
    return load_inventory(tmp_path)


def test_describe_follows_jump_hosts(inventory: Inventory) -> None:
    container = describe(inventory, inventory.host("gpu1").place(container=True))

    bastion = Endpoint("bastion", "192.0.2.9", "hop", use_agent=True)
    gpu1 = Endpoint("gpu1", "192.0.2.1", "oncall", 2222, (Path("/keys/gpu1"),), use_agent=False, jump=bastion)
    assert container == PlaceDescription("gpu1/sglang", Endpoint("gpu1", "192.0.2.2", "root", use_agent=True, jump=gpu1), "ssh", "sglang")
    assert (container.endpoint.label, container.endpoint.jump.label if container.endpoint.jump else "") == ("gpu1/sglang", "gpu1")
    assert [item.where for item in login_endpoints(inventory, inventory.host("gpu1"))] == ["192.0.2.9:22", "192.0.2.1:2222", "192.0.2.2:22"]


def test_describe_enters_a_container_by_the_hosts_login(inventory: Inventory) -> None:
    place = describe(inventory, inventory.host("gpu2").place(container=True))

    assert (place.reached_by, place.container, place.endpoint.where) == ("pct", "101", "192.0.2.3:22")
    assert len(login_endpoints(inventory, inventory.host("gpu2"))) == 1


@pytest.mark.parametrize(
    ("address", "port", "where", "name"),
    [
        ("gpu1", 22, "gpu1:22", "gpu1"),
        ("gpu1", 2222, "gpu1:2222", "[gpu1]:2222"),
        ("2001:db8::1", 22, "[2001:db8::1]:22", "2001:db8::1"),
    ],
)
def test_names_of_an_endpoint(address: str, port: int, where: str, name: str) -> None:
    endpoint = Endpoint("gpu1", address, "root", port)

    assert (endpoint.where, endpoint.known_hosts_name) == (where, name)
