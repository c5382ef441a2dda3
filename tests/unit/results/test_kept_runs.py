"""Reading run folders again: real ones, ones that were cut off, and ones with something wrong in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.results.kept_runs import Ending, NotARunError, read_run
from orchestrator.results.run_names import find_run, shortest
from tests.unit.results.kept_samples import (
    LAB_RUNS,
    MEASURED,
    MEASURED_AGAIN,
    RELAUNCHED,
    RESTORED,
    TORN_DOWN,
    doubted,
    keep,
    keep_record,
    timed,
)


@pytest.mark.parametrize(
    ("name", "service", "backend", "ending"),
    [
        (MEASURED, "glm5-b200", None, Ending(0, "measured")),
        (RELAUNCHED, "glm5-b200", "flashinfer_cutedsl", Ending(0, "DONE")),
        (MEASURED_AGAIN, "glm5-b200", "flashinfer_cutedsl", Ending(0, "measured")),
        (RESTORED, "glm5-rtx6000", "flashinfer_cutedsl", Ending(6, "RESTORED", "kernel_missing")),
        (TORN_DOWN, "glm5-rtx6000", None, Ending(0, "DONE")),
    ],
)
def test_a_run_says_what_it_was_and_how_it_ended(name: str, service: str, backend: str | None, ending: Ending) -> None:
    run = read_run(LAB_RUNS / name)
    assert (run.name, run.service, run.backend, run.ending) == (name, service, backend, ending)
    assert run.host == run.place == service.replace("glm5", "lab")
    assert run.record.operator == "kim@laptop"
    assert run.problems == ()


def test_what_is_not_believed_says_which_doubts(tmp_path: Path) -> None:
    run = read_run(keep(tmp_path, doubted(timed("one", "triton", [(1, 10.0)]))))
    assert run.ending == Ending(9, "not believed", "others")
    assert run.ending.told == "not believed [others]"
    assert run.place == "gpu1/101"


@pytest.mark.parametrize(
    ("name", "text", "ending", "problems"),
    [
        ("budget.json", '{"valid": true}', Ending(0, "accounted"), 0),
        ("profile.json", '{"valid": true}', Ending(0, "traced"), 0),
        ("profile.json", '{"valid": false}', Ending(9, "not believed"), 0),
        ("profile.json", '{"valid": null}', Ending(None, "cut off"), 1),
    ],
)
def test_an_account_of_a_step_says_whether_it_is_believed(tmp_path: Path, name: str, text: str, ending: Ending, problems: int) -> None:
    folder = keep_record(tmp_path / "run", "profile")
    (folder / name).write_text(text, encoding="utf-8")
    run = read_run(folder)
    assert (run.ending, len(run.problems)) == (ending, problems)


def test_a_run_that_was_cut_off_has_no_exit_code(tmp_path: Path) -> None:
    folder = keep_record(tmp_path / "run", "relaunch")
    assert read_run(folder).ending == Ending(None, "cut off")
    states = [{"kind": "state", "data": {"state": name}} for name in ("CHECKED", "LOADING")]
    (folder / "events.jsonl").write_text("\n".join([*map(json.dumps, states), '{"kind": "sta']), encoding="utf-8")
    assert read_run(folder).ending == Ending(None, "cut off in LOADING")
    error = {"message": "the connection ended", "evidence": [], "next_step": "fab attach", "exit_code": 4}
    (folder / "error.json").write_text(json.dumps(error), encoding="utf-8")
    assert read_run(folder).ending == Ending(4, "left in LOADING")


def test_a_preparation_says_what_was_changed(tmp_path: Path) -> None:
    folder = keep_record(tmp_path / "run", "prep", names=["gpu1"])
    setting = {"kind": "sysctl", "name": "kernel.numa_balancing", "value": "0"}
    result = {"setting": setting, "outcome": "changed", "before": {"": "1"}, "after": {"": "0"}}
    report = {"results": [result], "facts": [], "persistence": None, "changes": [], "originals": 0}
    place = {"place": "gpu1", "kind": "host", "stands_in": False, "error": None, "report": report}
    host = {"host": "gpu1", "profile": "blackwell", "counts": {"changed": 1}, "error": None, "places": [place]}
    (folder / "prep.json").write_text(json.dumps({"mode": "apply", "hosts": [host], "exit_code": 8}), encoding="utf-8")
    run = read_run(folder)
    assert run.problems == ()
    assert run.prep is not None
    assert run.prep.hosts[0].changes == ("kernel.numa_balancing: 1 -> 0",)
    assert run.ending == Ending(8, "apply")
    assert run.service is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "run.json: No such file"),
        ("{", "is no JSON"),
        ("[]", "the schema None"),
        ('{"schema": "orchestrator.run/9"}', "orchestrator.run/9"),
        ('{"schema": "orchestrator.run/1", "verb": "relaunch"}', "can't be understood"),
        ('{"schema": "orchestrator.run/1", "verb": "relaunch", "names": [], "started": "noon"}', "can't be understood"),
        ('{"schema": "orchestrator.run/1", "verb": "relaunch", "names": [], "started": 1e400}', "inf is no time of a run"),
    ],
)
def test_a_folder_without_a_readable_record_is_no_run(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(NotARunError, match=says):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["plan.json", "result.json", "error.json", "prep.json", "measure.json"])
@pytest.mark.parametrize("text", ["", "[1]", '{"exit_code": "six"}', '{"schema": 5, "hosts": [null], "mode": 1, "exit_code": 0}'])
def test_a_file_that_can_not_be_understood_is_told_and_the_rest_is_read(tmp_path: Path, name: str, text: str) -> None:
    keep_record(tmp_path, "relaunch")
    (tmp_path / name).write_text(text, encoding="utf-8")
    run = read_run(tmp_path)
    assert run.record.verb == "relaunch"
    assert [problem.partition(" ")[0] for problem in run.problems] == ([] if name == "plan.json" and text.startswith("{") else [name])


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    keep_record(tmp_path)
    (tmp_path / "result.json").write_bytes(b"\xff\xfe{}")
    assert "result.json can't be understood" in read_run(tmp_path).problems[0]


def test_a_run_is_found_by_path_name_beginning_and_as_the_last(tmp_path: Path) -> None:
    one, two = (keep_record(tmp_path / name) for name in ("20261129T1-measure-gpu1", "20261129T2-measure-gpu1"))
    for name in (str(one), one.name, "20261129T1"):
        assert find_run(name, tmp_path, lambda: None) == one
    assert find_run("last", tmp_path, lambda: two) == two


@pytest.mark.parametrize(
    ("name", "says"), [("2026", "2 runs begin with 2026"), ("2027", "no run 2027"), ("", "no run"), ("last", "no runs")]
)
def test_a_name_that_means_no_run_or_several_is_told(tmp_path: Path, name: str, says: str) -> None:
    for folder in ("20261129T1-measure-gpu1", "20261129T2-measure-gpu1"):
        keep_record(tmp_path / folder)
    with pytest.raises(UsageError, match=says):
        find_run(name, tmp_path, lambda: None)


def test_beginnings_are_as_long_as_they_must_be() -> None:
    assert shortest(["abcdef", "abcxyz", "abcxyz-2", "q"], 3) == {"abcdef": "abcd", "abcxyz": "abcxyz", "abcxyz-2": "abcxyz-", "q": "q"}
    assert shortest(["abcdef"], 4) == {"abcdef": "abcd"}
    assert shortest([], 4) == {}
