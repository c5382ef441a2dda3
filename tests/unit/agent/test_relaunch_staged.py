"""The paths of an order whose new server is started beside the old one, walked with steps that only remember what was asked of them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from orchestrator.agent import wire
from orchestrator.agent.history import USUAL
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.relaunch import Relaunch
from orchestrator.agent.steps import Previous, Stopped
from orchestrator.agent.wire import OrderKind, Outcome, State
from tests.unit.agent.remembering_steps import (
    DIRTY,
    GATE_PORT,
    NO_ROOM,
    OLD_LAUNCH,
    STAGED_LEFT,
    ListJournal,
    RememberingSteps,
    carry_out,
    order,
)

ESTIMATE = wire.DarkEstimate(4.0, 3.0, 6.0, "2 earlier switches", 2)
BROUGHT_TO_GATE = ["room new", "remember", "stage new", "wait_gate new", "still_staged new"]


def staged(kind: str = OrderKind.RELAUNCH, **changes: object) -> wire.Order:
    return replace(order(kind, measure=False), staged=True, estimate=ESTIMATE, **changes)  # type: ignore[arg-type]


def dies(steps: RememberingSteps) -> None:
    steps.old_is_alive = False


def from_staging(steps: RememberingSteps) -> list[str]:
    """The calls behind those of every relaunch."""
    return steps.calls[steps.calls.index("warmed new") + 1 :]


def started(steps: RememberingSteps) -> list[str]:
    return [call for call in steps.calls if call.startswith(("start ", "start_unit ", "stage ", "activate "))]


def test_the_new_server_waits_at_its_gate_before_the_old_one_is_stopped_and_goes_on_from_there() -> None:
    steps = RememberingSteps()
    result, states = carry_out(staged(), steps)
    assert " ".join(states) == (
        "CHECKED LOCKED BASELINE WARMING STAGING STAGING DRAINING STOPPING CLEAN ACTIVATING LOADING ANSWERING VERIFIED DONE"
    )
    assert from_staging(steps) == [*BROUGHT_TO_GATE, "stop", "activate new", "mark_verified new", "come_back new"]
    assert (result.state, result.exit_code, result.dark_seconds) == (State.DONE, 0, 2.5)
    assert (result.staged, result.estimate, result.launch_id, result.failed_launch_id) == (True, ESTIMATE, "new", None)
    assert result.saved_seconds == 18.0


def test_the_intent_and_what_it_held_at_the_gate_are_in_the_journal() -> None:
    journal = ListJournal()
    Relaunch(staged(), RememberingSteps(), journal).run()
    intent, at_gate = (data for state, data in zip(journal.states, journal.data, strict=True) if state == State.STAGING)
    assert (intent["launch_id"], intent["unit"], intent["gate_port"]) == ("new", None, GATE_PORT)
    assert intent["argv"][-2:] == ["--gated-launch-port", str(GATE_PORT)]
    assert at_gate == {"runner": "unit", "at_gate": {"seconds": 18.0, "footprint": {"GPU-1": 500}}}


def test_what_is_usual_travels_with_the_line_that_begins_a_load() -> None:
    journal = ListJournal()
    Relaunch(staged(), RememberingSteps(), journal).run()
    told = {state for state, data in zip(journal.states, journal.data, strict=True) if USUAL in data}
    assert told == {State.STAGING, State.LOADING}
    assert journal.data[journal.states.index(State.LOADING)][USUAL] == {"weights": wire.UsualPhase(40.0, 44.0, 3)}


def test_a_load_begins_although_nobody_can_say_what_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RememberingSteps, "usual", lambda *_: 1 / 0)
    for asked in (staged(), replace(staged(), staged=False)):
        result, _ = carry_out(asked, RememberingSteps())
        assert result.state == State.DONE


def test_a_sequential_order_warms_the_files_and_stages_nothing() -> None:
    steps = RememberingSteps()
    result, states = carry_out(replace(staged(), staged=False), steps)
    assert ("WARMING" in states, "STAGING" in states, started(steps)) == (True, False, ["start new"])
    assert (result.staged, result.estimate, result.saved_seconds) == (False, ESTIMATE, None)


@pytest.mark.parametrize(("kind", "new"), [(OrderKind.TEARDOWN, None), (OrderKind.RELAUNCH, None)])
def test_what_starts_nothing_stages_nothing(kind: str, new: None) -> None:
    steps = RememberingSteps()
    _, states = carry_out(staged(kind, new=new), steps)
    assert not {"WARMING", "STAGING"} & set(states)


def test_a_launch_where_nothing_served_is_not_staged() -> None:
    steps = RememberingSteps(server=None)
    result, states = carry_out(staged(OrderKind.LAUNCH, old=None), steps)
    assert not {"WARMING", "STAGING"} & set(states)
    assert (result.state, result.staged) == (State.DONE, False)


def test_files_that_are_not_to_be_warmed_are_not() -> None:
    steps = RememberingSteps()
    _, states = carry_out(staged(policy=wire.Policy(measure=False, warm_rate=0.0)), steps)
    assert ("WARMING" in states, "warm new" in steps.calls) == (False, False)


def test_files_that_can_not_be_warmed_cost_nothing_but_time() -> None:
    result, _ = carry_out(staged(), RememberingSteps(failing={"warm"}))
    assert (result.state, result.exit_code) == (State.DONE, 0)
    assert [verdict.check for verdict in result.verdicts if verdict.outcome == Outcome.UNKNOWN] == ["checkpoint files"]


def test_without_room_the_new_server_is_started_after_the_stop_and_that_is_told() -> None:
    steps = RememberingSteps(failing={"room new"})
    result, states = carry_out(staged(), steps)
    assert ("STAGING" in states, started(steps), steps.calls.count("remember")) == (False, ["start new"], 1)
    assert (result.state, result.staged) == (State.DONE, False)
    assert NO_ROOM in result.verdicts


@pytest.mark.parametrize(
    ("failing", "category", "evidence"),
    [
        ("stage new", "rights", []),
        ("gate new", "missing_module", ["No module named x"]),
        ("fault at gate new", "unexpected", []),
        ("still new", "killed", []),
    ],
)
def test_what_does_not_come_to_its_gate_costs_no_service(failing: str, category: str, evidence: list[str]) -> None:
    steps = RememberingSteps(failing={failing})
    result, states = carry_out(staged(), steps)
    assert states[-1] == State.REFUSED
    assert not {"DRAINING", "STOPPING"} & set(states)
    assert steps.calls[-1] == "unstage new"
    assert (result.exit_code, result.service) == (4 if category == "rights" else 3, "unchanged")
    assert result.failure is not None
    assert (result.failure.category, result.failure.evidence) == (category, evidence)
    begun = failing != "stage new"
    assert result.failed_launch_id == ("new" if begun else None)
    assert str(result.next_step).startswith("fab logs --launch new" if begun else "fab status")
    assert (result.dark_seconds, result.staged, result.launch_id) == (None, False, None)


@pytest.mark.parametrize("failing", [{"gate new"}, {"gate new", "unstage"}])
def test_what_is_left_of_a_staged_launch_is_told_and_the_service_is_unchanged_all_the_same(failing: set[str]) -> None:
    steps = RememberingSteps(failing=failing, dirty_after={"staged"})
    result, _ = carry_out(staged(), steps)
    assert (result.state, result.exit_code, result.service) == (State.REFUSED, 3, "unchanged")
    (left,) = result.verdicts
    assert left.outcome == Outcome.REFUSE
    assert left == STAGED_LEFT or "not what was expected" in left.detail


@pytest.mark.parametrize(("full_from", "calls"), [("STAGING", ["room new", "remember"]), ("DRAINING", [*BROUGHT_TO_GATE, "unstage new"])])
def test_nothing_is_left_when_the_journal_can_not_be_written(full_from: str, calls: list[str]) -> None:
    steps = RememberingSteps()
    machine = Relaunch(staged(), steps, ListJournal(full_from=full_from))
    with pytest.raises(OSError, match="No space"):
        machine.run()
    assert (machine.touched, from_staging(steps)) == (False, calls)


def test_a_stop_that_is_refused_before_the_first_signal_leaves_the_old_server_alone_and_ends_the_staged_one() -> None:
    steps = RememberingSteps(failing={"refused stop"})
    machine = Relaunch(staged(), steps, ListJournal())
    with pytest.raises(AgentRefusal):
        machine.run()
    assert (machine.touched, steps.calls[-1]) == (False, "unstage new")


def test_a_stop_that_breaks_off_ends_the_staged_one_before_the_previous_one_is_started() -> None:
    steps = RememberingSteps(failing={"stop"})
    result, states = carry_out(staged(), steps)
    assert states[states.index("DRAINING") :] == ["DRAINING", "ROLLING_BACK", "STARTING", "LOADING", "ANSWERING", "RESTORED"]
    assert steps.calls[-4:] == ["unstage new", "start back", "mark_verified back", "come_back back"]
    assert (result.failed_launch_id, result.staged) == (None, False)


def test_what_the_old_server_leaves_ends_the_staged_one_too() -> None:
    steps = RememberingSteps(dirty_after={"old"})
    result, states = carry_out(staged(), steps)
    assert (states[-1], result.exit_code, steps.calls[-1]) == (State.DOWN, 7, "unstage new")
    assert DIRTY.detail in result.summary


class TestCancelled:
    """The operator wants it stopped safely."""

    def carry_out(self, moment: str, steps: RememberingSteps) -> tuple[wire.OrderResult, list[str]]:
        asked: list[str] = []
        steps.meanwhile[moment] = lambda _: asked.append("asked by ann@laptop")
        journal = ListJournal()
        machine = Relaunch(staged(), steps, journal, cancelled=lambda: asked[0] if asked else None)
        return machine.run(), journal.states

    def test_while_files_are_warmed(self) -> None:
        steps = RememberingSteps()
        result, states = self.carry_out("warming", steps)
        assert (states[-2:], result.exit_code, result.service) == (["WARMING", "REFUSED"], 3, "unchanged")
        assert from_staging_or_nothing(steps) == []

    def test_on_the_way_to_the_gate(self) -> None:
        steps = RememberingSteps()
        result, states = self.carry_out("at gate new", steps)
        assert (states[-2:], result.exit_code, result.service) == (["STAGING", "REFUSED"], 3, "unchanged")
        assert steps.calls[-1] == "unstage new"
        assert result.failure is not None
        assert (result.failure.category, result.failed_launch_id, result.next_step) == ("cancelled", None, "fab status")

    def test_when_the_old_server_has_died_it_comes_back(self) -> None:
        steps = RememberingSteps()
        asked: list[str] = []

        def both(these: RememberingSteps) -> None:
            dies(these)
            asked.append("asked by ann@laptop")

        steps.meanwhile["at gate new"] = both
        steps.failing = {"gate new"}
        result = Relaunch(staged(), steps, ListJournal(), cancelled=lambda: asked[0] if asked else None).run()
        assert (result.state, result.exit_code, result.launch_id) == (State.RESTORED, 6, "back")
        assert result.failure is not None
        assert result.failure.category == "cancelled"

    def test_while_it_loads(self) -> None:
        steps = RememberingSteps()
        result, _ = self.carry_out("loading new", steps)
        assert (result.state, result.launch_id, result.staged) == (State.RESTORED, "back", True)


def from_staging_or_nothing(steps: RememberingSteps) -> list[str]:
    return [call for call in steps.calls if call.startswith(("room", "stage", "unstage", "stop", "start"))]


class TestTheOldServerDiesByItself:
    """Nobody has stopped it, and it is dark from then on."""

    def test_while_files_are_warmed(self) -> None:
        steps = RememberingSteps(meanwhile={"warming": dies})
        result, states = carry_out(staged(), steps)
        assert "warmed new" not in steps.calls, "what is read now is read by the next server itself"
        assert ("STAGING" in states, started(steps), result.state) == (False, ["start new"], State.DONE)
        assert "died by itself" in " ".join(verdict.detail for verdict in result.verdicts)

    def test_while_the_new_one_is_staged_which_goes_on_at_once(self) -> None:
        steps = RememberingSteps(meanwhile={"at gate new": dies})
        journal = ListJournal()
        result = Relaunch(staged(), steps, journal).run()
        assert started(steps) == ["stage new", "activate new"]
        assert (result.state, result.staged) == (State.DONE, True)
        assert result.saved_seconds is None, "the old one did not answer all that time"
        assert "stop" in steps.calls, "what is left of it is ended, and nothing starts it again"
        assert "died by itself" in journal.reasons[journal.states.index("DRAINING")]

    @pytest.mark.parametrize("failing", ["gate new", "still new", "fault at gate new"])
    def test_and_the_staged_one_fails_too(self, failing: str) -> None:
        steps = RememberingSteps(meanwhile={"at gate new": dies}, failing={failing})
        journal = ListJournal()
        result = Relaunch(staged(), steps, journal).run()
        assert (result.state, result.exit_code, result.launch_id, result.failed_launch_id) == (State.RESTORED, 6, "back", "new")
        assert steps.calls.index("unstage new") < steps.calls.index("stop") < steps.calls.index("stop_launch new")
        assert journal.data[journal.states.index("DRAINING")]["failure"] == result.failure

    def test_and_the_stop_of_what_is_left_breaks_off(self) -> None:
        steps = RememberingSteps(meanwhile={"at gate new": dies}, failing={"refused stop"})
        result, _ = carry_out(staged(), steps)
        assert (result.state, result.exit_code, result.launch_id) == (State.RESTORED, 6, "back")

    def test_dark_is_counted_from_when_it_was_last_seen_alive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = RememberingSteps(meanwhile={"at gate new": dies})
        monkeypatch.setattr(steps, "stop", lambda *_: Stopped("it had ended"))
        before = time.monotonic()
        steps.answers_at = before + 100.0
        result, _ = carry_out(staged(), steps)
        assert result.dark_seconds is not None
        assert before + 100.0 - time.monotonic() <= result.dark_seconds <= 100.0


class TestTheWayBack:
    """After the stop, what fails is rolled back; staged where that can be."""

    @pytest.mark.parametrize("failing", ["new", "activate new"])
    def test_the_previous_launch_is_staged_while_what_failed_is_ended(self, failing: str) -> None:
        steps = RememberingSteps(failing={failing})
        result, states = carry_out(staged(), steps)
        turned = states.index("ROLLING_BACK")
        assert states[turned:] == ["ROLLING_BACK", "STAGING", "STAGING", "ACTIVATING", "LOADING", "ANSWERING", "RESTORED"]
        ended = ["room back", "stage back", "stop_launch new", "wait_gate back", "activate back", "mark_verified back", "come_back back"]
        assert steps.calls[steps.calls.index("room back") :] == ended
        assert (result.exit_code, result.launch_id, result.failed_launch_id, result.staged) == (6, "back", "new", True)
        assert result.dark_seconds == 2.5

    def test_somebodys_unit_is_started_as_it_always_is(self) -> None:
        steps = RememberingSteps(previous=Previous(OLD_LAUNCH, unit="sglang.service"), failing={"new"})
        result, _ = carry_out(staged(), steps)
        assert started(steps) == ["stage new", "activate new", "start_unit sglang.service"]
        assert (result.exit_code, result.staged) == (6, False)

    def test_a_sequential_order_goes_back_plainly(self) -> None:
        steps = RememberingSteps(failing={"new"})
        carry_out(replace(staged(), staged=False), steps)
        assert started(steps) == ["start new", "start back"]

    @pytest.mark.parametrize(
        ("failing", "ended"),
        [
            ("room back", None),
            ("stage back", "unstage back"),
            ("gate back", "unstage back"),
            ("fault at gate back", "unstage back"),
            ("activate back", "stop_launch back"),
            ("back", "stop_launch back"),
        ],
    )
    def test_no_rollback_is_lost_because_it_was_staged(self, failing: str, ended: str | None) -> None:
        steps = RememberingSteps(failing={"new", failing})
        result, states = carry_out(staged(), steps)
        assert (result.state, result.exit_code, result.staged) == (State.RESTORED, 6, False)
        plain = "back" if ended is None else "back2"
        assert (result.launch_id, started(steps)[-1]) == (plain, f"start {plain}")
        assert states[-4:] == ["STARTING", "LOADING", "ANSWERING", "RESTORED"]
        told = [verdict for verdict in result.verdicts if verdict.check == "staged rollback"]
        assert len(told) == (0 if ended is None else 1)
        if ended is not None:
            assert steps.calls.index(ended) < steps.calls.index("start back2")

    def test_a_previous_launch_that_is_slow_to_its_gate_is_not_waited_for_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("orchestrator.agent.rolling_back._GATE_SECONDS_AT_LEAST", 0.0)
        monkeypatch.setattr("orchestrator.agent.rolling_back._GATE_FACTOR", 0.0)
        steps = RememberingSteps(failing={"new"})
        result, _ = carry_out(staged(), steps)
        assert (result.state, result.launch_id) == (State.RESTORED, "back2")
        assert "within 0 s" in next(verdict.detail for verdict in result.verdicts if verdict.check == "staged rollback")

    def test_what_the_failed_launch_left_ends_the_staged_one_too(self) -> None:
        steps = RememberingSteps(failing={"new"}, dirty_after={"new"})
        result, _ = carry_out(staged(), steps)
        assert (result.state, result.exit_code, steps.calls[-1]) == (State.DOWN, 7, "unstage back")

    def test_a_fault_of_the_clearing_away_ends_the_staged_one_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = RememberingSteps(failing={"new"})

        def broken(*_: object) -> list[wire.Verdict]:
            raise ValueError("not what was expected")

        monkeypatch.setattr(steps, "stop_launch", broken)
        result, _ = carry_out(staged(), steps)
        assert (result.state, result.service, steps.calls[-1]) == (State.DOWN, "not known to serve", "unstage back")

    def test_when_it_fails_both_ways_the_service_is_down_and_it_is_said_for_how_long(self) -> None:
        steps = RememberingSteps(failing={"new", "back", "back2"})
        before = time.monotonic()
        result, _ = carry_out(staged(), steps)
        assert (result.state, result.exit_code, result.service) == (State.DOWN, 7, "down")
        assert result.dark_seconds is not None
        assert before - 10.0 <= result.dark_seconds <= time.monotonic() - 10.0
