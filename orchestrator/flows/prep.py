"""Bringing hosts to their tuning profiles: each place is asked once, a host and its container at the same time, many hosts side by side."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from orchestrator.agent.wire import EventKind, Progress
from orchestrator.agent.wire_host import (
    FactName,
    KnobOutcome,
    KnobSetting,
    PersistenceAction,
    PlaceKind,
    TuneAction,
    TuneReport,
    TuneRequest,
)
from orchestrator.errors import (
    AgentError,
    ConnectError,
    ConnectionLostError,
    HostKeyError,
    InterruptedByOperatorError,
    KernelError,
    OrchestratorError,
    PythonError,
    RightsError,
    UnreachableError,
)
from orchestrator.flows.findings import same_boot
from orchestrator.flows.guest import Guest
from orchestrator.flows.prep_outcome import HostPrep, PlaceTuning, PrepOptions
from orchestrator.flows.side_by_side import Endings, all_of, default_bound, unforeseen
from orchestrator.flows.target import Agent, decoded
from orchestrator.remote.beside import Beside
from orchestrator.results.runs import operator_name

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory, TuningProfile
    from orchestrator.config.models import PlaceKind as KindName
    from orchestrator.remote.shared import SharedConnections

__all__ = ["HostPrep", "PlaceTuning", "PrepOptions", "prep", "prep_all"]

TUNE_SECONDS = 120.0
"""Bounds one place's whole answer. Every command that the agent runs there has a shorter bound of its own."""

Open = Callable[["Inventory", "Host", str], AbstractContextManager[Agent]]
"""Opens a host's place of a :class:`PlaceKind` and gives its agent."""


@contextmanager
def open_agent(inventory: Inventory, host: Host, kind: str, shared: SharedConnections | None = None) -> Iterator[Agent]:
    """Connect to a place and give its agent.

    Args:
        shared: the connections of whoever asks many at once.

    Raises:
        UnreachableError: the place can't be reached, trusted or entered.
    """
    from orchestrator.remote.agent_client import AgentClient
    from orchestrator.remote.place import open_place

    with open_place(inventory, host, container=kind == PlaceKind.CONTAINER, shared=shared) as place:
        yield AgentClient(place)


def share_connections(inventory: Inventory) -> SharedConnections:
    """Connections for many places of `inventory`; whoever asked has to close them."""
    from orchestrator.remote.place import share_connections

    return share_connections(inventory)


def prep(
    inventory: Inventory,
    host: Host,
    profile: TuningProfile | None,
    options: PrepOptions,
    open: Open = open_agent,  # noqa: A002
    permit: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda text: None,
) -> HostPrep:
    """Bring one host to `profile`, or back; nothing that can be foreseen is raised. `permit` is called before each request is sent,
    `note` hears for whom is waited.

    The container is asked where the profile has knobs in it, where something is reverted, and for the host's knobs where the host
    can't be asked.
    """
    begun = time.monotonic()
    work = _HostWork(inventory, host, profile, options, open, permit, note)
    parts = work.ask_places()
    return HostPrep(
        host=host.name,
        profile=_name(profile),
        reports=parts,
        error=parts[0].error,
        warnings=[*work.warnings, *_oddities(host, parts)],
        options=options,
        seconds=time.monotonic() - begun,
    )


