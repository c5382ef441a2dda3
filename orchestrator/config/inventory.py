"""A loaded inventory: look-ups by name that tell what exists when a name does not."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orchestrator.config.models import Backend, Host, Place, Service
from orchestrator.config.routers import Router
from orchestrator.config.tuning import TuningProfile
from orchestrator.errors import UsageError

Item = TypeVar("Item", Host, Service, Backend, TuningProfile, Router)


ALL_HOSTS = "all"

TAKES_SEVERAL = ("status", "doctor", "preflight", "boot", "lock.status", "prep", "hosts", "services", "history")
"""Verbs that take several hosts at once; a test holds the verbs to it."""


def one_at_a_time(text: str, evidence: Sequence[str] = ()) -> UsageError:
    """Several hosts were named for a verb that changes, or follows, one service."""
    return UsageError(
        f"one host at a time, and {text!r} names several",
        evidence=[f"these take several: {', '.join(TAKES_SEVERAL)}", *evidence],
        next_step="fab services   # each service with its host: name one",
    )


@dataclass(frozen=True)
class NamedHost:
    """A host as somebody named it; `by_container` where only its container was named (``gpu1/101``)."""

    host: Host
    by_container: bool = False


@dataclass(frozen=True)
class Inventory:
    """Everything under one inventory folder. The mappings keep the order of the files.

    Attributes:
        directory: the folder it was loaded from.
        known_hosts: the inventory's own known_hosts file; it may not exist.
        groups: group -> the names of its hosts.
        chosen_by: how it came to be this folder, for the screen; empty when that is not known.
    """

    directory: Path
    hosts: Mapping[str, Host] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    backends: Mapping[str, Backend] = field(default_factory=dict)
    tunings: Mapping[str, TuningProfile] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    chosen_by: str = ""
    routers: Mapping[str, Router] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The folder, short, and how it was chosen."""
        folder = os.path.relpath(self.directory)
        short = min(str(self.directory), folder, str(self.directory).replace(f"{Path.home()}/", "~/", 1), key=len)
        return f"{short} ({self.chosen_by})" if self.chosen_by else short

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    def host(self, name: str) -> Host:
        """The host of that name.

        Raises:
            UsageError: there is none, or several are named; the message names those that exist.
        """
        if name not in self.hosts and self.names_several(name):
            raise one_at_a_time(name, [f"hosts: {_listed(self.hosts)}"])
        return self._look_up("host", name, self.hosts, "fab hosts", self.groups)

    def names_several(self, text: str) -> bool:
        """Whether it is a list, a group, or ``all``, however many hosts that comes to."""
        return "," in text or text == ALL_HOSTS or text in self.groups

    def host_named(self, text: str) -> NamedHost:
        """The one host of ``gpu1``, or of its container's label ``gpu1/101``. Raises as :meth:`host` and :meth:`hosts_named`."""
        if "/" not in text or "," in text:
            return NamedHost(self.host(text))
        (named,) = self.hosts_named(text)
        return named

    def hosts_named(self, text: str) -> list[NamedHost]:
        """The hosts of ``gpu1,gpu2`` and of groups as given, or of ``all`` in the inventory's order; one named twice comes once.

        A container may be named as the screen labels it (``gpu1/101``): that is its host, and the answer says so.

        Raises:
            UsageError: there is no such host, or it has no such container.
        """
        found: dict[str, NamedHost] = {}
        for name in (part.strip() for part in text.split(",")):
            if not name:
                raise UsageError(f"--host {text!r} has nothing where a name should be", next_step="fab hosts")
            for named in self._named(name):
                known = found.get(named.host.name, named)
                found[named.host.name] = NamedHost(named.host, known.by_container and named.by_container)
        return list(found.values())

    def _named(self, name: str) -> list[NamedHost]:
        if name == ALL_HOSTS:
            return [NamedHost(host) for host in self.hosts.values()]
        if name in self.groups:
            return [NamedHost(self.hosts[host]) for host in self.groups[name]]
        host_name, slash, container = name.partition("/")
        host = self.host(host_name)
        if not slash:
            return [NamedHost(host)]
        inside = host.container
        if inside is None:
            raise UsageError(f"host {host_name} has no container, and {name!r} names one", next_step="fab hosts")
        if container not in [str(item) for item in (inside.id, inside.name, inside.address) if item is not None]:
            label = host.place(container=True).label
            raise UsageError(f"there is no container {name!r}; did you mean {label}?", next_step="fab hosts")
        return [NamedHost(host, by_container=True)]

    def tuning(self, name: str) -> TuningProfile:
        """The tuning profile of that name.

        Raises:
            UsageError: there is none; the message names those that exist.
        """
        return self._look_up("tuning profile", name, self.tunings, "fab tunings")

    def tuning_of(self, host: Host, name: str | None = None) -> TuningProfile:
        """The tuning profile of that name; without a name, the host's own.

        Raises:
            UsageError: there is none of that name, or neither names one.
        """
        chosen = name if name is not None else host.tuning
        if chosen is not None:
            return self.tuning(chosen)
        evidence = [f"tuning profiles: {_listed(self.tunings)}", f"inventory: {self.label}"]
        next_step = f"name one: --profile NAME; or write tuning: NAME for {host.name} in {self.directory}/hosts.yml"
        raise UsageError(f"host {host.name} has no tuning profile, and none was named", evidence=evidence, next_step=next_step)

    def service(self, name: str | None = None, host: str | None = None) -> Service:
        """The service of that name; without a name, the host's default or only one (without a host, the only one of all).

        Raises:
            UsageError: there is none, there are several, or it does not run on `host`.
        """
        if host is not None:
            self.host(host)
        if name is not None:
            return self._service_on(self._look_up("service", name, self.services, "fab services"), host)
        candidates = [service for service in self.services.values() if host in (None, service.host)]
        if not candidates:
            candidates = [service for service in self.services.values() if any(node.host == host for node in service.nodes)]
        default = None if host is None else self.hosts[host].service
        if default is not None:
            return self.services[default]
        if len(candidates) == 1:
            return candidates[0]
        where = "in the inventory" if host is None else f"on host {host}"
        if not candidates:
            raise UsageError(f"there is no service {where}", next_step=f"write one: {self.directory}/services/NAME.yml")
        raise UsageError(
            f"there are {len(candidates)} services {where}: name one", evidence=[f"services: {_listed(s.name for s in candidates)}"]
        )

    def _service_on(self, service: Service, host: str | None) -> Service:
        if host is not None and host not in (service.host, *(node.host for node in service.nodes)):
            raise UsageError(f"service {service.name} is on host {service.host}, not on {host}")
        return service

    def place_of(self, service: Service) -> Place:
        """Where the service runs."""
        return self.hosts[service.host].place(container=service.in_container)

    def jumps(self, place: Place) -> list[Place]:
        """The hosts that a connection to `place` goes through, in the order in which they are reached."""
        chain: list[Place] = []
        name = place.jump
        while name is not None:
            hop = self.host(name).place(container=False)
            chain.insert(0, hop)
            name = hop.jump
        return chain

    def router(self, name: str) -> Router:
        """The router of that name.

        Raises:
            UsageError: there is none; the message names those that exist.
        """
        return self._look_up("router", name, self.routers, f"write one: {self.directory}/routers/NAME.yml")

    def router_of(self, service: str) -> Router | None:
        """The router that a service is behind, None where it is behind none."""
        behind = (router for router in self.routers.values() if service in [replica.service for replica in router.replicas])
        return next(behind, None)

    def backend(self, name: str) -> Backend:
        """The one profile of that name.

        Raises:
            UsageError: there is none; the message names those that exist.
        """
        return self._look_up("backend profile", name, self.backends, "fab backends")

    def _look_up(self, what: str, name: str, items: Mapping[str, Item], command: str, groups: Collection[str] = ()) -> Item:
        if name in items:
            return items[name]
        close = difflib.get_close_matches(name, [*items, *groups], n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        evidence = [f"{what}s: {_listed(items)}"]
        evidence += [f"groups: {_listed(groups)}"] if groups else []
        evidence.append(f"inventory: {self.label}")
        raise UsageError(f"there is no {what} {name!r}{hint}", evidence=evidence, next_step=command)

    def backends_named(self, names: str) -> list[Backend]:
        """The profiles of ``flashinfer_cutedsl+ep8``: the backend first, then the overlays as given.

        Raises:
            UsageError: a name does not exist or comes twice, or there is more than one of kind ``backend``.
        """
        profiles = [self.backend(name.strip()) for name in names.split("+")]
        twice = sorted({profile.name for profile in profiles if profiles.count(profile) > 1})
        if twice:
            raise UsageError(f"backend profile {twice[0]} is named twice in {names!r}")
        kernels = [profile for profile in profiles if profile.kind == "backend"]
        if len(kernels) > 1:
            raise UsageError(
                f"{_listed(profile.name for profile in kernels)} exclude each other: one backend, and any overlays",
                evidence=[f"overlays: {_listed(name for name, item in self.backends.items() if item.kind == 'overlay')}"],
            )
        return kernels + [profile for profile in profiles if profile.kind == "overlay"]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
