"""Look-ups by name, places and jump hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.config import Inventory, load_inventory
from orchestrator.errors import ConfigError, UsageError

HOSTS = """\
hosts:
  bastion:
    address: 192.0.2.9
  middle:
    address: 192.0.2.8
    jump: bastion
  box:
    address: 192.0.2.1
    port: 2222
    user: operator
    become: sudo
    jump: middle
    identity_files: [keys/id_box, /etc/keys/id, ~/id]
    agent: false
    gpus: 8
    service: second
    tuning: quick
    container:
      reached_by: ssh
      id: 101
      name: sglang
      address: 10.0.0.101
      jump: box
      python: /usr/bin/python3.11
      state_root: /srv/state
  plain:
    address: plain.example.net
    container:
      reached_by: pct
      id: 102
      name: ignored
"""
SERVICE = "python: /opt/sglang/bin/python\nmodel: /models/m\n"


@pytest.fixture
def inventory(write_inventory: Callable[[Mapping[str, str | None]], Path], monkeypatch: pytest.MonkeyPatch) -> Inventory:
    monkeypatch.setenv("HOME", "/home/someone")
    return load_inventory(
        write_inventory(
            {
                "hosts.yml": HOSTS,
                "services/model.yml": f"name: model\nhost: box\n{SERVICE}",
                "services/second.yml": f"name: second\nhost: box\nplace: host\n{SERVICE}",
                "services/plain.yml": f"name: plain\nhost: plain\n{SERVICE}",
                "tuning/quick.yml": "name: quick\nsummary: s\nknobs: [{knob: cpu_governor}]\n",
                "tuning/quiet.yml": "name: quiet\nsummary: s\nknobs: [{knob: gpu_clocks}]\n",
                "backends/slow.yml": 'name: slow\nkind: backend\nsummary: s\nvariants: [{sglang: ">=0.5.6"}]\n',
                "backends/more.yml": 'name: more\nkind: overlay\nsummary: s\nvariants: [{sglang: ">=0.5.6"}]\n',
            }
        )
    )


def test_place_of_a_container_with_its_own_login(inventory: Inventory) -> None:
    place = inventory.place_of(inventory.service("model"))
    assert (place.label, place.reached_by, place.container) == ("box/sglang", "ssh", "sglang")
    assert (place.address, place.port, place.user, place.become, place.agent) == ("10.0.0.101", 22, "root", "none", True)
    assert (place.python, place.state_root, place.gpus) == ("/usr/bin/python3.11", "/srv/state", 8)


def test_place_of_a_container_entered_from_the_host(inventory: Inventory) -> None:
    place = inventory.host("plain").place(container=True)
    assert (place.label, place.reached_by, place.container) == ("plain/102", "pct", "102")
    assert (place.address, place.user, place.python) == ("plain.example.net", "root", "python3")


def test_place_of_the_host_itself(inventory: Inventory) -> None:
    place = inventory.place_of(inventory.service("second"))
    assert (place.label, place.reached_by, place.container) == ("box", "ssh", None)
    assert (place.port, place.user, place.become, place.agent) == (2222, "operator", "sudo", False)
    assert place.identity_files == (inventory.directory / "keys/id_box", Path("/etc/keys/id"), Path("/home/someone/id"))


def test_a_host_without_a_container_has_no_place_in_one(inventory: Inventory) -> None:
    with pytest.raises(ValueError, match="host bastion has no container"):
        inventory.host("bastion").place(container=True)


def test_jumps_in_the_order_in_which_they_are_reached(inventory: Inventory) -> None:
    place = inventory.host("box").place(container=True)
    assert [hop.label for hop in inventory.jumps(place)] == ["bastion", "middle", "box"]
    assert inventory.jumps(inventory.host("bastion").place(container=False)) == []


@pytest.mark.parametrize(
    ("name", "host", "found"),
    [("model", None, "model"), ("model", "box", "model"), (None, "box", "second"), (None, "plain", "plain")],
)
def test_service(inventory: Inventory, name: str | None, host: str | None, found: str) -> None:
    assert inventory.service(name, host).name == found


@pytest.mark.parametrize(
    ("name", "host", "message", "evidence"),
    [
        ("modle", None, "there is no service 'modle'; did you mean model?", "services: model, plain, second"),
        ("model", "plain", "service model is on host box, not on plain", ""),
        (None, None, "there are 3 services in the inventory: name one", "services: model, plain, second"),
        (None, "bastion", "there is no service on host bastion", ""),
        (None, "bix", "there is no host 'bix'; did you mean box?", "hosts: bastion, middle, box, plain"),
    ],
)
def test_no_such_service(inventory: Inventory, name: str | None, host: str | None, message: str, evidence: str) -> None:
    with pytest.raises(UsageError) as caught:
        inventory.service(name, host)
    assert (caught.value.message, "".join(caught.value.evidence[:1])) == (message, evidence)
    assert caught.value.evidence[1:] == ([f"inventory: {inventory.label}"] if "there is no" in message and evidence else [])


def test_backends_named(inventory: Inventory) -> None:
    assert [item.name for item in inventory.backends_named("more + fast")] == ["fast", "more"]
    assert [item.name for item in inventory.backends_named("more")] == ["more"]
    assert inventory.backend("fast").kind == "backend"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("fsat", "there is no backend profile 'fsat'; did you mean fast?"),
        ("fast+", "there is no backend profile ''"),
        ("more+more", "backend profile more is named twice in 'more+more'"),
        ("fast+slow", "fast, slow exclude each other: one backend, and any overlays"),
    ],
)
def test_no_such_backends(inventory: Inventory, names: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        inventory.backends_named(names)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("box", [("box", False)]),
        ("plain, box", [("plain", False), ("box", False)]),
        ("box,box", [("box", False)]),
        ("all", [("bastion", False), ("middle", False), ("box", False), ("plain", False)]),
        ("box/sglang", [("box", True)]),
        ("box/101", [("box", True)]),
        ("box/10.0.0.101", [("box", True)]),
        ("plain/102,box", [("plain", True), ("box", False)]),
        ("box/sglang,box", [("box", False)]),
        ("box,box/sglang", [("box", False)]),
        ("box/101,box/sglang", [("box", True)]),
        ("plain/102,all", [("plain", False), ("bastion", False), ("middle", False), ("box", False)]),
    ],
)
def test_hosts_named(inventory: Inventory, text: str, found: list[tuple[str, bool]]) -> None:
    assert [(named.host.name, named.by_container) for named in inventory.hosts_named(text)] == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bix", "there is no host 'bix'; did you mean box?"),
        ("box,", "--host 'box,' has nothing where a name should be"),
        ("", "--host '' has nothing where a name should be"),
        ("bix/101", "there is no host 'bix'; did you mean box?"),
        ("box/102", "there is no container 'box/102'; did you mean box/sglang?"),
        ("box/", "there is no container 'box/'; did you mean box/sglang?"),
        ("plain/", "there is no container 'plain/'; did you mean plain/102?"),
        ("bastion/101", "host bastion has no container, and 'bastion/101' names one"),
        ("/101", "there is no host ''"),
    ],
)
def test_no_such_hosts(inventory: Inventory, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        inventory.hosts_named(text)
    assert (caught.value.message, caught.value.next_step) == (message, "fab hosts")


def test_no_host_is_called_all(write_inventory: Callable[[Mapping[str, str | None]], Path]) -> None:
    directory = write_inventory(
        {"hosts.yml": HOSTS.replace("  bastion:\n", "  all:\n").replace("jump: bastion", "jump: all"), "services/model.yml": None}
    )
    with pytest.raises(ConfigError) as caught:
        load_inventory(directory)
    assert f"{directory}/hosts.yml:2: hosts.all: all means every host where hosts are named: give it another name" in caught.value.evidence


@pytest.mark.parametrize(("host", "name", "found"), [("box", None, "quick"), ("box", "quiet", "quiet"), ("plain", "quick", "quick")])
def test_tuning_of(inventory: Inventory, host: str, name: str | None, found: str) -> None:
    assert inventory.tuning_of(inventory.host(host), name).name == found


@pytest.mark.parametrize(
    ("host", "name", "message", "next_step"),
    [
        ("box", "qick", "there is no tuning profile 'qick'; did you mean quick?", "fab tunings"),
        ("plain", None, "host plain has no tuning profile, and none was named", "name one: --profile NAME; or write tuning: NAME ..."),
    ],
)
def test_no_tuning(inventory: Inventory, host: str, name: str | None, message: str, next_step: str) -> None:
    with pytest.raises(UsageError) as caught:
        inventory.tuning_of(inventory.host(host), name)
    assert caught.value.message == message
    assert (caught.value.next_step or "").startswith(next_step.removesuffix("..."))
    assert caught.value.evidence == ["tuning profiles: quick, quiet", f"inventory: {inventory.label}"]


def test_a_container_with_a_login_of_its_own_needs_no_name(write_inventory: Callable[[Mapping[str, str | None]], Path]) -> None:
    hosts = "hosts:\n  box:\n    address: 192.0.2.1\n    container:\n      reached_by: ssh\n      address: 10.0.0.5\n"
    inventory = load_inventory(write_inventory({"hosts.yml": hosts}))
    place = inventory.host("box").place(container=True)
    assert (place.label, place.address) == ("box/10.0.0.5", "10.0.0.5")
    assert inventory.hosts_named("box/10.0.0.5")[0].by_container
    for text in ("box/", "box/None"):
        with pytest.raises(UsageError, match="there is no container"):
            inventory.hosts_named(text)
