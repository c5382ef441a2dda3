"""The inventory that points the program under test at the rig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from tests.rig.bare_host import BareHost
    from tests.rig.container import Container
    from tests.rig.ssh import SshServer

BY_SSH, BY_LXC_ATTACH, BY_PCT_STANDIN = "box", "box-lxc-attach", "box-pct-standin"
"""Names of one and the same container, by the way in."""


def write_inventory(folder: Path, hosts: Mapping[str, Any], known_hosts: str) -> Path:
    """Write a hosts.yml and a known_hosts into `folder`, with no services or tuning profiles yet, and return it."""
    for name in ("services", "backends", "tuning"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _dump(folder / "hosts.yml", {"hosts": dict(hosts)})
    (folder / "known_hosts").write_text(known_hosts, encoding="utf-8")
    return folder


def write_service(folder: Path, name: str, service: Mapping[str, Any]) -> None:
    """Add a service, or replace the one of that name."""
    _dump(folder / "services" / f"{name}.yml", {"name": name, **service})


def write_backend(folder: Path, name: str, arguments: Mapping[str, Any], summary: str = "for a test") -> None:
    """Add a backend profile that holds for every version of SGLang."""
    variant = {"sglang": ">=0.5.6", "arguments": dict(arguments)}
    _dump(folder / "backends" / f"{name}.yml", {"name": name, "kind": "backend", "summary": summary, "variants": [variant]})


def write_tuning(folder: Path, name: str, knobs: Sequence[Mapping[str, Any]]) -> None:
    """Add a tuning profile, or replace the one of that name."""
    _dump(folder / "tuning" / f"{name}.yml", {"name": name, "summary": "for a test", "knobs": [dict(knob) for knob in knobs]})


def rig_hosts(host: BareHost, container: Container) -> dict[str, Any]:
    """The container three times, by each way in."""
    number = int(container.name)
    return {
        BY_SSH: {**login(host.ssh), "container": {"reached_by": "ssh", "id": number, **login(container.ssh)}},
        BY_LXC_ATTACH: {**login(host.ssh), "container": {"reached_by": "lxc-attach", "name": container.name}},
        BY_PCT_STANDIN: {**login(host.ssh), "container": {"reached_by": "pct", "id": number}},
    }


def login(server: SshServer) -> dict[str, Any]:
    """The keys of hosts.yml for a server."""
    return {
        "address": server.address,
        "port": server.port,
        "user": server.user,
        "identity_files": [str(server.key)],
        "agent": False,
    }


class _Dumper(yaml.SafeDumper):
    """Quotes y and n too, which PyYAML takes for text and other readers for booleans. Writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="'" if data.lower() in ("y", "n") else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _dump(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False), encoding="utf-8")
