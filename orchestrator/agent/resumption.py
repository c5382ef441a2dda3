"""The unit that takes an order up again after a restart of the machine. It exists only while the order is open.

Written for the next boot alone, so systemd is not asked to read it now. Where there is no systemd, or its folder can't be written,
an order that a restart cuts off waits for ``resume``.
"""

import contextlib
import os
from pathlib import Path
from typing import Sequence

from orchestrator.agent import systemd, wire
from orchestrator.agent.managers import UNIT_PREFIX
from orchestrator.agent.private_files import sync_folder, write_private

FOLDER = Path("/etc/systemd/system")
_WANTED_BY = "multi-user.target"
RESTART = ("Restart=on-failure", "RestartSec=200ms", "RestartForceExitStatus=SIGTERM")
"""Of a supervisor that was killed. SIGTERM counts as a clean end to systemd; a stop that systemd itself was asked for stays one."""

_UNIT = """\
# Written by lxc-gpu-orchestrator while a change of {service} is under way; it is removed when that has ended.
[Unit]
Description=Finishes the {kind} of {service} that a restart of the machine cut off
After=local-fs.target network.target orchestrator-prep.service
ConditionPathExists={order}/order.json
[Service]
Type=exec
KillMode=mixed
{restart}
ExecStart={command}
StandardInput=null
StandardOutput=append:{order}/supervisor.log
StandardError=append:{order}/supervisor.log
[Install]
WantedBy={wanted_by}
"""


def unit_name(service: str) -> str:
    """The unit's name; a service has one order at a time."""
    return f"{UNIT_PREFIX}{service}-resume.service"


def install(order: wire.Order, path: Path, command: Sequence[str], folder: Path = FOLDER) -> bool:
    """Write the unit and have it wanted at boot; whether that could be done."""
    if not systemd.is_available():
        return False
    words = " ".join(systemd.exec_word(word.replace("$", "$$").replace("%", "%%")) for word in command)
    restart = "\n".join(RESTART)
    text = _UNIT.format(service=order.service, kind=order.kind, order=path, command=words, restart=restart, wanted_by=_WANTED_BY)
    try:
        write_private(folder / unit_name(order.service), text, 0o644)
        link = _link(order, folder)
        link.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(folder / unit_name(order.service), link)
        sync_folder(link.parent)
    except OSError:
        return False
    return True


def remove(order: wire.Order, folder: Path = FOLDER) -> None:
    """Take the unit away; does nothing where there is none."""
    for path in (_link(order, folder), folder / unit_name(order.service)):
        with contextlib.suppress(OSError):
            path.unlink()


def _link(order: wire.Order, folder: Path) -> Path:
    return folder / f"{_WANTED_BY}.wants" / unit_name(order.service)
