"""Everything that a run has kept, as one archive that is small enough to carry away."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

NAME = "gpu-run.tar.xz"
LIMIT = 4 * 1024 * 1024
"""Bytes of one file; of a longer one its head and its tail are kept, half each."""
LEFT_OUT = frozenset({"keys", "agent.zip", "__pycache__", ".cache", NAME})
"""Throwaway keys; the program itself, which each order has a copy of."""


def pack(folder: Path, target: Path) -> int:
    """Write the archive of `folder` and return its size in bytes."""
    fresh = target.with_suffix(".new")
    with tarfile.open(fresh, "w:xz") as archive:
        for path in kept(folder):
            data = shortened(path.read_bytes())
            entry = tarfile.TarInfo(f"gpu-run/{path.relative_to(folder)}")
            entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
            archive.addfile(entry, io.BytesIO(data))
    fresh.replace(target)
    return target.stat().st_size


def kept(folder: Path) -> Iterator[Path]:
    """The regular files of `folder` that belong into the archive, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not LEFT_OUT & set(path.relative_to(folder).parts):
            yield path


def shortened(data: bytes, limit: int = LIMIT) -> bytes:
    """`data`, or its head and tail with a line that says how much is missing between them."""
    if len(data) <= limit:
        return data
    half = limit // 2
    return data[:half] + f"\n[{len(data) - 2 * half} bytes left out]\n".encode() + data[-half:]
