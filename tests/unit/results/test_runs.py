"""Run folders: what is kept, who may read it, and that a full disk stops nothing."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from orchestrator.agent import wire
from orchestrator.results.hook_run import HookRun
from orchestrator.results.redaction import Redactor
from orchestrator.results.runs import RunFolder, last_dark_seconds
from tests.unit.flows.samples import CANARY, done


def make(root: Path, warnings: list[str] | None = None, verb: str = "relaunch") -> RunFolder:
    redactor = Redactor()
    redactor.add([CANARY])
    warn = warnings.append if warnings is not None else (lambda text: None)
    run = RunFolder.create(verb, ["gpu1", "glm5"], redactor, warn, root=root, command=["fab", "relaunch", f"--reason={CANARY}"])
    run.begin()
    return run


def test_nothing_is_on_disk_before_the_run_begins_and_all_of_it_then(tmp_path: Path) -> None:
    run = RunFolder.create("relaunch", ["gpu1"], Redactor(), lambda text: None, root=tmp_path / "runs")
    run.note("looking")
    assert not (tmp_path / "runs").exists()
    assert not run.kept
    run.begin()
    assert run.kept
    assert {path.name for path in run.path.iterdir()} == {"run.json", "events.jsonl"}


def read(run: RunFolder, name: str) -> dict[str, object]:
    data = json.loads((run.path / name).read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def test_a_run_is_private_and_says_who_did_what_with_which_version(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.keep_text("server.log", "up")
    assert run.path.name.endswith("-relaunch-gpu1-glm5")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.path.iterdir()} == {0o600}
    record = read(run, "run.json")
    assert record["verb"] == "relaunch"
    assert "@" in str(record["operator"])
    assert CANARY not in json.dumps(record)


def test_two_runs_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({make(tmp_path).path for _ in range(5)}) == 5


def test_events_are_on_disk_as_they_arrive(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.state(wire.StateEntry(1, "CHECKED", 1.0, 1.0, f"because of {CANARY}"))
    run.progress(wire.Progress("LOADING", "weights", 2.0))
    lines = [json.loads(line) for line in (run.path / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in lines] == ["state", "progress"]
    assert CANARY not in str(lines)


def test_the_result_and_its_timings_are_kept(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.result(done())
    assert read(run, "result.json")["dark_seconds"] == 41.5
    assert read(run, "timings.json")["measured"]


def test_a_collected_file_can_not_leave_the_folder(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.collected(wire.Collected({"../../escape.log": f"key {CANARY}"}))
    assert not (tmp_path / "escape.log").exists()
    assert CANARY not in (run.path / "escape.log").read_text(encoding="utf-8")


def test_a_folder_that_can_not_be_written_is_one_warning(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder", encoding="utf-8")
    warnings: list[str] = []
    run = make(in_the_way, warnings)
    run.result(done())
    run.note("x")
    assert len(warnings) == 1
    assert str(in_the_way) in warnings[0]
    assert not run.kept


def test_the_last_dark_time_is_that_of_the_newest_run_that_has_one(tmp_path: Path) -> None:
    assert last_dark_seconds("gpu1", "glm5", tmp_path / "nowhere") is None
    make(tmp_path).result(done(dark_seconds=12.0))
    make(tmp_path)
    make(tmp_path, verb="launch").result(done(dark_seconds=99.0))
    make(tmp_path).result(done(dark_seconds=77.0, state="DOWN"))
    assert last_dark_seconds("gpu1", "glm5", tmp_path) == 12.0
    assert last_dark_seconds("gpu1", "other", tmp_path) is None


def test_what_was_done_around_an_order_is_kept_masked(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert run.kept_in == str(run.path)
    for when, status in (("before", 0), ("before", 3), ("after", 0)):
        run.hook(HookRun(when, ["./hook", CANARY], status, 1.25, f"said {CANARY}", "oh\n"))
    run.notice(wire.Fate("ann@laptop", "done", f"sent to {CANARY}"))
    names = {path.name for path in run.path.iterdir()}
    assert {"hook-before-1.txt", "hook-before-2.txt", "hook-after-1.txt", "notice.json"} <= names
    assert (run.path / "hook-before-2.txt").read_text() == (
        "$ ./hook ********\nended with status 3 after 1.2 s\n\n--- output\nsaid ********\n\n--- errors\noh\n"
    )
    assert read(run, "notice.json")["by"] == "ann@laptop"
    assert [path.name for path in run.path.iterdir() if CANARY in path.read_text()] == []


def test_a_run_that_is_not_kept_is_nowhere(tmp_path: Path) -> None:
    assert RunFolder.create("relaunch", ["gpu1"], Redactor(), lambda text: None, root=tmp_path / "runs").kept_in is None
