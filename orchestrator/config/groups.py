"""Groups of hosts: names for several that are asked together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.declared import Declared
from orchestrator.config.inventory import ALL_HOSTS
from orchestrator.config.mistakes import did_you_mean
from orchestrator.config.models import Host
from orchestrator.config.yaml_reader import Document


def load_groups(document: Document, hosts: Declared[Host]) -> dict[str, tuple[str, ...]]:
    """Each group of hosts.yml with its hosts, as they are named first; notes in the document what is wrong with them.

    A group may hold those that stand above it, so none can hold itself.
    """
    found = document.data.get("groups") if isinstance(document.data, dict) else None
    data: dict[str, Any] = found if isinstance(found, dict) else {}
    groups: dict[str, tuple[str, ...]] = {}
    for name in data:
        _check_name(name, document, hosts)
        groups[name] = _hosts_of(name, data, document, hosts, groups)
    return groups


def _check_name(name: str, document: Document, hosts: Declared[Host]) -> None:
    if name == ALL_HOSTS:
        document.report(("groups", name), f"{ALL_HOSTS} means every host where hosts are named: give it another name")
    elif name in hosts.entries:
        document.report(("groups", name), f"there is a host {name!r}: give it another name")


def _hosts_of(
    group: str, data: Mapping[str, Any], document: Document, hosts: Declared[Host], above: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    members = data[group]
    found: dict[str, None] = {}
    for index, member in enumerate(members if isinstance(members, list) else ()):
        if not isinstance(member, str):
            continue  # told by the model
        if member in above:
            found |= dict.fromkeys(above[member])
        elif member in hosts.entries:
            found[member] = None
        elif member == group or member in data:
            document.report(("groups", group, index), f"group {member!r} must stand above the group that it is in")
        elif hosts.complete:
            known = [*hosts.entries, *above]
            document.report(("groups", group, index), f"there is no host or group {member!r}; {did_you_mean(member, known)}")
    return tuple(found)
