"""The index over the run folders: it follows them, survives everything that can happen to its file, and is never needed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.results import history
from orchestrator.results.history import FILE, SCHEMA_VERSION, Wanted, look_up
from tests.unit.results.kept_samples import (
    MEASURED,
    MEASURED_AGAIN,
    RELAUNCHED,
    RESTORED,
    TORN_DOWN,
    doubted,
    keep,
    keep_record,
    lab_runs,
    timed,
)

ALL = [TORN_DOWN, RESTORED, MEASURED_AGAIN, RELAUNCHED, MEASURED]


def names(root: Path, wanted: Wanted | None = None, *, rebuild: bool = False) -> list[str]:
    return [entry.name for entry in look_up(root, wanted, rebuild=rebuild).entries]


def stored(root: Path) -> list[str]:
    with closing(sqlite3.connect(root / FILE)) as database:
        return [name for (name,) in database.execute("SELECT name FROM runs ORDER BY name DESC")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lab_runs(tmp_path)


def test_each_run_is_one_line_the_newest_first(root: Path) -> None:
    entries = {entry.name: entry for entry in look_up(root).entries}
    assert list(entries) == ALL
    relaunched = entries[RELAUNCHED]
    assert (relaunched.verb, relaunched.service, relaunched.backend) == ("relaunch", "glm5-b200", "flashinfer_cutedsl")
    assert (relaunched.exit_code, relaunched.ended, relaunched.believed) == (0, "DONE", None)
    assert relaunched.dark_seconds == pytest.approx(2.7, abs=0.1)
    assert relaunched.token_seconds is not None
    assert relaunched.token_seconds_before is not None
    assert relaunched.token_seconds < relaunched.token_seconds_before / 2
    measured = entries[MEASURED]
    assert measured.token_seconds == pytest.approx(0.02175, abs=1e-4)
    assert (measured.believed, measured.dark_seconds) == (True, None)
    assert entries[RESTORED].ended == "RESTORED [kernel_missing]"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(service="glm5-b200"), [MEASURED_AGAIN, RELAUNCHED, MEASURED]),
        (Wanted(host="lab-rtx6000"), [TORN_DOWN, RESTORED]),
        (Wanted(host="lab"), []),
        (Wanted(host="lab-b200,lab-rtx6000"), [TORN_DOWN, RESTORED, MEASURED_AGAIN, RELAUNCHED, MEASURED]),
        (Wanted(verb="measure"), [MEASURED_AGAIN, MEASURED]),
        (Wanted(backend="flashinfer_cutedsl"), [RESTORED, MEASURED_AGAIN, RELAUNCHED]),
        (Wanted(verb="relaunch", limit=1), [RESTORED]),
        (Wanted(limit=2), [TORN_DOWN, RESTORED]),
        (Wanted(since=1_796_021_740.0), [TORN_DOWN, RESTORED]),
        (Wanted(service="'; DROP TABLE runs; --"), []),
    ],
)
def test_only_what_is_wanted(root: Path, wanted: Wanted, expected: list[str]) -> None:
    assert names(root, wanted) == expected


def test_the_file_is_the_operators_alone_and_in_write_ahead_mode(root: Path) -> None:
    look_up(root)
    assert stat.S_IMODE((root / FILE).stat().st_mode) == 0o600
    with closing(sqlite3.connect(root / FILE)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        database.execute("SELECT * FROM runs").fetchall()
        assert {stat.S_IMODE(path.stat().st_mode) for path in root.glob(f"{FILE}*")} == {0o600}


def test_where_there_are_no_runs_nothing_is_made(tmp_path: Path) -> None:
    assert look_up(tmp_path / "runs") == history.History()
    assert list(tmp_path.iterdir()) == []


def test_new_changed_and_removed_folders_are_seen(root: Path) -> None:
    look_up(root)
    shutil.rmtree(root / MEASURED)
    folder = keep_record(root / "20261201T000000Z-relaunch-gpu1-glm5", "relaunch", started=1_796_100_000.0)
    assert names(root) == [folder.name, *ALL[:-1]]
    error: dict[str, object] = {"message": "refused", "evidence": [], "next_step": None, "exit_code": 3}
    (folder / "error.json").write_text(json.dumps(error), encoding="utf-8")
    assert look_up(root).entries[0].exit_code == 3
    assert stored(root) == names(root)


def test_what_has_not_changed_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up(root)
    read: list[str] = []
    monkeypatch.setattr(history, "read_run", lambda folder: read.append(folder.name))
    assert names(root) == ALL
    assert read == []


def test_a_rebuild_reads_everything_again(root: Path) -> None:
    look_up(root)
    with closing(sqlite3.connect(root / FILE)) as database:
        database.execute("UPDATE runs SET service = 'wrong'")
        database.commit()
    assert names(root, Wanted(service="wrong")) == ALL
    assert names(root, Wanted(service="wrong"), rebuild=True) == []


def test_another_schema_is_made_anew(root: Path) -> None:
    with closing(sqlite3.connect(root / FILE)) as database:
        database.execute("CREATE TABLE runs (name TEXT, colour TEXT)")
        database.execute("INSERT INTO runs VALUES ('old', 'red')")
        database.execute("PRAGMA user_version = 999")
        database.commit()
    assert names(root) == ALL == stored(root)


def test_a_table_that_is_not_as_its_number_says_is_made_anew(root: Path) -> None:
    with closing(sqlite3.connect(root / FILE)) as database:
        database.execute("CREATE TABLE runs (name TEXT, colour TEXT)")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    assert names(root) == ALL == stored(root)


@pytest.mark.parametrize("damage", ["text", "empty", "torn", "overwritten"])
def test_a_broken_file_is_made_anew_and_that_is_told(root: Path, damage: str) -> None:
    look_up(root)
    path = root / FILE
    whole = path.read_bytes()
    broken = {"text": b"not a database" * 1000, "empty": b"", "torn": whole[: len(whole) // 2], "overwritten": whole[:100] + b"\xff" * 8000}
    path.write_bytes(broken[damage])
    found = look_up(root)
    assert [entry.name for entry in found.entries] == ALL
    assert damage == "empty" or ("was broken" in found.remarks[0] and len(found.remarks) == 1)
    assert look_up(root).remarks == ()
    assert stored(root) == ALL


def test_a_folder_that_is_no_run_is_told_and_the_others_are_listed(root: Path) -> None:
    (root / "notes").mkdir()
    (root / "notes" / "run.json").write_text("{", encoding="utf-8")
    (root / RESTORED / "result.json").write_text("{", encoding="utf-8")
    found = look_up(root)
    assert [entry.name for entry in found.entries] == ALL
    assert found.entries[1].exit_code is None
    assert [name for name, _ in found.unreadable] == [RESTORED, "notes"]
    assert "result.json can't be understood" in found.unreadable[0][1]


def test_a_place_that_can_not_be_written_gives_the_same_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    found = look_up(root)
    assert [entry.name for entry in found.entries] == ALL
    assert "can't be kept" in found.remarks[0]
    assert not (root / FILE).exists()


def test_a_root_that_can_not_be_read_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UsageError, match="can't be read: Permission denied"):
        look_up(root)


def test_a_process_that_hangs_on_it_is_not_waited_for_long(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOCK_SECONDS", 0.1)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = look_up(root)
    finally:
        os.close(descriptor)
    assert [entry.name for entry in found.entries] == ALL
    assert "another process has used it for 0.1 s" in found.remarks[0]


MANY = """
import sys
from pathlib import Path
from orchestrator.results.history import look_up
root = Path(sys.argv[1])
for number in range(12):
    found = look_up(root, rebuild=number % 4 == 3)
    assert len(found.entries) == 45, (len(found.entries), found.remarks)
    assert not [remark for remark in found.remarks if "can't be kept" in remark], found.remarks
"""


def test_many_processes_at_once_agree_and_leave_a_whole_file(root: Path) -> None:
    for number in range(40):
        item = timed(f"l{number}", "triton", [(1, 10.0)])
        keep(root, doubted(item) if number % 3 else item, started=1_795_000_000.0 + number)
    (root / FILE).write_bytes(b"not a database" * 1000)
    command = [sys.executable, "-c", MANY, str(root)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ended = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, ended
    with closing(sqlite3.connect(root / FILE)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (45,)
