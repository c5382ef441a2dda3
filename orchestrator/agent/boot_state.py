"""What a box holds about bringing a service's server back: where it lies, and how it reads. For :mod:`boot_unit` and for a survey."""

import os
import re
from pathlib import Path
from typing import List, Optional

from orchestrator.agent import wire
from orchestrator.agent.managers import boot_unit_name
from orchestrator.agent.state_folder import StateFolder

FOLDER = Path("/etc/systemd/system")
WANTED_BY = "multi-user.target"
HEADER = "# Written by lxc-gpu-orchestrator for {service}, from its launch {launch_id}. `fab boot --off` removes it."
_WRITTEN_FROM = r"(?m)^# Written by lxc-gpu-orchestrator for (\S+), from its launch (\S+)\. "


def switch(folder: StateFolder) -> Path:
    """Names the launch that may be started again; without it nothing is."""
    return folder.path / "boot"


def describe(folder: StateFolder, *, runs: bool = False) -> Optional[wire.BootUnit]:
    """What would bring the service's server back; None where nothing was written for it.

    Unless the server `runs`, systemd is asked whether it has given up.
    """
    service = folder.path.name
    unit = FOLDER / boot_unit_name(service)
    launch_id = written_from(unit, service)
    if launch_id is None:
        return None
    restarts = _restarts(folder, launch_id)
    when, _, ended = restarts[-1].partition(" ") if restarts else ("", "", "")
    armed = read(switch(folder)).strip() == launch_id and os.path.lexists(str(link(service)))
    problem = None
    if armed and not runs:
        from orchestrator.agent import systemd

        shown = systemd.show(unit.name, "ActiveState", "Result")
        if shown.get("ActiveState") == "failed":
            problem = f"systemd has given it up after {len(restarts)} restarts, the last of which ended with: {shown.get('Result')}"
    return wire.BootUnit(unit.name, launch_id, armed, len(restarts), float(when) if when.isdigit() else None, ended, problem)


def link(service: str) -> Path:
    """By which the unit is wanted at boot."""
    return FOLDER / f"{WANTED_BY}.wants" / boot_unit_name(service)


def is_foreign(unit: Path, service: str) -> bool:
    """Whether somebody else's unit has this name."""
    return os.path.lexists(str(unit)) and written_from(unit, service) is None


def written_from(unit: Path, service: str) -> Optional[str]:
    """The launch that a unit of ours for this service was written from."""
    found = re.search(_WRITTEN_FROM, read(unit))
    return found.group(2) if found is not None and found.group(1) == service else None


def _restarts(folder: StateFolder, launch_id: str) -> List[str]:
    return read(folder.launch_folder(launch_id) / "restarts").splitlines()


def read(path: Path) -> str:
    """A small file's text, empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
