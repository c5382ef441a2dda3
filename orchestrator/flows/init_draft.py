"""What the steps of ``fab init`` hand on to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.agent.private_files import DEFAULT_ROOT
from orchestrator.agent.wire import ManagerKind
from orchestrator.agent.wire_discovery import DiscoverReport, FoundServer
from orchestrator.config.inventory import Inventory
from orchestrator.config.inventory_writer import HostEntry
from orchestrator.flows.init_files import File
from orchestrator.flows.init_found import Seen
from orchestrator.flows.observer import Observer
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.target import Connect, Target, connect

if TYPE_CHECKING:
    from orchestrator.config import Host
    from orchestrator.flows.trust import Offer


@dataclass(frozen=True)
class Answers:
    """What was said on the command line; None is found out, or asked. `container` may be :data:`ITSELF`."""

    address: str
    name: str | None = None
    identity_files: Sequence[str] = ()
    fingerprints: Sequence[str] = ()
    """Of host keys, compared elsewhere."""
    become: str | None = None
    container: str | None = None
    port: int | None = None
    service: str | None = None
    python: str | None = None
    model: str | None = None
    tuning: str | None = None
    state_root: str = DEFAULT_ROOT


class Asker(Protocol):
    """Whoever can be asked. Where nobody can, a default is taken, and a question without one is an error that names its flag."""

    def text(self, flag: str, question: str, default: str | None = None, *, optional: bool = False) -> str | None:
        """A word; None where it is `optional` and none was given.

        Raises:
            UsageError: nobody can be asked.
        """

    def choose(self, flag: str, question: str, options: Sequence[tuple[str, str]]) -> str:
        """One of several values, each with what it is. Raises as :meth:`text`."""


@dataclass(frozen=True)
class Draft:
    """What would be written, and what was found.

    Attributes:
        inventory: the inventory as it would be.
        target: the service; None where none would be in it.
        paste: the entry for hosts.yml, where that can't be written without touching somebody's lines.
        unfinished: a service file that is no valid one yet, and so is not written.
        offers: the host keys, as they were accepted.
        server: what runs, so that a relaunch can be planned; None where nothing does.
    """

    directory: Path
    files: list[File]
    inventory: Inventory
    host: Host
    target: Target | None
    seen: list[Seen]
    server: FoundServer | None
    offers: list[Offer] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    paste: str = ""
    unfinished: str = ""

    @property
    def adoptable(self) -> bool:
        """Whether the server is one that somebody started by hand, which only a record on the box can bring back."""
        info = self.server.info if self.server is not None else None
        return info is not None and info.launch_id is None and info.manager.kind != ManagerKind.SYSTEMD_UNIT


@dataclass(frozen=True)
class Provisional(Inventory):
    """An inventory that is not written yet: new keys are pinned beside it."""

    staged: Path = Path()

    @property
    def known_hosts(self) -> Path:
        return self.staged


@dataclass(frozen=True)
class Surroundings:
    """What the steps of a draft share."""

    directory: Path
    existing: Inventory
    """What is there; without anything in it where there is none yet."""
    observer: Observer
    asker: Asker
    open: Open = open_agent
    connect: Connect = connect


@dataclass(frozen=True)
class Machine:
    """The machine behind the address, and the place on it that was chosen.

    `host` is its entry as a model, with the container that was chosen; `entries` are what hosts.yml would get, jump hosts first.
    """

    host: Host
    report: DiscoverReport
    seen: list[Seen]
    place: Seen
    entries: list[HostEntry]
    known: bool
    offers: list[Offer]
    remarks: list[str]
