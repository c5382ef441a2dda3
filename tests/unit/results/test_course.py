"""The course of an order on one axis, from real journals and made-up ones."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire import State
from orchestrator.results.course import Course, course_of, read_course
from orchestrator.results.kept_runs import read_run
from tests.unit.flows.samples import done
from tests.unit.results.kept_samples import LAB_RUNS, MEASURED, RELAUNCHED, RESTORED


def course(name: str) -> Course:
    found = read_course(read_run(LAB_RUNS / name))
    assert found is not None
    return found


def test_the_states_follow_each_other_without_a_gap() -> None:
    for name in (RELAUNCHED, RESTORED):
        steps = course(name).steps
        assert steps[0].span.began == 0.0
        assert steps[-1].span.seconds == 0.0
        assert [step.span.ended for step in steps[:-1]] == [step.span.began for step in steps[1:]]
        assert all(step.span.began <= phase.began <= phase.ended <= step.span.ended for step in steps for phase in step.phases)


def test_the_phases_of_a_staged_load_lie_in_its_states() -> None:
    phases = {step.span.name: [phase.name for phase in step.phases] for step in course(RELAUNCHED).steps}
    assert phases["STAGING"] == ["imports", "distributed", "gate"]
    assert {"weights", "graph_capture", "warm_up"} <= set(phases["LOADING"])


@pytest.mark.parametrize("name", [RELAUNCHED, RESTORED])
def test_the_dark_time_begins_in_the_stop_and_ends_with_the_first_good_answer(name: str) -> None:
    found = course(name)
    result = read_run(LAB_RUNS / name).result
    assert result is not None
    assert found.dark is not None
    assert found.dark.seconds == pytest.approx(result.dark_seconds)
    stop = next(step.span for step in found.steps if step.span.name == State.STOPPING)
    answer = next(step.span for step in found.steps if step.span.name == State.ANSWERING)
    assert stop.began <= found.dark.began <= stop.ended
    assert found.dark.ended == pytest.approx(answer.began, abs=0.1)


def test_what_was_heard_here_is_enough_where_the_journal_did_not_come(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(LAB_RUNS / RESTORED, tmp_path / RESTORED))
    (folder / "journal.jsonl").unlink()
    (folder / "progress.jsonl").unlink()
    heard = read_course(read_run(folder))
    assert heard is not None
    assert [step.span for step in heard.steps] == [step.span for step in course(RESTORED).steps]
    (folder / "events.jsonl").unlink()
    assert read_course(read_run(folder)) is None


def test_a_timing_has_no_course() -> None:
    assert read_course(read_run(LAB_RUNS / MEASURED)) is None


def entry(sequence: int, state: str, at: float, monotonic: float, **data: object) -> wire.StateEntry:
    return wire.StateEntry(sequence, state, at, monotonic, "because", dict(data))


STOPPED = {"summary": "stopped", "last_answer": 12.0, "lost_requests": 0, "evidence": [], "answered_at": 1012.0, "boot": "a"}


def test_after_a_reboot_the_wall_clock_counts() -> None:
    states = [
        entry(1, State.CHECKED, 1000.0, 500.0),
        entry(2, State.CLEAN, 1020.0, 520.0, stopped=STOPPED),
        entry(3, State.LOADING, 1100.0, 5.0),
        entry(4, State.DONE, 1130.0, 35.0),
    ]
    found = course_of(states, [], done(dark_seconds=110.0))
    assert [step.span.began for step in found.steps] == [0.0, 20.0, 100.0, 130.0]
    assert found.dark is not None
    assert (found.dark.began, found.dark.ended) == (12.0, 122.0)


def test_without_a_last_answer_nobody_knows_when_it_went_dark() -> None:
    states = [entry(1, State.CHECKED, 1000.0, 10.0), entry(2, State.CLEAN, 1001.0, 11.0, stopped={"summary": "it was dead"})]
    assert course_of(states, [], done(dark_seconds=5.0)).dark is None
    assert course_of(states, [], None).dark is None


def test_an_order_that_was_cut_off_ends_where_it_was_heard_of_last() -> None:
    states = [entry(1, State.CHECKED, 1000.0, 10.0), entry(2, State.LOADING, 1002.0, 12.0)]
    progress = [
        wire.Progress(State.LOADING, "weights", 3.0, "shards 1/8", 2),
        wire.Progress(State.LOADING, "weights", 4.0, "shards 2/8", 2),
    ]
    found = course_of(states, progress, None)
    assert found.seconds == 2.0
    assert [(phase.name, phase.detail) for phase in found.steps[1].phases] == [("weights", "shards 2/8")]


def test_a_phase_lasts_from_its_first_word_to_the_next_phases() -> None:
    states = [entry(1, State.LOADING, 1000.0, 10.0), entry(2, State.DONE, 1010.0, 20.0)]
    spoken = [("imports", 0.5), ("weights", 2.0), ("weights", 4.0), ("kv_cache", 7.0), ("weights", 9.0)]
    progress = [wire.Progress(State.LOADING, phase, elapsed, "", 1) for phase, elapsed in spoken]
    others = [dataclasses.replace(progress[0], sequence=2), dataclasses.replace(progress[0], state=State.STAGING)]
    [loading, _] = course_of(states, [*progress, *others], None).steps
    assert [(phase.name, phase.began, phase.ended) for phase in loading.phases] == [
        ("imports", 0.5, 2.0),
        ("weights", 2.0, 7.0),
        ("kv_cache", 7.0, 9.0),
        ("weights", 9.0, 10.0),
    ]
