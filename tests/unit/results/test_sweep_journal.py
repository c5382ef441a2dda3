"""A sweep's journal: on the disk before anything is begun, whole again after a kill, one process at a time."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest

from orchestrator.agent.codec import to_json
from orchestrator.errors import LockedError, OrchestratorError, UsageError
from orchestrator.results.redaction import Redactor
from orchestrator.results.sweep import Design, Launch, Look, Point, Timing, next_action
from orchestrator.results.sweep_journal import FILE, SweepJournal, design_of, find_sweep, read_records
from orchestrator.results.sweep_records import Allowed, Begun, Changed, Finished, Ordered, Resumed, Seen, Skipped, Timed

DESIGN = Design(
    [Point("a"), Point("b+ep8", {"--x": True, "--y": 1, "--z": 0.5, "--w": ["1", 2], "--v": "text", "--u": False})],
    Timing([1, 4], 16, 32, 3, 60.0, 0.5),
    2,
    4,
    restore=True,
)
BEGUN = Begun(to_json(DESIGN), "gpu1", "gpu1/101", "glm5", "kim@laptop", Seen(None, 7, 8), "START", Allowed(grace=3.0, reason="why"))
ORDERED = Ordered(0, 0, "order-0", "run-0")


def write(root: Path, name: str = "20261130T000000Z-sweep-gpu1-glm5", *records: object) -> Path:
    path = root / name / FILE
    with SweepJournal(path, Redactor()) as journal:
        for record in records or (BEGUN, ORDERED):
            journal.append(record)  # type: ignore[arg-type]
    return path


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    records = [
        BEGUN,
        ORDERED,
        Changed(0, "DONE", "it serves", None, "L0", 4.5, 0, "run-0"),
        Timed(0, "m0", ["others: 3 ran"]),
        Skipped(1, "refused", ["why"]),
        Resumed("kim@laptop", Seen("L0")),
        Finished(6, 0, "best is a"),
    ]
    path = write(tmp_path, "s", *records)
    read = read_records(path)
    assert [dataclasses.replace(record, time=0.0) for record in read] == records
    assert all(record.time > 0 for record in read)
    assert design_of(read) == DESIGN
    values = design_of(read).points[1].arguments
    assert [type(value) for value in values.values()] == [bool, int, float, list, str, bool], "1 is not true"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_record_is_on_the_disk_when_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    path = tmp_path / "s" / FILE
    with SweepJournal(path, Redactor()) as journal:
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_bytes()))
        journal.append(BEGUN)
        assert next_action(journal.standing) == Launch(0, 0)
        journal.append(ORDERED)
        assert isinstance(next_action(journal.standing), Look)
    assert [content.count(b"\n") for content in synced] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"step": 0, "state": "DO', b"\xff\xfe", b"x" * 5000])
def test_a_line_that_was_cut_off_is_dropped_and_never_joined_with_the_next(tmp_path: Path, torn: bytes) -> None:
    path = write(tmp_path)
    with path.open("ab") as stream:
        stream.write(torn)
    assert len(read_records(path)) == 2
    with SweepJournal(path, Redactor()) as journal:
        assert len(journal.records) == 2
        journal.append(Changed(0, "DONE", "it serves", launch_id="L0"))
    assert [record.kind for record in read_records(path)] == ["begun", "ordered", "changed"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path)
    with SweepJournal(path, Redactor()), pytest.raises(LockedError, match="another process"), SweepJournal(path, Redactor()):
        pass
    with SweepJournal(path, Redactor()) as journal:
        assert len(journal.records) == 2


def test_a_journal_that_can_not_be_written_stops_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OrchestratorError, match="can't be written"), SweepJournal(tmp_path / "file" / FILE, Redactor()):
        pass

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with SweepJournal(tmp_path / "s" / FILE, Redactor()) as journal:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OrchestratorError, match="No space left"):
            journal.append(BEGUN)


def test_a_secret_does_not_get_into_it(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add(["canary-7f3a9c"])
    path = tmp_path / "s" / FILE
    with SweepJournal(path, redactor) as journal:
        journal.append(dataclasses.replace(BEGUN, allowed=Allowed(reason="with canary-7f3a9c")))
    assert "canary" not in path.read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "does not begin"),
        ("[]\n", "can't be read"),
        ('{"kind": "guess"}\n', "can't be read"),
        ('{"kind": "dropped", "step": 0}\n', "does not begin"),
        (f"{json.dumps({**to_json(BEGUN), 'design': {}})}\n", "points"),
        (f"{json.dumps({**to_json(BEGUN), 'schema': 'orchestrator.sweep.journal/9'})}\n", "does not begin"),
    ],
)
def test_what_is_no_journal_is_said(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / FILE
    path.write_text(content)
    with pytest.raises(UsageError, match=said):
        design_of(read_records(path))


def test_the_newest_unfinished_sweep_of_the_service_is_found(tmp_path: Path) -> None:
    def name(day: int, service: str = "gpu1-glm5") -> str:
        return f"202611{day}T000000Z-sweep-{service}"

    older = write(tmp_path, name(10))
    newer = write(tmp_path, name(11))
    write(tmp_path, name(12), BEGUN, Finished(0, 0, "best is a"))
    write(tmp_path, name(13, "gpu1-glm5x"), dataclasses.replace(BEGUN, service="glm5x"))
    (tmp_path / name(14)).mkdir()
    assert find_sweep(None, "gpu1", "glm5", tmp_path) == newer.parent
    assert find_sweep(older.parent.name, "gpu1", "glm5", tmp_path) == older.parent
    assert find_sweep(str(older.parent), "gpu1", "glm5", tmp_path / "elsewhere") == older.parent
    for named, said in ((name(12), "has finished: best is a"), (name(13, "gpu1-glm5x"), "a sweep of glm5x"), (name(14), "no sweep")):
        with pytest.raises(UsageError, match=said):
            find_sweep(named, "gpu1", "glm5", tmp_path)
    with pytest.raises(UsageError, match="no unfinished sweep of tiny on gpu2"):
        find_sweep(None, "gpu2", "tiny", tmp_path)
