"""lab.up, lab.down, lab.status: two hosts to play with, on this machine, without root or a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.blocks import Line
from orchestrator.cli.common import INVENTORY_VARIABLE, SHARED_FLAGS, lab_directory
from orchestrator.cli.edge import Call, verb

if TYPE_CHECKING:
    from orchestrator.lab.control import LabInfo

_FLAGS = {"directory": "The lab's folder; else .lab here or above.", "json": SHARED_FLAGS["json"]}


@verb(title="lab.up", flags={**_FLAGS, "servers": "Start a server by hand on each host, for a relaunch to find."})
def up(call: Call, directory: str | None = None, servers: bool = True, json: bool = False) -> None:
    """Start the lab: an SSH server and a stand-in for SGLang on two hosts that are this machine."""
    from orchestrator.lab.control import up as start

    call.interrupted = "interrupted; what is half up is taken away by lab.down"
    info = start(_folder(directory), start_servers=servers)
    _show(call, info)
    first = info.hosts[0]
    call.screen.show(
        [
            Line(),
            Line(f"export {INVENTORY_VARIABLE}={info.inventory}", whole=True),
            Line(f"fab status --host {first.name}"),
            Line(f"fab relaunch --backend flashinfer_cutedsl --host {first.name}"),
        ]
    )


@verb(title="lab.down", flags=_FLAGS)
def down(call: Call, directory: str | None = None, json: bool = False) -> None:
    """Stop everything that runs in the lab and remove it."""
    from orchestrator.lab.control import down as stop

    _show(call, stop(_folder(directory)))


@verb(title="lab.status", flags=_FLAGS)
def status(call: Call, directory: str | None = None, json: bool = False) -> None:
    """Show whether the lab runs, and what in it."""
    from orchestrator.lab.control import status as look

    _show(call, look(_folder(directory)))


def _folder(directory: str | None) -> Path:
    return Path(directory) if directory is not None else lab_directory()


def _show(call: Call, info: LabInfo) -> None:
    from orchestrator.cli.documents.lab import Lab
    from orchestrator.lab.control import describe

    call.screen.show([Line(line) for line in describe(info).splitlines()])
    call.answer(Lab(str(info.directory), str(info.inventory), info.is_up, info.ssh_pid, info.processes, list(info.hosts)))
