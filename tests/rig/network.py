"""A bridge with a subnet of its own for the rig's containers, and free ports on loopback."""

from __future__ import annotations

import ipaddress
import itertools
import json
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.rig.commands import run_command
from tests.rig.workspace import Workspace


@dataclass(frozen=True)
class Bridge:
    """A Linux bridge that nothing else uses. The machine has the subnet's first address."""

    name: str
    subnet: ipaddress.IPv4Network
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(2), compare=False, repr=False)

    @classmethod
    def add(cls, workspace: Workspace) -> Bridge:
        """Add a bridge with a subnet that no interface or route of this machine knows."""
        bridge = cls(f"orc{workspace.token}", _free_subnet())
        workspace.will_add_bridge(bridge.name)
        run_command(["ip", "link", "add", bridge.name, "type", "bridge"])
        run_command(["ip", "address", "add", f"{bridge.address(1)}/24", "dev", bridge.name])
        run_command(["ip", "link", "set", bridge.name, "up"])
        return bridge

    def address(self, number: int) -> str:
        """The `number`-th address of the subnet."""
        return str(self.subnet[number])

    def next_number(self) -> int:
        """The number of an address that nobody was given yet."""
        return next(self._numbers)


def hardware_address(address: str) -> str:
    """The Ethernet address of an IPv4 address: the same after a restart, since this machine remembers it for a while."""
    return ":".join(["02", "00", *(f"{octet:02x}" for octet in ipaddress.IPv4Address(address).packed)])


def _free_subnet() -> ipaddress.IPv4Network:
    routes = json.loads(run_command(["ip", "-4", "-json", "route", "show", "table", "all"]).stdout)
    taken = [ipaddress.ip_network(route["dst"], strict=False) for route in routes if route["dst"] != "default"]
    candidates = [ipaddress.IPv4Network(f"10.{second}.{third}.0/24") for second in range(200, 250) for third in range(256)]
    free = [network for network in candidates if not any(network.overlaps(other) for other in taken)]
    return random.choice(free)


def free_port() -> int:
    """A TCP port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