class _HostWork:
    """Which places of one host are asked for what."""

    def __init__(
        self,
        inventory: Inventory,
        host: Host,
        profile: TuningProfile | None,
        options: PrepOptions,
        open: Open,  # noqa: A002
        permit: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.warnings: list[str] = []
        self._inventory = inventory
        self._host = host
        self._profile = profile
        self._options = options
        self._open = open
        self._permit = permit
        self._note = note
        self._told: set[str] = set()
        self._guest: Guest | None = None
        """The container, whose services are not to be changed while the host's knobs are."""

    def ask_places(self) -> list[PlaceTuning]:
        """The host's answer first, then its container's where it was asked."""
        settings = self._settings("host")
        inside = self._settings("container")
        if inside and self._host.container is None:
            self.warnings.append(f"{self._profile_name} has {_knobs(inside)} for a container, and {self._host.name} has none: left out")
            inside = []
        reverting = self._options.action == TuneAction.REVERT and self._host.container is not None
        sets = reverting or any(setting.value is not None for setting in settings)
        if self._options.write and sets and self._host.container is not None:
            self._guest = Guest(self._inventory, self._host, self._open)
        container = Beside(lambda: self._ask(PlaceKind.CONTAINER, inside)) if inside or reverting else None
        parts = [self._ask(PlaceKind.HOST, settings)]
        if container is not None:
            parts.append(container.result())
        if reverting and isinstance(parts[1].error, UnreachableError):
            self.warnings.append(f"whether originals are kept in {parts[1].label} is not known: {parts.pop(1).error}")
        if settings and self._may_stand_in(parts[0].error):
            parts.append(self._read_in_container(settings))
        if inside and self._options.persistence == PersistenceAction.INSTALL:
            kept = [setting for setting in inside if setting.persist]
            if kept:
                self.warnings.append(f"{_knobs(kept)} of {self._host.name}'s container: after each start of it, run fab prep again")
        return parts

    @property
    def _profile_name(self) -> str:
        return _name(self._profile)

    def _settings(self, kind: KindName) -> list[KnobSetting]:
        return self._profile.settings(kind) if self._profile is not None and self._options.about_knobs else []

    def _ask(self, kind: str, settings: Sequence[KnobSetting], *, write: bool | None = None) -> PlaceTuning:
        place = self._host.place(container=kind == PlaceKind.CONTAINER)
        request = TuneRequest(
            profile=self._profile_name,
            settings=list(settings),
            action=self._options.action,
            write=self._options.write if write is None else write,
            persistence=self._options.persistence if kind == PlaceKind.HOST else PersistenceAction.KEEP,
            state_root=place.state_root,
            place=kind,
            operator=operator_name(),
            reason=self._options.reason,
            wait=self._options.wait,
        )
        try:
            with self._open(self._inventory, self._host, kind) as agent:
                if kind == PlaceKind.HOST and self._guest is not None:
                    self.warnings += self._guest.wait_until_free(self._options.wait, self._tell)
                self._permit()
                report = self._tune(agent, request)
        except ConnectionLostError as error:
            error.next_step = _check_command(self._host, self._profile)
            return PlaceTuning(kind, place.label, error=error)
        except OrchestratorError as error:
            return PlaceTuning(kind, place.label, error=error)
        except BaseException as error:  # noqa: BLE001 - one place's fault is its own answer: the others are not lost for it
            return PlaceTuning(kind, place.label, error=unforeseen(place.label, error))
        return PlaceTuning(kind, place.label, report)

    def _tune(self, agent: Agent, request: TuneRequest) -> TuneReport:
        verb = "persist" if request.persistence == PersistenceAction.INSTALL else "tune"
        if not request.wait:
            return agent.ask(verb, request, TuneReport, TUNE_SECONDS)
        for event in agent.call(verb, request, TUNE_SECONDS + request.wait):
            if event.kind == EventKind.PROGRESS:
                self._tell(decoded(Progress, event).detail)
            elif event.kind == EventKind.RESULT:
                return decoded(TuneReport, event)
        raise AgentError("the agent ended its answer to tune without a result")

    def _tell(self, whom: str) -> None:
        """Each time that somebody else is waited for, once."""
        if whom not in self._told:
            self._told.add(whom)
            self._note(f"{self._host.name} waits for up to {self._options.wait:g} s: {whom}")

    def _may_stand_in(self, error: OrchestratorError | None) -> bool:
        """Whether the container may be reached although the host could not be asked."""
        container = self._host.container
        if container is None:
            return False
        if container.reached_by == "ssh":
            return isinstance(error, (ConnectError, HostKeyError, RightsError, PythonError, KernelError))
        return isinstance(error, (PythonError, RightsError))

    def _read_in_container(self, settings: Sequence[KnobSetting]) -> PlaceTuning:
        """The host's knobs as its container shows them: nothing is written through it."""
        part = self._ask(PlaceKind.CONTAINER, settings, write=False)
        if part.report is None:
            return dataclasses.replace(part, stands_in=True)
        results = [
            dataclasses.replace(result, outcome=KnobOutcome.NOT_SETTABLE) if result.outcome == KnobOutcome.WOULD_CHANGE else result
            for result in part.report.results
        ]
        return dataclasses.replace(part, report=dataclasses.replace(part.report, results=results), stands_in=True)


def _name(profile: TuningProfile | None) -> str:
    return profile.name if profile is not None else ""


def _check_command(host: Host, profile: TuningProfile | None) -> str:
    """What tells how a host stands to the profile that was meant."""
    named = f" --profile {profile.name}" if profile is not None and profile.name != host.tuning else ""
    return f"fab prep --check{named} --host {host.name}"


def _knobs(settings: Sequence[KnobSetting]) -> str:
    return f"{len(settings)} knob{'' if len(settings) == 1 else 's'}"


def _oddities(host: Host, parts: Sequence[PlaceTuning]) -> list[str]:
    """What host and container say of themselves that does not fit what the inventory says of them."""
    by_kind = {part.kind: part for part in parts}
    outside, inside = by_kind.get(PlaceKind.HOST), by_kind.get(PlaceKind.CONTAINER)
    found = []
    kind = outside.fact(FactName.CONTAINER) if outside is not None else None
    if kind:
        found.append(f"{host.name} is itself a container ({kind}): its knobs are set on the machine below it, by whoever is root there")
    if outside is None or inside is None:
        return found

    if same_boot(outside.fact(FactName.BOOTED), inside.fact(FactName.BOOTED)) is False:
        found.append(
            f"{inside.label} does not run on {host.name}: their kernels were booted at different times; check address: in hosts.yml"
        )
    return found


def profiles_of(inventory: Inventory, hosts: Sequence[Host], name: str | None, options: PrepOptions) -> list[TuningProfile | None]:
    """Each host's profile, before any is touched. None where none is declared and none is needed: nothing is compared.

    Raises:
        UsageError: a host has no profile and none was named, or there is no such profile.
    """
    if options.about_knobs or name is not None:
        return [inventory.tuning_of(host, name) for host in hosts]
    return [inventory.tuning_of(host, None) if host.tuning is not None else None for host in hosts]


def prep_all(
    inventory: Inventory,
    hosts: Sequence[Host],
    profile_name: str | None,
    options: PrepOptions,
    told: Callable[[HostPrep], None],
    bound: int | None = None,
    note: Callable[[str], None] = lambda text: None,
    open: Open | None = None,  # noqa: A002
) -> list[HostPrep]:
    """Prepare `hosts`, and return what became of each in the order asked; `told` hears it as it comes.

    At most `bound` at a time; None: :func:`side_by_side.default_bound`.

    `note` hears in whatever thread for whom a host waits. `open` None: by connections that they share.

    Ctrl-C ends the wait at once: hosts without an answer have an InterruptedByOperatorError that says whether something goes on there.

    Raises:
        UsageError: as :func:`profiles_of`; nothing was touched.
    """
    profiles = profiles_of(inventory, hosts, profile_name, options)
    endings = Endings[HostPrep](
        failed=lambda index, error: HostPrep(
            hosts[index].name, _name(profiles[index]), error=unforeseen(hosts[index].name, error), options=options
        ),
        interrupted=lambda index, asked: _interrupted(hosts[index], profiles[index], options, asked=asked),
    )

    shared = share_connections(inventory) if open is None else None
    way = open or functools.partial(open_agent, shared=shared)

    def work(index: int, permit: Callable[[], None]) -> HostPrep:
        return prep(inventory, hosts[index], profiles[index], options, way, permit, note)

    done = all_of(len(hosts), work, endings, lambda _, outcome: told(outcome), bound or default_bound())
    if shared is not None and not any(isinstance(outcome.error, InterruptedByOperatorError) for outcome in done):
        shared.close()  # after Ctrl-C whoever is still connected ends with this process
    return done


def _interrupted(host: Host, profile: TuningProfile | None, options: PrepOptions, *, asked: bool) -> HostPrep:
    goes_on = "interrupted here; what was begun goes on there to its end" if options.write else "interrupted before it answered"
    text = goes_on if asked else "interrupted before it was asked; nothing was touched"
    error = InterruptedByOperatorError(f"{host.name}: {text}", next_step=_check_command(host, profile))
    return HostPrep(host.name, _name(profile), error=error, options=options)
