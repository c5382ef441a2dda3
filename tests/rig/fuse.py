"""The kernel's FUSE, on which files that answer as the kernel's do are made (:mod:`tests.rig.kernel_like_files`)."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

import pytest

NODE = Path("/dev/fuse")
_NUMBER = os.makedev(10, 229)
"""Documentation/admin-guide/devices.txt."""


@cache
def missing() -> str | None:
    """Why there can be no such file system here; None when there can. Makes the device node where only that is missing."""
    made = False
    try:
        if not NODE.exists():
            os.mknod(NODE, 0o600 | stat.S_IFCHR, _NUMBER)
            made = True
        os.close(os.open(NODE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if made:
            NODE.unlink()
        return f"no FUSE in this kernel, or not for us ({NODE}: {error.strerror})"
    return None


def require() -> None:
    """Skip the test that is running where there is no FUSE."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
