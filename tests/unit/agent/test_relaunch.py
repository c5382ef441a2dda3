"""Every path through the state machine, walked with steps that only remember what was asked of them."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.clock import SteadyClock
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.relaunch import Relaunch
from orchestrator.agent.relaunch_words import dark_seconds
from orchestrator.agent.steps import CAPACITY_CHECK, Previous, Stopped
from orchestrator.agent.wire import OrderKind, Outcome, State
from tests.unit.agent.remembering_steps import DIRTY, OLD, OLD_LAUNCH, TIMING, ListJournal, RememberingSteps, carry_out, order


def test_relaunch_walks_every_state_in_order_and_measures_both_servers() -> None:
    steps = RememberingSteps()
    result, states = carry_out(order(), steps)
    assert " ".join(states) == ("CHECKED LOCKED BASELINE WARMING DRAINING STOPPING CLEAN STARTING LOADING ANSWERING VERIFIED MEASURED DONE")
    before, after = (
        ["capture", "observe", "measure old", "warm new", "warmed new", "remember"],
        ["mark_verified new", "come_back new", "measure new"],
    )
    assert steps.calls == [*before, "stop", "start new", *after]
    assert (result.state, result.exit_code, result.dark_seconds) == (State.DONE, 0, 2.5)
    assert result.baseline == result.measured == TIMING


def test_what_the_operator_overruled_is_in_the_journals_first_line() -> None:
    journal = ListJournal()
    asked = dataclasses.replace(order(), overruled=["compute_capability: not for 12.0"])
    Relaunch(asked, RememberingSteps(), journal).run()
    assert journal.data[0]["overruled"] == {"by": "ann@laptop", "checks": ["compute_capability: not for 12.0"]}
    journal = ListJournal()
    Relaunch(order(), RememberingSteps(), journal).run()
    assert "overruled" not in journal.data[0]


def test_without_measuring_nothing_is_timed() -> None:
    steps = RememberingSteps()
    result, states = carry_out(order(measure=False), steps)
    assert "MEASURED" not in states
    assert not [call for call in steps.calls if call.startswith("measure")]
    assert result.measured is None


def test_a_launch_that_fails_is_cleared_away_and_the_previous_one_serves_again() -> None:
    steps = RememberingSteps(failing={"new"})
    result, states = carry_out(order(), steps)
    assert states[-5:] == ["ROLLING_BACK", "STARTING", "LOADING", "ANSWERING", "RESTORED"]
    assert steps.calls[-5:] == ["start new", "stop_launch new", "start back", "mark_verified back", "come_back back"]
    assert (result.state, result.exit_code, result.launch_id) == (State.RESTORED, 6, "back")
    assert result.failure is not None
    assert result.failure.category == "out_of_memory"


def test_a_server_that_answers_wrongly_is_rolled_back() -> None:
    steps = RememberingSteps(verdict=wire.Verdict("answers", Outcome.REFUSE, "mean log-likelihood fell by 3.1 nats"))
    result, states = carry_out(order(), steps)
    assert "VERIFIED" not in states
    assert (result.state, result.exit_code) == (State.RESTORED, 6)
    assert result.failure is not None
    assert "3.1 nats" in result.failure.summary


def test_an_unexpected_error_after_the_stop_still_brings_the_service_back() -> None:
    result, _ = carry_out(order(), RememberingSteps(failing={"start new"}))
    assert (result.state, result.exit_code) == (State.RESTORED, 6)


def test_rollback_of_somebodys_unit_starts_the_unit() -> None:
    steps = RememberingSteps(previous=Previous(OLD_LAUNCH, unit="sglang.service"), failing={"new"})
    result, _ = carry_out(order(), steps)
    assert steps.calls[-1] == "start_unit sglang.service"
    assert result.exit_code == 6


@pytest.mark.parametrize("steps", [RememberingSteps(failing={"new", "back"}), RememberingSteps(failing={"new", "start back"})])
def test_when_the_previous_server_fails_too_the_service_is_down(steps: RememberingSteps) -> None:
    result, states = carry_out(order(), steps)
    assert states[-1] == State.DOWN
    assert result.exit_code == 7


def test_nothing_is_started_on_top_of_what_the_old_server_left() -> None:
    steps = RememberingSteps(dirty_after={"old"})
    result, states = carry_out(order(), steps)
    assert (states[-1], result.exit_code) == (State.DOWN, 7)
    assert DIRTY.detail in result.summary
    assert result.next_step == DIRTY.next_step
    assert not [call for call in steps.calls if call.startswith("start")]


def test_nothing_is_started_on_top_of_what_the_failed_launch_left() -> None:
    steps = RememberingSteps(failing={"new"}, dirty_after={"new"})
    result, _ = carry_out(order(), steps)
    assert result.exit_code == 7
    assert "start back" not in steps.calls


def test_a_launch_where_nothing_served_has_nothing_to_roll_back_to() -> None:
    steps = RememberingSteps(server=None, failing={"new"})
    result, states = carry_out(order(OrderKind.LAUNCH, old=None), steps)
    assert states == ["CHECKED", "LOCKED", "STARTING", "LOADING", "ROLLING_BACK", "DOWN"]
    assert (result.exit_code, steps.calls) == (7, ["start new", "stop_launch new"])


def test_teardown_stops_and_starts_nothing() -> None:
    steps = RememberingSteps()
    result, states = carry_out(order(OrderKind.TEARDOWN, new=None), steps)
    assert states == ["CHECKED", "LOCKED", "DRAINING", "STOPPING", "CLEAN", "DONE"]
    assert steps.calls == ["capture", "remember", "stop"]
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        (OLD, order(old=None)),
        (None, order()),
        (replace(OLD, main=wire.ProcessId(100, 9999)), order()),
        (OLD, order(OrderKind.TEARDOWN, old=None, new=None)),
    ],
)
def test_another_situation_than_the_plan_showed_is_refused_untouched(server: wire.ServerInfo | None, asked: wire.Order) -> None:
    steps = RememberingSteps(server=server)
    result, states = carry_out(asked, steps)
    assert (states, result.exit_code, steps.calls) == (["REFUSED"], 3, [])


def test_what_an_earlier_launch_left_is_ended_before_the_next_start() -> None:
    steps = RememberingSteps(server=None, left=("process 7 (sglang::scheduler)",))
    result, states = carry_out(order(OrderKind.LAUNCH, old=None, measure=False), steps)
    assert states == ["CHECKED", "LOCKED", "STOPPING", "CLEAN", "STARTING", "LOADING", "ANSWERING", "VERIFIED", "DONE"]
    assert steps.calls[:2] == ["end_leftovers", "start new"]
    assert result.exit_code == 0


def test_a_teardown_with_only_leftovers_says_what_it_ended() -> None:
    steps = RememberingSteps(server=None, left=("process 7 (sglang::scheduler)",))
    result, _ = carry_out(order(OrderKind.TEARDOWN, old=None, new=None), steps)
    assert "1 processes left" in result.summary


def test_nothing_is_started_on_top_of_leftovers_that_resist() -> None:
    steps = RememberingSteps(server=None, left=("process 7",), dirty_after={"leftovers"})
    result, _ = carry_out(order(OrderKind.LAUNCH, old=None), steps)
    assert (result.exit_code, steps.calls) == (7, ["end_leftovers"])


def test_a_timing_that_breaks_costs_no_serving_server() -> None:
    steps = RememberingSteps(failing={"observe", "measure old", "measure new"})
    result, states = carry_out(order(), steps)
    assert (states[-1], result.exit_code) == (State.DONE, 0)
    assert result.baseline is not None
    assert result.measured is not None
    assert "not what was expected" in str(result.baseline.skipped)
    assert "not what was expected" in str(result.measured.skipped)


def test_the_next_step_names_the_launch_that_failed() -> None:
    result, _ = carry_out(order(), RememberingSteps(failing={"new"}))
    assert str(result.next_step).startswith("fab logs --launch new ")


def test_a_stop_that_breaks_off_half_way_is_rolled_back() -> None:
    steps = RememberingSteps(failing={"stop"})
    result, states = carry_out(order(), steps)
    assert states[4:] == ["DRAINING", "ROLLING_BACK", "STARTING", "LOADING", "ANSWERING", "RESTORED"]
    assert "start back" in steps.calls
    assert (result.exit_code, result.summary) == (6, "processes can't be held")


def test_a_stop_that_breaks_off_is_not_rolled_back_onto_what_is_left() -> None:
    steps = RememberingSteps(failing={"stop"}, dirty_after={"old"})
    result, _ = carry_out(order(), steps)
    assert (result.state, result.exit_code) == (State.DOWN, 7)
    assert not [call for call in steps.calls if call.startswith("start")]


def test_a_teardown_that_breaks_off_starts_nothing() -> None:
    steps = RememberingSteps(failing={"stop"})
    result, _ = carry_out(order(OrderKind.TEARDOWN, new=None), steps)
    assert (result.state, result.exit_code) == (State.DOWN, 7)
    assert not [call for call in steps.calls if call.startswith("start")]


def test_what_is_refused_before_the_first_signal_leaves_the_server_alone() -> None:
    steps = RememberingSteps(failing={"refused stop"})
    machine = Relaunch(order(), steps, ListJournal())
    with pytest.raises(AgentRefusal):
        machine.run()
    assert not machine.touched
    assert not [call for call in steps.calls if call.startswith("start")]


def test_ending_leftovers_counts_as_touching() -> None:
    machine = Relaunch(order(OrderKind.LAUNCH, old=None), RememberingSteps(server=None, left=("7",), failing={"leftovers"}), ListJournal())
    with pytest.raises(ValueError, match="not what was expected"):
        machine.run()
    assert machine.touched


def test_a_previous_server_that_fails_too_is_not_left_loading() -> None:
    steps = RememberingSteps(failing={"new", "back"})
    result, _ = carry_out(order(), steps)
    assert steps.calls[-1] == "stop_launch back"
    assert result.launch_id == "back"


def test_a_server_that_died_while_it_was_timed_is_rolled_back() -> None:
    steps = RememberingSteps(failing={"skip new", "serves new"})
    result, _ = carry_out(order(), steps)
    assert (result.state, result.exit_code, result.summary) == (State.RESTORED, 6, "new was killed")


def test_a_look_that_breaks_after_a_skipped_timing_costs_no_serving_server() -> None:
    steps = RememberingSteps(failing={"skip new", "look at new"})
    result, _ = carry_out(order(), steps)
    assert (result.state, result.exit_code) == (State.DONE, 0)
    assert [verdict.check for verdict in result.verdicts if verdict.outcome == Outcome.UNKNOWN] == ["serves"]


def test_a_serving_server_is_not_given_up_for_its_record() -> None:
    result, _ = carry_out(order(), RememberingSteps(failing={"record"}))
    assert (result.state, result.exit_code) == (State.DONE, 0)
    assert [verdict.check for verdict in result.verdicts if verdict.outcome == Outcome.WARN] == ["record"]


@pytest.mark.parametrize("state", ["CHECKED", "LOCKED", "BASELINE", "WARMING", "DRAINING"])
def test_nothing_is_touched_when_the_journal_can_not_be_written(state: str) -> None:
    steps = RememberingSteps()
    machine = Relaunch(order(), steps, ListJournal(full_from=state))
    with pytest.raises(OSError, match="No space"):
        machine.run()
    assert (machine.touched, "stop" in steps.calls) == (False, False)


@pytest.mark.parametrize("state", ["STOPPING", "CLEAN", "STARTING", "LOADING", "ANSWERING", "VERIFIED", "MEASURED", "DONE"])
def test_once_touched_the_service_is_brought_up_although_the_journal_is_full(state: str) -> None:
    result = Relaunch(order(), RememberingSteps(), ListJournal(full_from=state)).run()
    assert (result.state, result.exit_code) == (State.DONE, 0)


def test_a_launch_that_can_not_be_journalled_is_not_begun() -> None:
    steps = RememberingSteps(server=None)
    machine = Relaunch(order(OrderKind.LAUNCH, old=None), steps, ListJournal(full_from=State.STARTING))
    with pytest.raises(OSError, match="No space"):
        machine.run()
    assert (machine.touched, steps.calls) == (False, [])


def test_a_full_disk_is_named_as_what_it_is() -> None:
    result, _ = carry_out(order(), RememberingSteps(failing={"start new"}, full_disk=True))
    assert result.failure is not None
    assert (result.failure.category, result.failure.summary) == ("disk_full", "/state/launch.json: No space left on device")


def test_the_result_names_the_launch_that_failed_and_only_one_that_was_begun() -> None:
    failed, _ = carry_out(order(), RememberingSteps(failing={"new"}))
    assert (failed.launch_id, failed.failed_launch_id) == ("back", "new")
    done, _ = carry_out(order(), RememberingSteps())
    assert done.failed_launch_id is None
    never_begun, _ = carry_out(order(), RememberingSteps(failing={"stop"}))
    assert (never_begun.failed_launch_id, never_begun.next_step) == (None, "fab status")


def test_less_kv_cache_is_a_failure_of_its_own() -> None:
    verdict = wire.Verdict(CAPACITY_CHECK, Outcome.REFUSE, "44% of the 1000 of l1", next_step="lower capacity_fail")
    result, _ = carry_out(order(OrderKind.LAUNCH, old=None), RememberingSteps(server=None, verdict=verdict))
    assert result.failure == wire.Failure("kv_capacity", "44% of the 1000 of l1", [], "lower capacity_fail")
    assert result.summary == "44% of the 1000 of l1; there was no server to put back"
    assert "fab launch" not in str(result.next_step)


def test_a_line_says_for_how_long_the_place_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0.0]
    clock = SteadyClock(lambda: moment[0])
    monkeypatch.setattr("orchestrator.agent.clock.BEAT_SECONDS", 3600.0)
    monkeypatch.setattr("orchestrator.agent.walk.steady", clock)
    clock.start()
    steps, journal = RememberingSteps(), ListJournal()

    def frozen(*_: Any) -> list[wire.Verdict]:
        moment[0] += 300.0
        clock.now()
        return []

    monkeypatch.setattr(steps, "clean", frozen)
    Relaunch(order(), steps, journal).run()
    clock.stop()

    still = [state for state, data in zip(journal.states, journal.data, strict=True) if data.get("stood_still") == [300.0]]
    assert still == [State.CLEAN]


@pytest.mark.parametrize(
    ("stopped", "dark"),
    [
        (Stopped("s", last_answer=90.0, boot="this"), 10.0),
        (Stopped("s", last_answer=90.0), 10.0),
        (Stopped("s", last_answer=101.0, boot="this"), 0.0),
        (Stopped("s", boot="this"), None),
        (Stopped("s", last_answer=5000.0, answered_at=1000.0, boot="another"), 60.0),
        (Stopped("s", last_answer=5000.0, boot="another"), None),
    ],
)
def test_dark_time_is_told_by_the_wall_clock_across_a_restart_of_the_machine(
    stopped: Stopped, dark: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.agent.relaunch_words.time.monotonic", lambda: 102.0)
    monkeypatch.setattr("orchestrator.agent.relaunch_words.time.time", lambda: 1062.0)

    assert dark_seconds(stopped, 100.0, "this") == dark
