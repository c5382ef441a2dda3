"""``fab sweep`` over a box that remembers: its plan, its table, its documents, its flags and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.sweep import parsed_values
from orchestrator.errors import UsageError
from tests.unit.cli.test_verbs import Box, box
from tests.unit.flows.samples import CANARY
from tests.unit.flows.swept_box import STARTED, SweptBox

__all__ = ["box"]

SWEEP = ("sweep", "--backends", "auto,flashinfer_cutedsl", "--batch", "1,4", "--yes")
SPEEDS = {"auto": 20.0, "flashinfer_cutedsl": 16.0}


def words(text: str) -> str:
    return " ".join(text.split())


def sweep_folder(box: Box) -> Path:
    (folder,) = (path for path in box.runs if "-sweep-" in path.name)
    return folder


def test_the_screen_has_the_plan_a_line_a_step_and_one_table(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = box.run(SweptBox(milliseconds=SPEEDS), *SWEEP)
    assert ended.code == 0, ended.err
    said = words(ended.out)
    for expected in (
        "sweep of glm5 in gpu1/101",
        "2 relaunches, each with a timing of batch 1, 4; order 1 2",
        "staged, dark for about 44 s (41 to 46 s)",
        "dark for about 1 min 28 s in all, by earlier switches here",
        "takes: not known (no relaunch is kept here; a timing takes at most 15 min 00 s)",
        "it ends on the best point at batch 1",
        f"on launch {STARTED} again",
        "with one launch a point that spread is assumed, not seen; --rounds 2",
        "1/2 DONE: auto serves",
        "1/2 batch 1: 20.00 ms a token",
        "2 flashinfer_cutedsl 1 of 1 1 16.00",
        "0.800",
        "faster by 20 %",
        "one launch a side: blind to how launches differ",
        "best is flashinfer_cutedsl: 16.00 ms a token at batch 1; flashinfer_cutedsl serves, as launch",
        "service: dark for 8.0 s in all, in 2 relaunches; no requests lost",
    ):
        assert expected in said, expected
    assert ended.out.splitlines()[-1] == f"kept in {sweep_folder(box)}"
    assert {path.name for path in sweep_folder(box).iterdir()} == {"run.json", "sweep.jsonl", "sweep.json"}
    assert CANARY not in ended.out + ended.err + box.all_kept()


def test_as_json_there_is_one_document_and_it_is_kept(box: Box) -> None:
    ended = box.run(SweptBox(milliseconds=SPEEDS, ends={"auto": "RESTORED"}), *SWEEP, "--json")
    assert ended.code == 6
    document = ended.document
    assert (document["verb"], document["exit_code"], document["choice"]["best"]) == ("sweep", 6, 1)
    assert document["points"][0]["troubles"] == ["RESTORED: no kernel [kernel_missing]"]
    assert [step["end"]["kind"] for step in document["steps"]] == ["changed", "timed"]
    kept = json.loads((sweep_folder(box) / "sweep.json").read_text(encoding="utf-8"))
    envelope = {"verb": "sweep", "error": None, "run": str(sweep_folder(box))}
    assert document == {**kept, **envelope, "schema": "1"}
    assert "1/2  RESTORED: no kernel [kernel_missing]" in ended.err


def test_a_sweep_is_in_the_history_and_can_be_shown_again(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    agent = SweptBox(milliseconds=SPEEDS, refused={"flashinfer_cutedsl": "it is held"}, raising={"measure": [KeyboardInterrupt()]})
    assert box.run(agent, *SWEEP).code == 130
    name = sweep_folder(box).name
    unfinished = box.run(agent, "show", name)
    assert "ended: error, exit code 130" in unfinished.out
    assert "not finished; so far no point has a timing to be believed at batch 1; auto serves" in words(unfinished.out)
    assert f"next: fab sweep --host gpu1 --service glm5 --resume {name}" in unfinished.out
    ended = box.run(agent, "sweep", "--resume", "--yes")
    assert ended.code == 6
    shown = box.run(agent, "show", name)
    assert "ended: swept, exit code 6" in shown.out
    table = ended.out[ended.out.rindex("  point ") : ended.out.index("kept in")].strip()
    assert table in shown.out, "as it was shown when it ended"
    assert "next:" not in shown.out
    listed = box.run(agent, "history", "--json").document["runs"]
    assert sorted((run["verb"], run["exit_code"]) for run in listed) == [("measure", 0), ("relaunch", 0), ("relaunch", 3), ("sweep", 6)]
    assert box.run(agent, "history", "--json").document["unreadable"] == []


def test_what_was_swept_is_told_as_the_services_file_would_have_it(box: Box) -> None:
    flags = ("--backends", "auto", "--set", "max-running-requests=32,64", "--set", "--disable-radix-cache=true,false")
    ended = box.run(SweptBox(), "sweep", *flags, "--batch", "1", "--yes")
    assert ended.code == 0, ended.err
    assert "to keep it, write under `arguments:` of the service glm5; until then a relaunch calls it drift" in words(ended.out)
    kept = ended.out[ended.out.index("to keep it") :]
    assert "    --max-running-requests: 64\n    --disable-radix-cache: false\n" in kept


def test_a_plan_touches_nothing_and_leaves_nothing(box: Box) -> None:
    agent = SweptBox(refused={"auto": "it is held"})
    ended = box.run(agent, *SWEEP, "--plan")
    assert (ended.code, box.runs, agent.orders) == (0, [], [])
    assert "refused, and skipped" in words(ended.out)
    assert "port: it is held" in ended.out
    document = box.run(SweptBox(), *SWEEP, "--plan", "--json").document
    assert document["plan"]["steps"] == [0, 1]
    assert document["plan"]["design"]["timing"]["batch_sizes"] == [1, 4]


def test_nobody_can_be_asked(box: Box) -> None:
    agent = SweptBox()
    ended = box.run(agent, *SWEEP[:-1])
    assert (ended.code, agent.orders, box.runs) == (2, [], [])
    assert "nobody can be asked here" in ended.err


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"ends": {"auto": "RESTORED"}}, 6),
        ({"ends": {"auto": "REFUSED"}}, 6),
        ({"refused": {"auto": "it is held"}}, 6),
        ({"invalid": {"auto"}}, 6),
        ({"invalid": {"auto", "flashinfer_cutedsl"}}, 9),
        ({"ends": {"auto": "RESTORED", "flashinfer_cutedsl": "RESTORED"}}, 9),
        ({"ends": {"auto": "DOWN"}}, 7),
        ({"up": False}, 3),
        ({"drift": True}, 3),
    ],
    ids=str,
)
def test_the_exit_codes(box: Box, changes: dict[str, Any], code: int) -> None:
    ended = box.run(SweptBox(milliseconds=SPEEDS, **changes), *SWEEP)
    assert ended.code == code, ended.err + ended.out


def test_a_sweep_that_was_interrupted_is_taken_up_again(box: Box) -> None:
    agent = SweptBox(milliseconds=SPEEDS, raising={"measure": [KeyboardInterrupt()]})
    cut = box.run(agent, *SWEEP, "--reason", "night shift")
    assert cut.code == 130
    step = f"next: fab sweep --host gpu1 --service glm5 --resume {sweep_folder(box).name}"
    assert step in cut.err.splitlines()
    planned = box.run(agent, "sweep", "--resume", "--plan")
    assert planned.code == 0
    assert "the launch that serves was not timed yet, which comes first" in planned.out
    assert "1 relaunch, each with a timing" in planned.out
    resumed = box.run(agent, "sweep", "--resume", "--yes", "--json")
    assert resumed.code == 0, resumed.err
    assert agent.launched == ["auto", "flashinfer_cutedsl"]
    assert all(order.reason.endswith("(night shift)") for order in agent.orders)
    assert resumed.document["run"] == str(sweep_folder(box))
    over = box.run(agent, "sweep", "--resume", sweep_folder(box).name, "--yes")
    assert over.code == 2
    assert "has finished" in over.err
    assert "no unfinished sweep" in box.run(agent, "sweep", "--resume").err


def test_what_a_file_says(box: Box) -> None:
    folder = box.folder / "inventory" / "sweeps"
    folder.mkdir()
    text = (
        "name: mine\nsummary: s\ngrid:\n  backends: [auto]\n  arguments:\n    --x: [1, 2]\nrounds: 2\ntiming: {batch: [4, 1], repeats: 3}\n"
    )
    (folder / "mine.yml").write_text(text)
    design = box.run(SweptBox(), "sweep", "--file", "mine", "--plan", "--json").document["plan"]["design"]
    assert [point["arguments"] for point in design["points"]] == [{"--x": 1}, {"--x": 2}]
    assert (design["rounds"], design["best_at"], design["timing"]["batch_sizes"], design["timing"]["repeats"]) == (2, 4, [4, 1], 3)
    more = ("--rounds", "1", "--batch", "16,1", "--best-at", "1", "--restore")
    design = box.run(SweptBox(), "sweep", "--file", "mine", *more, "--plan", "--json").document["plan"]["design"]
    assert (design["rounds"], design["best_at"], design["timing"]["batch_sizes"]) == (1, 1, [16, 1])
    assert (design["timing"]["repeats"], design["restore"]) == (3, True)
    (folder / "mine.yml").write_text(text.replace("auto", "atuo"))
    wrong = box.run(SweptBox(), "sweep", "--file", "mine")
    assert wrong.code == 2
    assert f"{folder}/mine.yml:4: grid.backends[0]: there is no backend profile 'atuo'" in words(wrong.err)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "what is to be tried?"),
        (("--set", "x=1"), "service glm5 names no backend of its own"),
        (("--backends", "nope"), "there is no backend profile 'nope'"),
        (("--backends", "auto,auto"), "the point 'auto' comes twice"),
        (("--backends", "auto", "--set", "x"), "--set takes FLAG=VALUE,VALUE"),
        (("--backends", "auto", "--set", "x=1", "--set", "--x=2"), "--set names --x twice"),
        (("--backends", "auto", "--set", "port=1"), "write the service's port:"),
        (("--backends", "auto", "--set", "moe-runner-backend=x"), "backend profile auto sets --moe-runner-backend itself"),
        (("--backends", "auto", "--file", "mine"), "--file says what to try, and so does --backends"),
        (("--backends", "auto", "--batch", "1", "--best-at", "4"), "--best-at 4 is not among the batch sizes"),
        (("--backends", "auto", "--rounds", "0"), "--rounds takes 1 or more"),
        (("--backends", "auto", "--output", "4"), "--output takes 8 or more"),
        (("--resume", "--backends", "auto"), "--backends can't be changed"),
        (("--resume", "--force", "--grace", "3", "--reason", "why"), "--force, --grace, --reason can't be changed"),
        (("--resume", "nowhere"), "no sweep nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_can_not_be_meant(box: Box, flags: tuple[str, ...], said: str) -> None:
    ended = box.run(SweptBox(), "sweep", *flags, "--yes")
    assert ended.code == 2, ended.err + ended.out
    assert said in words(ended.err)
    assert box.runs == []


def test_help_is_not_taken_for_a_value(box: Box) -> None:
    for flags in (("--set", "--help"), ("--backends", "--help")):
        ended = box.run(SweptBox(), "sweep", *flags)
        assert ended.code == 0
        assert "--resume" in ended.out


def test_values_are_read_as_yaml_would() -> None:
    assert parsed_values(["a=1, 2", "--b_c=true,false", "d=0.5,x,01"]) == {"--a": [1, 2], "--b-c": [True, False], "--d": [0.5, "x", "01"]}
    for text in ("a", "a=", "a=,"):
        with pytest.raises(UsageError):
            parsed_values([text])
