"""The tiers of tests, from pure to real, and why one can't run here."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.rig import fuse
from tests.rig.router import missing_routers
from tests.rig.sglang import VARIABLE, find_environment

TIERS = ("unit", "agent", "lab", "browser", "ssh", "lxc", "faults", "sglang")
"""The folders of tests/, in the order in which they run."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Names of Chromium; the first that is there."""
_LXC_PROGRAMS = ("lxc-start", "lxc-attach", "lxc-stop", "newuidmap", "ip", "unshare", "setpriv", "sshd", "ssh", "ssh-keygen", "sudo", "ss",
                 "sysctl", "setpci", "lspci", "gcc")  # fmt: skip


def tier_of(path: Path) -> str | None:
    """The tier that a test file belongs to: the folder of tests/ it lies in."""
    parts = path.relative_to(Path(__file__).parents[1]).parts
    return parts[0] if parts[0] in TIERS else None


@cache
def missing(tier: str) -> str | None:
    """Why this machine can't run a tier, or None when it can."""
    if tier == "browser":
        return _missing_browser()
    if tier == "ssh":
        return _missing_programs("sshd", "ssh", "ssh-keygen")
    if tier in ("lxc", "faults"):
        return _missing_lxc()
    if tier == "sglang":
        return _missing_lxc() or _missing_sglang()
    return None


def partly_missing(tier: str) -> str | None:
    """Why some of a tier's tests can't run here; they skip themselves."""
    if tier == "lab" or (tier == "sglang" and missing(tier) is None):
        return missing_routers()
    return fuse.missing() if tier == "lxc" and missing(tier) is None else None


def _missing_lxc() -> str | None:
    if os.geteuid() != 0:
        return "needs root, for containers and a bridge"
    absent = _missing_programs(*_LXC_PROGRAMS)
    if absent is None and not Path("/lib/systemd/systemd").exists():
        absent = "systemd is not installed (its binaries run in the container)"
    return absent


def _missing_browser() -> str | None:
    if not any(map(shutil.which, BROWSERS)):
        return "not installed: chromium (as root, `make test` installs it with apt)"
    return None if find_spec("PIL") is not None else "not installed: Pillow (in the dev extra)"


def _missing_sglang() -> str | None:
    if find_environment() is None:
        return f"no SGLang environment: run `make sglang-cpu`, or name one in ${VARIABLE}"
    return None


def _missing_programs(*names: str) -> str | None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [name for name in names if shutil.which(name, path=path) is None]
    return f"not installed: {' '.join(absent)} (as root, `make test` installs them with apt)" if absent else None
