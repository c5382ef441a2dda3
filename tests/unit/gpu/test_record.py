"""The record of a GPU run: what is due, what a killed call leaves, the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.record import RunRecord, StepRecord, Verdict, chosen_steps, load, save, table

NAMES = ("doctor", "launch", "measure", "relaunch")


def done(**verdicts: str) -> dict[str, StepRecord]:
    return {name: StepRecord(name, verdict) for name, verdict in verdicts.items()}


def test_a_later_call_takes_what_is_not_settled() -> None:
    earlier = done(doctor=Verdict.PASSED, launch=Verdict.FAILED, measure=Verdict.BEGUN, relaunch=Verdict.NOT_RUN)
    assert chosen_steps(NAMES, {}) == list(NAMES)
    assert chosen_steps(NAMES, earlier) == ["measure", "relaunch"]


def test_a_settled_step_is_repeated_only_when_it_is_named() -> None:
    earlier = done(doctor=Verdict.PASSED, launch=Verdict.FAILED)
    assert chosen_steps(NAMES, earlier, only=["launch", "measure"]) == ["measure"]
    assert chosen_steps(NAMES, earlier, only=["measure"], again=["doctor"]) == ["doctor", "measure"]
    assert chosen_steps(NAMES, earlier, again=["launch"]) == ["launch", "measure", "relaunch"]


def test_an_unknown_step_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no step reluanch; there are doctor, launch, measure, relaunch"):
        chosen_steps(NAMES, {}, only=["reluanch"])


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    kept = RunRecord(machine={"GPU": "none"}, columns=["| a |"], settings={"ports": {"ssh": 1}}, calls=2)
    kept.put(StepRecord("doctor", Verdict.PASSED, seen=["15 checks"], began=1.5, seconds=2.5, prepared=0.5, call=1))
    save(kept, path)
    assert load(path) == kept
    assert [entry.name for entry in tmp_path.iterdir()] == ["steps.json"]


def test_nothing_is_kept_yet(tmp_path: Path) -> None:
    assert load(tmp_path / "steps.json") == RunRecord()


@pytest.mark.parametrize("text", ["{}", '{"schema": "orchestrator.run/1"}', "[]", "torn"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own error is one
        load(path)


def test_the_table_has_every_step_and_no_cell_of_its_own_making() -> None:
    kept = RunRecord(machine={"GPU": "NVIDIA H200"}, columns=["| batch |"])
    kept.put(StepRecord("doctor", Verdict.FAILED, ["exit code 3 | refused"], ["two\nlines"], seconds=12.4, prepared=0.2))
    kept.put(StepRecord("launch", Verdict.NOT_RUN, ["needs a GPU"], seconds=3.0))
    lines = table(kept, NAMES).splitlines()
    assert lines[0] == "- GPU: NVIDIA H200"
    assert "| doctor | failed | 12 | 0 | exit code 3 / refused; two lines |" in lines
    assert "| launch | not run |  |  | needs a GPU |" in lines
    assert "| relaunch | not run |  |  | not reached |" in lines
    assert lines[-1] == "| batch |"
