"""The journal keeps what was written, drops a torn line, and knows whether its holder lives."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.journal import JOURNAL, PROGRESS, Journal, ServiceLock, Tail, lock_holder, order_status, read_journal
from orchestrator.agent.private_files import write_private
from orchestrator.agent.state_folder import StateFolder


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


@pytest.mark.parametrize("torn", [b"", b'{"sequence": 2, "sta', b'{"sequence"\0\0: 2, "sta'])
def test_whoever_takes_over_has_the_room_that_was_reserved(tmp_path: Path, torn: bytes) -> None:
    killed = Journal(tmp_path)
    killed.state("CHECKED", "whole")
    end = (tmp_path / JOURNAL).stat().st_size
    killed.reserve()
    killed._progress.close()
    os.close(killed._journal)  # as the kernel does, not as close() does
    with (tmp_path / JOURNAL).open("r+b") as stream:
        stream.seek(end)
        stream.write(torn)
    blocks = (tmp_path / JOURNAL).stat().st_blocks
    with Journal(tmp_path) as journal:
        assert (tmp_path / JOURNAL).stat().st_blocks == blocks
        journal.state("STOPPING", "x")
        assert [entry.state for entry in read_journal(tmp_path / JOURNAL)] == ["CHECKED", "STOPPING"]
    assert (tmp_path / JOURNAL).read_bytes().endswith(b"}\n")


def test_the_journal_is_for_its_owner_alone(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.state("CHECKED", "")
    assert (tmp_path / JOURNAL).stat().st_mode & 0o777 == 0o600


def test_everything_passes_the_scrubber(tmp_path: Path) -> None:
    with Journal(tmp_path, lambda value: json.loads(json.dumps(value).replace("hunter22", "***"))) as journal:
        journal.state("CHECKED", "key hunter22", {"argv": ["--api-key", "hunter22"]})
        journal.progress("phase", "hunter22")
    assert not [path for path in tmp_path.iterdir() if "hunter22" in path.read_text()]


def test_progress_tells_how_long_the_state_and_the_phase_have_gone_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("orchestrator.agent.journal.time.monotonic", lambda: now[0])
    with Journal(tmp_path) as journal:
        for state, phase, moment in (
            ("LOADING", "", 100.0),
            ("", "imports", 101.0),
            ("", "weights", 104.0),
            ("", "weights", 110.0),
            ("ANSWERING", "", 120.0),
            ("", "weights", 121.5),
        ):
            now[0] = moment
            if state:
                journal.state(state, "")
            else:
                journal.progress(phase)
    told = [(item["phase"], item["elapsed"], item["in_phase"]) for item in Tail(tmp_path / PROGRESS).read()]
    assert told == [("imports", 1.0, 0.0), ("weights", 4.0, 0.0), ("weights", 10.0, 6.0), ("weights", 1.5, 0.0)]


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


def test_an_order_cut_off_is_seen_though_an_older_one_has_a_later_time_in_its_name(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    for order_id, state in (("20260102T120000Z-aa", wire.State.DONE), ("20260102T090000Z-bb", wire.State.STOPPING)):
        write_order(folder, order_id, state)
        folder.note_order(order_id)
    status = order_status(folder)
    assert status is not None
    assert (status.order_id, status.half_done) == ("20260102T090000Z-bb", True)


@pytest.mark.parametrize("step", [-10800.0, 10800.0])
def test_a_step_of_the_clock_changes_nothing_in_a_journal_but_its_wall_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    folder, path = open_order(tmp_path)
    now = time.time()
    with Journal(path) as journal:
        for state, moment in ((wire.State.LOADING, now), (wire.State.VERIFIED, now + step), (wire.State.DONE, now + step)):
            monkeypatch.setattr(time, "time", lambda moment=moment: moment)
            journal.state(state, "")
    entries = read_journal(path / JOURNAL)
    assert [entry.sequence for entry in entries] == [1, 2, 3]
    assert [entry.monotonic for entry in entries] == sorted(entry.monotonic for entry in entries)
    status = order_status(folder)
    assert status is not None
    assert (status.state, status.began, status.since) == ("DONE", now, now + step)


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


def test_an_order_whose_own_file_is_damaged_still_reads_as_cut_off(tmp_path: Path) -> None:
    folder, path = open_order(tmp_path)
    with Journal(path) as journal:
        journal.state(wire.State.LOADING, "")
    (path / "order.json").write_text('{"order_id": "o1", "ki')
    status = order_status(folder)
    assert status is not None
    assert (status.state, status.half_done, status.service) == ("INTERRUPTED(LOADING)", True, "svc")
    assert "order.json" in status.reason
