"""Files get into the state folder whole, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.agent.state_folder import write_private


def test_a_full_disk_is_told_with_the_name_of_the_file_and_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_private(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"record\.json"):
        write_private(path, "new")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]
