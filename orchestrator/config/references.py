"""Checks across files: every name that is referred to exists, and fits."""

from __future__ import annotations

from typing import Any

from orchestrator.config.declared import Declared, Entry, Model
from orchestrator.config.inventory import ALL_HOSTS, Inventory
from orchestrator.config.mistakes import KeyPath, did_you_mean, printable
from orchestrator.config.models import Backend, Host, Service
from orchestrator.config.routers import Router
from orchestrator.config.tuning import KNOB_KINDS, TuningProfile
from orchestrator.errors import UsageError


def check(hosts: Declared[Host], services: Declared[Service], backends: Declared[Backend], tuning: Declared[TuningProfile]) -> None:
    """Note what dangles in the documents that refer to it."""
    for name, host in hosts.entries.items():
        _check_host(name, host, hosts, services)
        _check_name("tuning profile", host, ("tuning",), tuning)
    for service in services.entries.values():
        _check_service(service, hosts, backends)
    for profile in tuning.entries.values():
        _check_knobs(profile)


def check_backend_combinations(inventory: Inventory, services: Declared[Service]) -> None:
    """Note services whose default ``backend:`` joins profiles that exclude each other."""
    for entry in services.entries.values():
        names = entry.text("backend")
        if names is None or any(name not in inventory.backends for name in _profiles(names)):
            continue
        try:
            inventory.backends_named(names)
        except UsageError as error:
            entry.report(("backend",), error.message)


def check_routers(routers: Declared[Router], hosts: Declared[Host], services: Declared[Service]) -> None:
    """Note replicas that are no services, or stand behind two routers, and places that do not exist."""
    behind: dict[str, str] = {}
    for name, router in routers.entries.items():
        _check_name("host", router, ("host",), hosts)
        host = hosts.entries.get(router.text("host") or "")
        if host is not None and "container" not in host.data and router.text("place") != "host":
            router.report(("place",), f"host {router.text('host')!r} has no container; write place: host")
        for index, service in _replicas(router):
            if services.lacks(service):
                message = f"there is no service {service!r}; {did_you_mean(service, list(services.entries))}"
                router.report(("replicas", index, "service"), message)
            if behind.setdefault(service, name) != name:
                router.report(("replicas", index, "service"), f"service {service!r} is behind router {behind[service]!r} already")


def _replicas(router: Entry[Router]) -> list[tuple[int, str]]:
    """The services that it names, each with its place in the list."""
    replicas = router.data.get("replicas")
    items = enumerate(replicas if isinstance(replicas, list) else ())
    named = [(index, item.get("service")) for index, item in items if isinstance(item, dict)]
    return [(index, service) for index, service in named if isinstance(service, str)]


def _check_host(name: str, host: Entry[Host], hosts: Declared[Host], services: Declared[Service]) -> None:
    if name == ALL_HOSTS:
        host.report((), f"{ALL_HOSTS} means every host where hosts are named: give it another name")
    for path in (("jump",), ("container", "jump")):
        _check_name("host", host, path, hosts)
    if _comes_back(name, hosts):
        host.report(("jump",), f"jumps lead back to {name}")
    _check_name("service", host, ("service",), services)
    default = services.entries.get(host.text("service") or "")
    runs_on = None if default is None else default.text("host")
    if runs_on is not None and runs_on != name:
        host.report(("service",), f"that service is on host {runs_on!r}")


def _comes_back(name: str, hosts: Declared[Host]) -> bool:
    seen: set[str] = set()
    current: str | None = name
    while current is not None and current in hosts.entries and current not in seen:
        seen.add(current)
        current = hosts.entries[current].text("jump")
    return current == name


def _check_service(service: Entry[Service], hosts: Declared[Host], backends: Declared[Backend]) -> None:
    _check_name("host", service, ("host",), hosts)
    host = hosts.entries.get(service.text("host") or "")
    in_container = service.text("place") == "container" or "place" not in service.data
    if host is not None and in_container and "container" not in host.data:
        service.report(("place",), f"host {service.text('host')!r} has no container; write place: host")
    nodes = service.data.get("nodes")
    for index in range(len(nodes) if isinstance(nodes, list) else 0):
        _check_name("host", service, ("nodes", index, "host"), hosts)
        other = hosts.entries.get(service.text("nodes", index, "host") or "")
        inside = service.text("nodes", index, "place") in (None, "container")
        if other is not None and inside and "container" not in other.data:
            service.report(("nodes", index), "that host has no container; write place: host")
    for name in _profiles(service.text("backend") or ""):
        if name and backends.lacks(name):
            service.report(("backend",), f"there is no backend profile {name!r}; {did_you_mean(name, list(backends.entries))}")


def _check_knobs(profile: Entry[TuningProfile]) -> None:
    """Note knobs that the profile has twice, whatever else is wrong with it."""
    knobs = profile.data.get("knobs")
    seen: dict[tuple[str, str, str], int] = {}
    for index, knob in enumerate(knobs if isinstance(knobs, list) else ()):
        key = _identity(knob)
        if key is not None and seen.setdefault(key, index) != index:
            line = profile.document.line(("knobs", seen[key]))
            profile.report(("knobs", index), f"{printable(key[1] or key[0])} is given twice; the first is on line {line}")


def _identity(knob: Any) -> tuple[str, str, str] | None:
    """What tells a knob from others; None where that has mistakes."""
    if not isinstance(knob, dict):
        return None
    kind, name, place = knob.get("knob"), knob.get("name", ""), knob.get("place", "host")
    known = KNOB_KINDS.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(name, str) or not isinstance(place, str) or (known.name is None) != (not name):
        return None
    return str(kind), name, place


def _check_name(
    kind: str, entry: Entry[Model], path: KeyPath, declared: Declared[Host] | Declared[Service] | Declared[TuningProfile]
) -> None:
    name = entry.text(*path)
    if name is not None and declared.lacks(name):
        entry.report(path, f"there is no {kind} {name!r}; {did_you_mean(name, list(declared.entries))}")


def _profiles(names: str) -> list[str]:
    return [name.strip() for name in names.split("+")]
