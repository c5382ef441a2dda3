"""The program's inventory in Ansible's variables, so that an address is written in one file only. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

Host = Mapping[str, Any]


def host_variables(host: Host, hosts: Mapping[str, Host], services: Sequence[Mapping[str, Any]], folder: str) -> dict[str, Any]:
    """How Ansible's own modules reach the machine itself, and what the actions are told.

    Args:
        host: one of `hosts`, as :command:`orchestrator hosts --json` describes it.
        services: all services of the inventory.
        folder: the program's inventory folder.
    """
    found: dict[str, Any] = {
        "ansible_host": host["address"],
        "ansible_port": host["port"],
        "ansible_user": host["user"],
        "ansible_ssh_common_args": shlex.join(_ssh_options(host, hosts, folder)),
        "orchestrator_host": host["name"],
        "orchestrator_inventory": folder,
        "orchestrator_tuning": host["tuning"],
        "orchestrator_services": [service["name"] for service in services if service["host"] == host["name"]],
    }
    if host["become"] == "sudo":
        found |= {"ansible_become": True, "ansible_become_method": "sudo"}
    if host["identity_files"]:
        found["ansible_ssh_private_key_file"] = host["identity_files"][0]
    if host["python"].startswith("/"):
        found["ansible_python_interpreter"] = host["python"]
    return found


def _ssh_options(host: Host, hosts: Mapping[str, Host], folder: str) -> list[str]:
    """The keys that were pinned count for Ansible too, and the same machines are gone through."""
    jumps = _jumps(host, hosts)
    through = ["-o", f"ProxyJump={','.join(jumps)}"] if jumps else []
    return ["-o", f'UserKnownHostsFile="{folder}/known_hosts" ~/.ssh/known_hosts', *through]


def _jumps(host: Host, hosts: Mapping[str, Host]) -> list[str]:
    """The machines on the way, in the order in which they are reached."""
    chain: list[str] = []
    name = host["jump"]
    while name is not None:
        hop = hosts[name]
        address = f"[{hop['address']}]" if ":" in hop["address"] else hop["address"]
        chain.insert(0, f"{hop['user']}@{address}:{hop['port']}")
        name = hop["jump"]
    return chain
