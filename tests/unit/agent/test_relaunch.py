"""Every path through the state machine, walked with steps that only remember what was asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.relaunch import Relaunch
from orchestrator.agent.steps import CAPACITY_CHECK, LaunchFailed, Observed, Previous, Ready, Report, Stopped
from orchestrator.agent.wire import OrderKind, Outcome, State

OLD_ID = wire.ProcessId(100, 5000)
OLD = wire.ServerInfo(
    OLD_ID,
    [OLD_ID],
    wire.Manager(wire.ManagerKind.OWN_UNIT, "orchestrator-s-old.service"),
    30000,
    True,
    "/py",
    ["--port", "30000"],
    "root",
    1.0,
)
OLD_LAUNCH = wire.Launch("old", "s", "auto", "/py", ["--port", "30000"], "127.0.0.1", 30000)
NEW_LAUNCH = replace(OLD_LAUNCH, launch_id="new", backend="flashinfer_cutedsl")
TIMING = wire.DecodeTiming(tokens_per_second=10.36, time_per_output_token=1 / 10.36)
DIRTY = wire.Verdict("port", Outcome.REFUSE, "port 30000 is held by process 7", next_step="ss -ltnp sport = :30000")


@dataclass
class RememberingSteps:
    """Stands in for the box: answers from its fields and remembers the calls."""

    server: wire.ServerInfo | None = OLD
    previous: Previous = field(default_factory=lambda: Previous(OLD_LAUNCH))
    failing: set[str] = field(default_factory=set)
    dirty_after: set[str] = field(default_factory=set)
    verdict: wire.Verdict = field(default_factory=lambda: wire.Verdict("answers", Outcome.PASS, "same"))
    left: tuple[str, ...] = ()
    full_disk: bool = False
    calls: list[str] = field(default_factory=list)

    def find(self) -> wire.ServerInfo | None:
        return self.server

    def capture(self) -> Previous:
        self.calls.append("capture")
        return self.previous

    def observe(self, previous: Previous) -> Observed:
        self.calls.append("observe")
        if "observe" in self.failing:
            raise ValueError("not what was expected")
        return Observed(capacity=1000)

    def measure(self, launch: wire.Launch, report: Report) -> wire.DecodeTiming:
        self.calls.append(f"measure {launch.launch_id}")
        if f"measure {launch.launch_id}" in self.failing:
            raise ValueError("not what was expected")
        return replace(TIMING, skipped="others use it") if f"skip {launch.launch_id}" in self.failing else TIMING

    def stop(self, report: Report, enter: Callable[[str, str], None]) -> Stopped:
        self.calls.append("stop")
        if "refused stop" in self.failing:
            raise AgentRefusal("rights", "not allowed to signal it")
        report("draining", "")
        if "stop" in self.failing:
            raise AgentRefusal("kernel", "processes can't be held")
        enter(State.STOPPING, "no requests left")
        return Stopped("ended by itself after 3.0 s", last_answer=10.0)

    def clean(self, report: Report) -> list[wire.Verdict]:
        return [DIRTY] if "old" in self.dirty_after else []

    def leftovers(self) -> list[str]:
        return list(self.left)

    def end_leftovers(self, report: Report) -> list[wire.Verdict]:
        self.calls.append("end_leftovers")
        if "leftovers" in self.failing:
            raise ValueError("not what was expected")
        return [DIRTY] if "leftovers" in self.dirty_after else []

    def start(self, launch: wire.Launch) -> dict[str, Any]:
        self.calls.append(f"start {launch.launch_id}")
        if f"start {launch.launch_id}" in self.failing:
            raise OSError(28, "No space left on device", "/state/launch.json") if self.full_disk else OSError("broken")
        return {}

    def start_unit(self, unit: str) -> None:
        self.calls.append(f"start_unit {unit}")

    def wait_ready(self, previous: Previous, report: Report, enter: Callable[[str, str], None]) -> Ready:
        if previous.launch.launch_id in self.failing:
            raise LaunchFailed(wire.Failure("out_of_memory", f"{previous.launch.launch_id} ran out of memory"))
        enter(State.ANSWERING, "first good generation")
        return Ready(12.5, Observed(capacity=1000))

    def verify(self, launch: wire.Launch, old: Observed, new: Observed, report: Report) -> list[wire.Verdict]:
        return [self.verdict]

    def stop_launch(self, launch: wire.Launch, report: Report) -> list[wire.Verdict]:
        self.calls.append(f"stop_launch {launch.launch_id}")
        return [DIRTY] if "new" in self.dirty_after else []

    def still_serves(self, launch: wire.Launch, report: Report) -> None:
        self.calls.append(f"still_serves {launch.launch_id}")
        if f"serves {launch.launch_id}" in self.failing:
            raise LaunchFailed(wire.Failure("killed", f"{launch.launch_id} was killed"))
        if f"look at {launch.launch_id}" in self.failing:
            raise ValueError("not what was expected")

    def mark_verified(self, launch: wire.Launch, observed: Observed) -> None:
        if "record" in self.failing:
            raise OSError(28, "No space left on device")
        self.calls.append(f"mark_verified {launch.launch_id}")

    def new_launch_id(self) -> str:
        return "back"


@dataclass
class ListJournal:
    states: list[str] = field(default_factory=list)
    full_from: str | None = None
    """The state from which on nothing can be written."""
    full: bool = False

    def state(self, state: str, reason: str, data: dict[str, Any] | None = None) -> None:
        self.full = self.full or state == self.full_from
        if self.full:
            raise OSError(28, "No space left on device")
        self.states.append(state)

    def progress(self, phase: str, detail: str = "") -> None:
        return


def order(
    kind: str = OrderKind.RELAUNCH, old: wire.ProcessId | None = OLD_ID, new: wire.Launch | None = NEW_LAUNCH, measure: bool = True
) -> wire.Order:
    return wire.Order("o1", kind, "s", "/state", 30000, wire.Policy(measure=measure), "ann@laptop", old=old, new=new)


def carry_out(asked: wire.Order, steps: RememberingSteps) -> tuple[wire.OrderResult, list[str]]:
    journal = ListJournal()
    return Relaunch(asked, steps, journal).run(), journal.states


def test_relaunch_walks_every_state_in_order_and_measures_both_servers() -> None:
    steps = RememberingSteps()
    result, states = carry_out(order(), steps)
    assert " ".join(states) == ("CHECKED LOCKED BASELINE DRAINING STOPPING CLEAN STARTING LOADING ANSWERING VERIFIED MEASURED DONE")
    assert steps.calls == ["capture", "observe", "measure old", "stop", "start new", "mark_verified new", "measure new"]
    assert (result.state, result.exit_code, result.dark_seconds) == (State.DONE, 0, 2.5)
    assert result.baseline == result.measured == TIMING


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
    assert steps.calls[-4:] == ["start new", "stop_launch new", "start back", "mark_verified back"]
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
    assert steps.calls == ["capture", "stop"]
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
    assert states[3:] == ["DRAINING", "ROLLING_BACK", "STARTING", "LOADING", "ANSWERING", "RESTORED"]
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


@pytest.mark.parametrize("state", ["CHECKED", "LOCKED", "BASELINE", "DRAINING"])
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
