"""Which service on which host a command is about, and the connection to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from orchestrator.agent import next_steps, wire
from orchestrator.errors import AgentError, OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory, Service
    from orchestrator.flows.observer import Observer
    from orchestrator.remote.shared import SharedConnections

T = TypeVar("T")


class Agent(Protocol):
    """The agent in a place; see :class:`orchestrator.remote.agent_client.AgentClient`."""

    def call(self, verb: str, request: Any, timeout: float | None = None) -> Iterator[wire.Event]:
        """Yield the verb's events; the last one holds its result."""

    def ask(self, verb: str, request: Any, kind: type[T], timeout: float | None = None) -> T:
        """Return only the verb's result."""


def decoded(kind: type[T], event: wire.Event) -> T:
    """What an event holds.

    Raises:
        AgentError: it is not a `kind`.
    """
    try:
        return wire.from_json(kind, event.data)
    except wire.WireError as error:
        raise AgentError(f"the agent's {event.kind} event can't be understood: {error}") from error


def ask_with_progress(
    agent: Agent,
    verb: str,
    request: Any,
    kind: type[T],
    seconds: float,
    observer: Observer,
    on_file: Callable[[wire.Event], None] = lambda event: None,
) -> T:
    """A verb's result, with what it tells on the way: progress to the observer, pieces of files to `on_file`.

    Raises:
        AgentError: there is no result within `seconds`, or an event can't be understood.
    """
    for event in agent.call(verb, request, seconds):
        if event.kind == wire.EventKind.PROGRESS:
            observer.progress(decoded(wire.Progress, event))
        elif event.kind == wire.EventKind.FILE:
            on_file(event)
        elif event.kind == wire.EventKind.RESULT:
            return decoded(kind, event)
    raise AgentError(f"the agent ended its answer to {verb} without a result")


@dataclass(frozen=True)
class Target:
    """One service of an inventory on the host that it belongs to."""

    inventory: Inventory
    host: Host
    service: Service
    rank: int = 0
    """Which node of a service that goes over several, whose part `service` then is."""

    def parts(self) -> list[Target]:
        """The service on each of its nodes, in the order of their ranks; on one node that is itself."""
        whole = self.inventory.services[self.service.name] if self.service.nodes else self.service
        return [self._at(whole, rank) for rank in range(len(whole.nodes) + 1)] if whole.nodes else [self]

    def _at(self, whole: Service, rank: int) -> Target:
        part = whole.at_rank(rank)
        return Target(self.inventory, self.inventory.host(part.host), part, rank)

    @property
    def place(self) -> str:
        """Where the server runs, for the screen: ``gpu1`` or ``gpu1/101``."""
        return self.inventory.place_of(self.service).label

    @property
    def state_root(self) -> str:
        """The folder in that place which holds the services' state folders."""
        return self.inventory.place_of(self.service).state_root

    @property
    def expected_gpus(self) -> int | None:
        """How many GPUs the inventory says there are, None where it doesn't."""
        return self.inventory.place_of(self.service).gpus

    def command(self, verb: str, *more: str) -> str:
        """A command line about this target, for a next step."""
        return next_steps.command(verb, self.host.name, self.service.name, *more)

    def named(self, next_step: str | None) -> str | None:
        """A next step from the box, which doesn't know how it is called here: its commands name this target."""
        return None if next_step is None else next_steps.named(next_step, self.host.name, self.service.name)

    def advised(self, verdicts: Sequence[wire.Verdict]) -> list[wire.Verdict]:
        """Verdicts from the box with their next steps named likewise."""
        return [replace(verdict, next_step=self.named(verdict.next_step)) for verdict in verdicts]


Connect = Callable[[Target], AbstractContextManager[Agent]]


@contextmanager
def connect(target: Target, shared: SharedConnections | None = None) -> Iterator[Agent]:
    """Open the place of a target and give its agent. What is advised while it is open names this target.

    Args:
        shared: the connections of whoever asks many at once.

    Raises:
        UnreachableError: the place can't be reached, trusted or entered.
    """
    from orchestrator.remote.agent_client import AgentClient
    from orchestrator.remote.place import open_place

    try:
        with open_place(target.inventory, target.host, container=target.service.in_container, shared=shared) as place:
            yield AgentClient(place)
    except OrchestratorError as error:
        error.next_step = target.named(error.next_step)
        raise


def choose_target(inventory: Inventory, host: str | None, service: str | None) -> Target:
    """Find the service that is meant; what is not said is filled in when there is only one.

    Raises:
        UsageError: an unknown name, a service that lives on another host, or more than one that could be meant.
    """
    if host is None and service is None and len(inventory.hosts) > 1:
        evidence = [f"{item.name}: {', '.join(_services_on(inventory, item.name)) or 'no service'}" for item in inventory.hosts.values()]
        raise UsageError("which host? Say it with --host NAME", evidence=evidence, next_step="fab hosts")
    if host is None and service is None and inventory.hosts:
        host = next(iter(inventory.hosts))
    chosen = inventory.service(service, host)
    parts = Target(inventory, inventory.host(chosen.host), chosen).parts()
    return next((part for part in parts if part.host.name == host), parts[0])


def choose_subject(inventory: Inventory, host: str | None, service: str | None) -> tuple[Host, Target | None]:
    """Which host is meant, and which service on it; a host that has no service is looked at without one.

    Raises:
        UsageError: an unknown name, or more than one that could be meant.
    """
    names = list(inventory.hosts) if host is None else [host]
    if service is None and len(names) == 1:
        chosen = inventory.host(names[0])
        if not any(item.host == chosen.name for item in inventory.services.values()):
            return chosen, None
    target = choose_target(inventory, host, service)
    return target.host, target


def _services_on(inventory: Inventory, host: str) -> list[str]:
    return [name for name, service in inventory.services.items() if service.host == host]
