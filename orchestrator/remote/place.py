"""A place: somewhere a program can run, the host itself or the container on it, and the command that runs one there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.remote.endpoint import Deadlines, Endpoint

if TYPE_CHECKING:
    from pathlib import Path

    import paramiko

    from orchestrator.config.inventory import Inventory
    from orchestrator.config.models import Host
    from orchestrator.config.models import Place as InventoryPlace
    from orchestrator.remote.connection import StrictConnection
    from orchestrator.remote.shared import SharedConnections


@dataclass(frozen=True)
class PlaceDescription:
    """How a program is run in a place.

    Attributes:
        label: for the screen: ``gpu1``, or ``gpu1/101`` for its container.
        endpoint: the SSH login: the place's own with `reached_by` ``ssh``, else the host's.
        reached_by: ``ssh``, ``pct``, ``lxc-attach`` or ``incus``.
        container: what that tool is given; unused with ``ssh``.
        become: ``none`` or ``sudo`` (always ``sudo -n``); with a tool it is the tool that runs as root.
    """

    label: str
    endpoint: Endpoint
    reached_by: str = "ssh"
    container: str = ""
    become: str = "none"
    python: str = "python3"


def command(place: PlaceDescription, argv: Sequence[str]) -> str:
    """The one shell line that runs `argv` in the place, quoted once for the login shell.

    The container tools hand their arguments to execve(2), so nothing is parsed a second time. They get no terminal, and a
    clean environment: pct and lxc-attach would pass the host's on.
    """
    enter = {
        "ssh": [],
        "pct": ["pct", "exec", place.container, "--keep-env", "0", "--"],
        "lxc-attach": ["lxc-attach", "--clear-env", "-n", place.container, "--"],
        "incus": ["incus", "exec", place.container, "-T", "--"],
    }[place.reached_by]
    rise = ["sudo", "-n", "--"] if place.become == "sudo" else []
    return shlex.join([*rise, *enter, *argv])


def describe(inventory: Inventory, place: InventoryPlace) -> PlaceDescription:
    """The inventory's place with its jump hosts resolved."""
    jump: Endpoint | None = None
    for hop in inventory.jumps(place):
        jump = _endpoint(hop, jump)
    return PlaceDescription(
        label=place.label,
        endpoint=_endpoint(place, jump),
        reached_by=place.reached_by,
        container=place.container or "",
        become=place.become,
        python=place.python,
    )


def _endpoint(place: InventoryPlace, jump: Endpoint | None) -> Endpoint:
    return Endpoint(
        host=place.host,
        address=place.address,
        port=place.port,
        user=place.user,
        identity_files=place.identity_files,
        use_agent=place.agent,
        jump=jump,
        place=place.label if place.reached_by == "ssh" else "",
    )


def login_endpoints(inventory: Inventory, host: Host, *, container_only: bool = False) -> list[Endpoint]:
    """All logins that work on `host` goes through, jump hosts first: what ``fab trust`` shows and pins.

    With `container_only` those of its container alone; a container without an SSH server of its own is entered by the host's login.
    """
    places = [host.place(container=False)]
    if host.container is not None and host.container.reached_by == "ssh":
        places = [*([] if container_only else places), host.place(container=True)]
    chains: dict[Endpoint, None] = {}
    for place in places:
        chain: list[Endpoint] = []
        endpoint: Endpoint | None = describe(inventory, place).endpoint
        while endpoint is not None:
            chain.insert(0, endpoint)
            endpoint = endpoint.jump
        chains.update(dict.fromkeys(chain))
    return list(chains)


class Place:
    """A place with an open connection."""

    def __init__(self, description: PlaceDescription, connection: StrictConnection) -> None:
        self.description = description
        self.connection = connection

    @property
    def label(self) -> str:
        return self.description.label

    def start(self, argv: Sequence[str]) -> paramiko.Channel:
        """Run `argv` there without a pty and return the channel to it.

        Raises:
            ConnectError: the server opens no session.
            ConnectionLostError: the connection has ended.
        """
        return self.connection.start(command(self.description, argv))


@contextmanager
def open_place(
    inventory: Inventory,
    host: Host,
    *,
    container: bool = True,
    deadlines: Deadlines | None = None,
    shared: SharedConnections | None = None,
) -> Iterator[Place]:
    """Connect to the host's container (or to the host itself) and close the connection afterwards.

    Args:
        shared: the connections of whoever asks many places at once; they are used, and closed where nobody else needs them.

    Raises:
        UsageError: the host has no container.
        ConnectError: no connection.
        HostKeyError: the host's key, or a jump host's, is not to be trusted.
    """
    try:
        description = describe(inventory, host.place(container=container))
    except ValueError as error:
        raise UsageError(str(error), next_step="fab hosts") from error
    if shared is not None:
        with shared.opened(description.endpoint) as connection:
            yield Place(description, connection)
        return
    with connect(description, inventory, deadlines) as place:
        yield place


@contextmanager
def connect(description: PlaceDescription, inventory: Inventory, deadlines: Deadlines | None = None) -> Iterator[Place]:
    """Connect to a place that is described already. Raises as :func:`open_place`."""
    from orchestrator.remote.connection import StrictConnection

    connection = StrictConnection(description.endpoint, known_hosts_of(inventory), deadlines)
    try:
        connection.open()
        yield Place(description, connection)
    finally:
        connection.close()


def known_hosts_of(inventory: Inventory) -> tuple[Path, Path]:
    """The files that say which host keys are trusted: the inventory's, then the user's."""
    from orchestrator.remote.host_keys import user_known_hosts

    return inventory.known_hosts, user_known_hosts()


def share_connections(inventory: Inventory) -> SharedConnections:
    """Connections for many places of an inventory."""
    from orchestrator.remote.shared import SharedConnections

    return SharedConnections(known_hosts_of(inventory))
