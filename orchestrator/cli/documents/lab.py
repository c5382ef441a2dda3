"""The answer of the lab's verbs."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.lab.control import LabHostInfo


@dataclass(frozen=True)
class Lab:
    """The lab as it is now.

    Attributes:
        directory: the lab's folder.
        inventory: the folder of its inventory.
        up: whether its SSH server runs.
        ssh_pid: the process of that; null where it does not run.
        processes: how many run on the lab's hosts.
    """

    directory: str
    inventory: str
    up: bool
    ssh_pid: int | None
    processes: int
    hosts: list[LabHostInfo]
