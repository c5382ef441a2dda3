"""Files get into the state folder whole, or not at all."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.private_files import write_private
from orchestrator.agent.state_folder import StateFolder

LAUNCH = wire.Launch("l", "svc", "auto", "/py", [], "127.0.0.1", 1)


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    return folder


def add_order(folder: StateFolder, order_id: str) -> None:
    folder.order_folder(order_id).mkdir()
    folder.note_order(order_id)


def test_the_newest_order_and_launch_are_told_by_the_box_and_not_by_the_times_in_their_names(folder: StateFolder) -> None:
    for name in ("20260102T120000Z-aa", "20260102T090000Z-bb", "20260102T100000Z-cc"):
        add_order(folder, name)
        folder.write_launch(replace(LAUNCH, launch_id=name))
    for listed in (folder.order_ids(), folder.launch_ids()):
        assert listed == ["20260102T120000Z-aa", "20260102T090000Z-bb", "20260102T100000Z-cc"]


def test_orders_from_before_places_were_kept_come_first_by_their_names(folder: StateFolder) -> None:
    for name in ("o9", "o8"):
        folder.order_folder(name).mkdir()
    add_order(folder, "o1")
    assert folder.order_ids() == ["o8", "o9", "o1"]


def test_an_order_that_was_withdrawn_is_none(folder: StateFolder) -> None:
    folder.note_order("o1")
    add_order(folder, "o2")
    assert folder.order_ids() == ["o2"]


def test_half_a_line_in_the_sequence_costs_no_other(folder: StateFolder) -> None:
    add_order(folder, "o2")
    with (folder.path / "sequence").open("a") as stream:
        stream.write("order o")
    add_order(folder, "o1")
    assert folder.order_ids() == ["o2", "o1"]


def test_a_launch_has_the_place_of_its_last_proof(folder: StateFolder) -> None:
    for name in ("a", "b", "a"):
        folder.launch_folder(name).mkdir(exist_ok=True)
        folder.mark_verified(name, {})
    proofs = folder.proofs()
    assert proofs["b"] < proofs["a"]


def test_a_launch_is_recorded_where_its_place_finds_no_room(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "_note", full)
    folder.write_launch(LAUNCH)
    assert folder.read_launch("l") == LAUNCH


def test_a_full_disk_is_told_with_the_name_of_the_file_and_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_private(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"record\.json"):
        write_private(path, "new")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]
