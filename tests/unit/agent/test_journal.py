"""The journal keeps what was written, drops a torn line, and knows whether its holder lives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.journal import JOURNAL, Journal, ServiceLock, Tail, lock_holder, order_status, read_journal
from orchestrator.agent.state_folder import StateFolder, write_private


def open_order(tmp_path: Path) -> tuple[StateFolder, Path]:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    path = folder.order_folder("o1")
    path.mkdir()
    order = wire.Order("o1", wire.OrderKind.TEARDOWN, "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop")
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    return folder, path


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.state("CHECKED", "first", {"pid": 1})
        journal.state("LOCKED", "second")
    entries = read_journal(tmp_path / JOURNAL)
    assert [(entry.sequence, entry.state, entry.reason) for entry in entries] == [(1, "CHECKED", "first"), (2, "LOCKED", "second")]
    assert entries[0].data == {"pid": 1}
    assert entries[0].monotonic <= entries[1].monotonic


def test_a_torn_last_line_is_dropped_and_numbering_goes_on(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.state("CHECKED", "whole")
    with (tmp_path / JOURNAL).open("a") as stream:
        stream.write('{"sequence": 2, "sta')
    assert [entry.state for entry in read_journal(tmp_path / JOURNAL)] == ["CHECKED"]
    with Journal(tmp_path) as journal:
        journal.state("LOCKED", "after the crash")
    assert [(entry.sequence, entry.state) for entry in read_journal(tmp_path / JOURNAL)] == [(1, "CHECKED"), (2, "LOCKED")]


def test_the_journal_is_for_its_owner_alone(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.state("CHECKED", "")
    assert (tmp_path / JOURNAL).stat().st_mode & 0o777 == 0o600


def test_everything_passes_the_scrubber(tmp_path: Path) -> None:
    with Journal(tmp_path, lambda value: json.loads(json.dumps(value).replace("hunter22", "***"))) as journal:
        journal.state("CHECKED", "key hunter22", {"argv": ["--api-key", "hunter22"]})
        journal.progress("phase", "hunter22")
    assert not [path for path in tmp_path.iterdir() if "hunter22" in path.read_text()]


def test_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"a": 1}\n{"a"')
    assert tail.read() == [{"a": 1}]
    with path.open("a") as stream:
        stream.write(": 2}\n")
    assert tail.read() == [{"a": 2}]


def test_a_held_order_is_live_and_an_unheld_one_reads_as_interrupted(tmp_path: Path) -> None:
    folder, path = open_order(tmp_path)
    lock = ServiceLock(folder)
    assert lock.take("o1")
    with Journal(path) as journal:
        journal.state(wire.State.STOPPING, "")
        status = order_status(folder)
        assert status is not None
        assert (status.state, status.live, status.operator) == ("STOPPING", True, "ann@laptop")
        lock.release()
        status = order_status(folder)
        assert status is not None
        assert (status.state, status.live) == ("INTERRUPTED(STOPPING)", False)
        journal.state(wire.State.DONE, "")
    status = order_status(folder)
    assert status is not None
    assert status.state == "DONE"


def test_a_second_taker_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    folder, _ = open_order(tmp_path)
    first, second = ServiceLock(folder), ServiceLock(folder)
    assert first.take("o1")
    assert not second.take("o2", seconds=0.1)
    assert lock_holder(folder) == "o1"
    first.release()
    assert lock_holder(folder) is None
    assert second.take("o2")
    second.release()


def write_order(folder: StateFolder, order_id: str, state: str) -> None:
    path = folder.order_folder(order_id)
    path.mkdir()
    order = wire.Order(order_id, wire.OrderKind.TEARDOWN, "svc", str(folder.path.parent), 1, wire.Policy(), "ann@laptop")
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    with Journal(path) as journal:
        journal.state(state, "")


def test_the_order_at_work_comes_before_a_newer_one_that_was_refused(tmp_path: Path) -> None:
    folder, path = open_order(tmp_path)
    write_order(folder, "o2", wire.State.REFUSED)
    with Journal(path) as journal:
        journal.state(wire.State.STOPPING, "")
    lock = ServiceLock(folder)
    assert lock.take("o1")
    status = order_status(folder)
    lock.release()
    assert status is not None
    assert (status.order_id, status.live) == ("o1", True)
    newest = order_status(folder)
    assert newest is not None
    assert newest.order_id == "o2"


def test_an_order_that_ends_after_its_journal_was_read_was_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path = open_order(tmp_path)
    lock = ServiceLock(folder)
    assert lock.take("o1")
    writer = Journal(path)
    writer.state(wire.State.VERIFIED, "")

    def read_then_end(journal: Path) -> list[wire.StateEntry]:
        entries = read_journal(journal)
        writer.state(wire.State.DONE, "")
        lock.release()
        return entries

    monkeypatch.setattr("orchestrator.agent.journal.read_journal", read_then_end)
    status = order_status(folder, "o1")
    writer.close()
    assert status is not None
    assert status.state == "VERIFIED"


def test_the_status_of_an_order_tells_its_reason(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    path = folder.order_folder("o1")
    path.mkdir()
    order = wire.Order("o1", wire.OrderKind.LAUNCH, "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop", reason="night shift")
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    status = order_status(folder)
    assert status is not None
    assert status.reason == "night shift"
