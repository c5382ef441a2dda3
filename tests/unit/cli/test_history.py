"""``fab history``, ``fab show``, ``fab report`` and ``fab export`` over kept runs: screens, documents, files and exit codes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.unit.cli.test_measure import agent as measuring
from tests.unit.cli.test_verbs import RELAUNCH, Box, Done, box
from tests.unit.flows.samples import CANARY, healthy_agent
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

__all__ = ["box"]


@pytest.fixture
def kept(box: Box) -> Box:
    lab_runs(box.folder)
    return box


def run(box: Box, *words: str) -> Done:
    return box.run(healthy_agent(), *words)


def words(text: str) -> str:
    return " ".join(text.split())


def test_history_is_one_line_a_run(kept: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    ended = run(kept, "history")
    assert ended.code == 0
    lines = [line.split() for line in ended.out.splitlines()]
    row = next(line for line in lines if line and line[0] == RELAUNCHED[:16])
    assert row[2:6] == ["relaunch", "glm5-b200", "in", "lab-b200"]
    assert row[6:] == ["flashinfer_cutedsl", "DONE", "(0)", "2.7s", "21.77->8.49"]
    assert [line[0] for line in lines if line and line[0].startswith("2026")] == [
        name[:16] for name in (TORN_DOWN, RESTORED, MEASURED_AGAIN, RELAUNCHED, MEASURED)
    ]


@pytest.mark.parametrize("words_", [("history",), ("show",), ("report",), ("export",)])
def test_before_the_first_run_it_is_told_what_makes_one(box: Box, words_: tuple[str, ...]) -> None:
    ended = run(box, *words_)
    assert ended.code == (0 if words_ == ("history",) else 2)
    said = words(ended.out + ended.err)
    assert "relaunch, launch, teardown, rollback, roll, sweep, prep, measure, budget, profile and runbook.run keep one each" in said
    assert "next: fab measure # times the server that runs and changes nothing" in said


def test_history_as_json_has_every_figure(kept: Box) -> None:
    document = run(kept, "history", "--verb", "measure", "--limit", "1", "--json").document
    assert (document["schema"], document["verb"]) == ("1", "history")
    [found] = document["runs"]
    assert (found["name"], found["believed"], found["exit_code"]) == (MEASURED_AGAIN, True, 0)
    assert found["token_seconds"] == pytest.approx(0.0085, abs=1e-4)
    assert Path(found["path"]).is_dir()
    assert document["unreadable"] == []


def test_history_marks_a_timing_that_is_not_believed_and_tells_what_can_not_be_read(kept: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    keep(kept.folder / "runs", doubted(timed("one", "triton", [(1, 10.0)])))
    (kept.folder / "runs" / "odd").mkdir()
    ended = run(kept, "history", "--limit", "0")
    assert ended.code == 0
    assert "10.00 ?" in ended.out
    assert "not believed [others] (9)" in words(ended.out)
    assert "odd: run.json: No such file or directory" in ended.out


@pytest.mark.parametrize(
    ("flags", "count"), [(("--since", "2026-11-01"), 5), (("--since", "2126-11-01"), 0), (("--since", "1m"), 0), (("--limit", "2"), 2)]
)
def test_history_of_a_span_of_time(kept: Box, flags: tuple[str, str], count: int) -> None:
    assert len(run(kept, "history", *flags, "--json").document["runs"]) == count


@pytest.mark.parametrize("flags", [("--since", "yesterday"), ("--since", "3y"), ("--limit", "many")])
def test_flags_that_make_no_sense(kept: Box, flags: tuple[str, str]) -> None:
    ended = run(kept, "history", *flags)
    assert ended.code == 2
    assert flags[0] in ended.err


def test_history_without_any_run_makes_nothing(box: Box) -> None:
    ended = run(box, "history")
    assert ended.code == 0
    assert "there are none yet" in ended.out
    assert not (box.folder / "runs").exists()


def test_a_rebuild_finds_the_same(kept: Box) -> None:
    assert run(kept, "history", "--json").document["runs"] == run(kept, "history", "--rebuild", "--json").document["runs"]


def test_what_a_relaunch_and_a_timing_keep_now_is_read_again(box: Box) -> None:
    assert run(box, *RELAUNCH).code == 0
    assert box.run(measuring(), "measure").code == 0
    document = run(box, "history", "--json").document
    ended = {(found["verb"], found["ended"], found["exit_code"]) for found in document["runs"]}
    assert ended == {("relaunch", "DONE", 0), ("measure", "measured", 0)}
    assert document["unreadable"] == []
    for found in document["runs"]:
        assert run(box, "show", found["name"], "--json").document["problems"] == []
    out = box.folder / "page.html"
    made = run(box, "report", "--out", str(out), "--json").document
    assert (made["timings"], made["changes"]) == (1, 1)
    assert CANARY not in out.read_text(encoding="utf-8")


def test_show_has_all_of_a_relaunch_that_was_put_back(kept: Box) -> None:
    ended = run(kept, "show", RESTORED[:16])
    assert ended.code == 0
    shown = words(ended.out)
    for expected in (
        "$ orchestrator relaunch --backend flashinfer_cutedsl --yes --host lab-rtx6000",
        "ended: RESTORED [kernel_missing], exit code 6",
        "argument --moe-runner-backend auto flashinfer_cutedsl the backend",
        "warn compute_capability: nobody has shown the backend to work",
        "21 of 26 checks passed",
        "15.2 1.0 weights shards 8/8",
        "nothing answered from 14.8 s to 24.5 s",
        "time per output token, ms 24.50 (24.41-24.56)",
        "OpError: expects arch to be one of",
        "the previous server serves again; dark for 9.7 s; no requests lost",
        "next: fab logs --host lab-rtx6000",
        "journal.jsonl (11 kB)",
    ):
        assert expected in shown, expected


def test_show_has_all_of_a_timing(kept: Box) -> None:
    shown = words(run(kept, "show", MEASURED_AGAIN).out)
    for expected in ("ended: measured, exit code 0", "8.47 (8.35-8.68)", "what it depends on", "backend flashinfer_cutedsl, launch"):
        assert expected in shown, expected


def test_show_without_a_name_and_last_are_the_run_that_began_last(kept: Box) -> None:
    assert run(kept, "show").out.splitlines()[0] == run(kept, "show", "last").out.splitlines()[0] == TORN_DOWN


def test_show_as_json_has_the_files_as_they_were_kept(kept: Box) -> None:
    document = run(kept, "show", RELAUNCHED, "--json").document
    folder = kept.folder / "runs" / RELAUNCHED
    assert document["plan"] == json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert document["result"] == json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert document["ending"] == {"exit_code": 0, "word": "DONE", "category": ""}
    assert document["course"]["dark"]["ended"] > document["course"]["dark"]["began"]
    assert document["problems"] == []


@pytest.mark.parametrize(
    ("name", "says"), [("2026", "5 runs begin with 2026"), ("2027", "no run 2027"), ("odd", "can't be read: run.json"), ("a,b", "one run")]
)
def test_show_of_what_is_no_run_is_a_mistake_of_the_command_line(kept: Box, name: str, says: str) -> None:
    (kept.folder / "runs" / "odd").mkdir()
    ended = run(kept, "show", name)
    assert ended.code == 2
    assert says in words(ended.err)
    assert "next: fab" in ended.err


def test_show_of_a_plan_of_another_version_tells_what_it_can(kept: Box) -> None:
    path = kept.folder / "runs" / RELAUNCHED / "plan.json"
    plan = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**plan, "policy": 5}), encoding="utf-8")
    ended = run(kept, "show", RELAUNCHED)
    assert ended.code == 0
    assert "plan.json can't be understood: policy" in words(ended.out)
    assert "dark for 2.7 s" in ended.out


def test_show_of_a_run_that_was_cut_off(kept: Box) -> None:
    keep_record(kept.folder / "runs" / "20990101T000000Z-relaunch-gpu1-glm5", "relaunch", started=4_070_908_800.0)
    assert "ended: cut off" in run(kept, "show").out


def test_report_writes_one_page_that_is_the_operators_alone(kept: Box) -> None:
    out = kept.folder / "page.html"
    ended = run(kept, "report", "--out", str(out))
    assert ended.code == 0
    assert f"2 timings and 3 changes are in {out}" in ended.out
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "glm5-b200 in lab-b200" in text
    assert "glm5-rtx6000 in lab-rtx6000" in text
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [path.name for path in kept.folder.iterdir() if "page" in path.name] == ["page.html"]


def test_report_of_named_runs_or_of_one_service(kept: Box) -> None:
    out = kept.folder / "page.html"
    named = run(kept, "report", MEASURED[:16], RELAUNCHED, "--out", str(out), "--json").document
    assert (named["timings"], named["changes"], named["run_names"]) == (1, 1, [MEASURED, RELAUNCHED])
    one = run(kept, "report", "--service", "glm5-rtx6000", "--out", str(out), "--json").document
    assert one["run_names"] == [RESTORED, TORN_DOWN]


def test_report_to_standard_output(kept: Box) -> None:
    ended = run(kept, "report", "--out", "-")
    assert ended.out.rstrip().endswith("</html>")
    assert run(kept, "report", "--out", "-", "--json").code == 2


def test_report_hides_nothing_that_could_not_be_read(kept: Box) -> None:
    (kept.folder / "runs" / "odd").mkdir()
    out = kept.folder / "page.html"
    assert run(kept, "report", "--out", str(out)).code == 0
    assert "Runs that could not be read" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--service", "other"), 2, "there is no such run"),
        (("--out", "nowhere/page.html"), 2, "there is no folder"),
        (("--out", "."), 1, "can't be written"),
        (("2027",), 2, "no run 2027"),
    ],
)
def test_a_report_that_can_not_be_made(kept: Box, flags: tuple[str, ...], code: int, says: str) -> None:
    ended = run(kept, "report", *flags)
    assert ended.code == code
    assert says in ended.err


def test_export_writes_a_line_for_each_repeat(kept: Box) -> None:
    ended = run(kept, "export", "--format", "sglang", MEASURED)
    assert ended.code == 0
    cases = [json.loads(line) for line in ended.out.splitlines()]
    assert len(cases) == 18
    assert {case["run_name"] for case in cases} == {MEASURED}
    out = kept.folder / "cases.jsonl"
    assert run(kept, "export", "--out", str(out), "--json").document["count"] == 36
    assert len(out.read_text(encoding="utf-8").splitlines()) == 36
    printed = run(kept, "export", MEASURED, "--json").document
    assert (printed["path"], printed["count"], printed["rows"]) == (None, 18, cases)


def test_export_of_what_is_not_believed_is_refused_unless_told(kept: Box) -> None:
    name = keep(kept.folder / "runs", doubted(timed("one", "triton", [(1, 10.0)]))).name
    refused = run(kept, "export", name)
    assert refused.code == 9
    assert "others: 3 requests ran at once" in refused.err
    assert refused.out == ""
    assert len(run(kept, "export", name, "--invalid").out.splitlines()) == 6


def test_export_of_another_format_or_without_a_timing(kept: Box) -> None:
    assert run(kept, "export", "--format", "csv").code == 2
    assert "no decode timing among these runs" in run(kept, "export", RESTORED).err
