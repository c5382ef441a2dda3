"""Watching, taking up and stopping orders that go on without the operator, against an agent that answers from a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.errors import (
    ConnectionLostError,
    InterruptedByOperatorError,
    LockedError,
    OrchestratorError,
    RefusedError,
    UnfinishedOrderError,
)
from orchestrator.flows.attach import attach, resume
from orchestrator.flows.order import Options, Outcome
from orchestrator.flows.plan import Plan
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.target import Target
from orchestrator.flows.teardown import teardown
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer, state
from tests.unit.flows.samples import done, healthy_agent, relaunch_script, survey

AT_WORK = wire.OrderStatus("O7", "launch", "LOADING", True, 1764400000.0, "kim@laptop", "night shift", "glm5", 1764399000.0, touched=True)
CUT_OFF = dataclasses.replace(AT_WORK, state="INTERRUPTED(LOADING)", live=False)
UNTOUCHED = dataclasses.replace(AT_WORK, state="INTERRUPTED(BASELINE)", live=False, touched=False)
ENDED = dataclasses.replace(AT_WORK, state="RESTORED", live=False)
RESTORED = done(order_id="O7", state="RESTORED", exit_code=6)
RESUMED = answer(wire.Submitted("O7", "session 12"))


def lock_answer(order: wire.OrderStatus | None, **more: Any) -> Any:
    return answer(wire.LockStatus(order=order, **more))


def agent_with(order: wire.OrderStatus | None, **scripts: Any) -> FakeAgent:
    return healthy_agent(**{"lock": [lock_answer(order)], "follow": [relaunch_script(RESTORED)], "resume": [RESUMED], **scripts})


@pytest.mark.parametrize("order", [AT_WORK, ENDED])
def test_an_order_is_told_from_its_beginning_and_its_result_is_the_answer(target: Target, order: wire.OrderStatus) -> None:
    agent, heard = agent_with(order), Heard()
    found: list[wire.OrderStatus] = []
    result = attach(target, None, heard, found.append, connect=FakeBox(agent).connect)
    assert result.exit_code == 6
    assert heard.states == ["CHECKED", "LOCKED", "RESTORED"]
    assert heard.results == [result]
    assert found == [order]
    (asked,) = agent.requests("follow")
    assert (asked.order_id, asked.after, asked.service) == ("O7", 0, "glm5")
    assert {verb for verb, _ in agent.asked} == {"lock", "follow"}


def test_a_named_order_is_asked_for_by_its_name_and_an_unknown_one_is_refused(target: Target) -> None:
    agent = agent_with(None)
    with pytest.raises(RefusedError, match="no order O9 of glm5 in gpu1/101"):
        attach(target, "O9", Heard(), connect=FakeBox(agent).connect)
    assert agent.requests("lock")[0].order_id == "O9"
    with pytest.raises(RefusedError, match="there was no order of glm5 yet"):
        attach(target, None, Heard(), connect=FakeBox(agent).connect)


def test_watching_goes_on_through_a_lost_connection(target: Target) -> None:
    agent = agent_with(AT_WORK, follow=[[state(1, "CHECKED"), ConnectionLostError("gone")], relaunch_script(RESTORED)])
    heard = Heard()
    assert attach(target, None, heard, connect=FakeBox(agent).connect) == RESTORED
    assert heard.states == ["CHECKED", "LOCKED", "RESTORED"]


def test_an_order_that_was_cut_off_is_started_again_and_watched(target: Target) -> None:
    agent, heard = agent_with(CUT_OFF), Heard()
    assert resume(target, None, heard, connect=FakeBox(agent).connect) == RESTORED
    assert agent.requests("resume") == [wire.OrderReference("glm5", "/var/lib/orchestrator", "O7")]
    assert any("session 12" in note for note in heard.notes)


@pytest.mark.parametrize(("order", "error", "said"), [(AT_WORK, LockedError, "is at work"), (ENDED, RefusedError, "has ended: RESTORED")])
def test_what_is_not_cut_off_is_not_resumed(target: Target, order: wire.OrderStatus, error: type[OrchestratorError], said: str) -> None:
    agent = agent_with(order)
    with pytest.raises(error, match=said) as refused:
        resume(target, None, Heard(), connect=FakeBox(agent).connect)
    assert refused.value.next_step == "fab attach --host gpu1 --service glm5 --order O7"
    assert agent.requests("resume") == []


def yes(plan: Plan) -> bool:
    return True


Change = Callable[[FakeAgent, Heard, Options, Callable[[Plan], bool]], Outcome]


@pytest.fixture(params=["relaunch", "teardown"])
def change(request: pytest.FixtureRequest, target: Target) -> Change:
    def run(agent: FakeAgent, heard: Heard, options: Options, confirm: Callable[[Plan], bool]) -> Outcome:
        box = FakeBox(agent)
        if request.param == "teardown":
            return teardown(target, options, heard, confirm, box.connect)
        return relaunch(target, target.inventory.backends_named("flashinfer_cutedsl"), options, heard, confirm, box.connect, box.open)

    return run


def test_a_change_brings_an_order_that_was_cut_off_half_way_to_its_end_and_looks_afresh(change: Change) -> None:
    agent = agent_with(
        CUT_OFF,
        survey=[answer(survey(order=CUT_OFF)), answer(survey(order=ENDED))],
        follow=[relaunch_script(RESTORED), relaunch_script(done())],
    )
    heard = Heard()
    asked: list[Plan] = []

    def agree(plan: Plan) -> bool:
        asked.append(plan)
        return True

    outcome = change(agent, heard, Options(), agree)
    assert outcome.result == done()
    assert [verb for verb, _ in agent.asked if verb in {"survey", "resume", "submit"}] == ["survey", "resume", "survey", "submit"]
    assert [result.state for result in heard.results] == ["RESTORED", "DONE"]
    assert "O7 by kim@laptop" in asked[0].remarks[0]
    assert len(asked) == 2
    assert any("looking afresh" in note for note in heard.notes)


def test_a_plan_says_that_it_would_and_touches_nothing(change: Change) -> None:
    agent, heard = agent_with(CUT_OFF, survey=[answer(survey(order=CUT_OFF))]), Heard()
    outcome = change(agent, heard, Options(plan_only=True), yes)
    assert outcome.result is None
    assert "INTERRUPTED(LOADING), is brought to its end" in heard.plans[0].remarks[0]
    assert heard.plans[0].by_hand == ["fab resume --host gpu1 --service glm5"]
    assert {verb for verb, _ in agent.asked} & {"resume", "submit"} == set()


def test_no_leaves_the_order_half_done_and_says_so(change: Change) -> None:
    agent = agent_with(CUT_OFF, survey=[answer(survey(order=CUT_OFF))])
    with pytest.raises(RefusedError, match="still half-done"):
        change(agent, Heard(), Options(), lambda plan: False)
    assert agent.requests("resume") == []


def test_an_order_that_is_cut_off_again_ends_the_change(change: Change) -> None:
    again = done(order_id="O7", state="INTERRUPTED(LOADING)", exit_code=7)
    agent = agent_with(CUT_OFF, survey=[answer(survey(order=CUT_OFF))], follow=[relaunch_script(again)])
    assert change(agent, Heard(), Options(), yes).result == again
    assert agent.requests("submit") == []


def test_an_order_that_was_cut_off_before_it_touched_anything_does_not_stand_in_the_way(change: Change) -> None:
    agent = agent_with(UNTOUCHED, survey=[answer(survey(order=UNTOUCHED))], follow=[relaunch_script(done())])
    assert change(agent, Heard(), Options(), yes).result == done()
    assert agent.requests("resume") == []


def test_an_order_left_half_done_in_between_comes_through_as_such(target: Target, change: Change) -> None:
    agent = healthy_agent(submit=[[UnfinishedOrderError("cut off in LOADING", next_step="fab resume")]])
    with pytest.raises(UnfinishedOrderError) as refused:
        change(agent, Heard(), Options(), yes)
    assert refused.value.exit_code == 5
    assert refused.value.next_step == "fab resume --host gpu1 --service glm5"


CANCELLED = answer(AT_WORK)


def watched(target: Target, agent: FakeAgent, answer_to_ctrl_c: Callable[[str], bool]) -> tuple[wire.OrderResult, Heard]:
    heard = Heard()
    return attach(target, None, heard, lambda order: None, answer_to_ctrl_c, FakeBox(agent).connect), heard


def test_ctrl_c_asks_once_and_a_safe_stop_is_watched_to_its_end(target: Target) -> None:
    agent = agent_with(AT_WORK, follow=[[state(1, "CHECKED"), KeyboardInterrupt()], relaunch_script(RESTORED)], cancel=[CANCELLED])
    asked: list[str] = []

    def stop(order: str) -> bool:
        asked.append(order)
        return True

    result, heard = watched(target, agent, stop)
    assert result == RESTORED
    assert asked == ["the launch O7"]
    (cancel,) = agent.requests("cancel")
    assert (cancel.service, cancel.order_id, "@" in cancel.operator) == ("glm5", "O7", True)
    assert heard.states == ["CHECKED", "LOCKED", "RESTORED"]


def test_ctrl_c_may_leave_it_running(target: Target) -> None:
    agent = agent_with(AT_WORK, follow=[[state(1, "CHECKED"), KeyboardInterrupt()]])
    with pytest.raises(InterruptedByOperatorError, match="launch O7 goes on in gpu1/101") as left:
        watched(target, agent, lambda order: False)
    assert left.value.exit_code == 130
    assert left.value.next_step == "fab attach --host gpu1 --service glm5 --order O7"
    assert agent.requests("cancel") == []


def test_a_second_ctrl_c_while_being_asked_leaves_it_running(target: Target) -> None:
    agent = agent_with(AT_WORK, follow=[[state(1, "CHECKED"), KeyboardInterrupt()]])

    def interrupted(order: str) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(InterruptedByOperatorError, match="goes on"):
        watched(target, agent, interrupted)


def test_ctrl_c_while_it_stops_safely_leaves_it_to_that(target: Target) -> None:
    interruptions: list[Any] = [[KeyboardInterrupt()], [state(1, "ROLLING_BACK"), KeyboardInterrupt()]]
    agent = agent_with(AT_WORK, follow=interruptions, cancel=[CANCELLED])
    with pytest.raises(InterruptedByOperatorError, match="stops safely"):
        watched(target, agent, lambda order: True)


@pytest.mark.parametrize(("kind", "words"), [("relaunch", "old server is put back"), ("teardown", "a stop that has begun is finished")])
def test_what_stopping_safely_means_is_told(target: Target, kind: str, words: str) -> None:
    order = dataclasses.replace(AT_WORK, kind=kind)
    agent = agent_with(order, follow=[[KeyboardInterrupt()], relaunch_script(RESTORED)], cancel=[CANCELLED])
    _, heard = watched(target, agent, lambda order: True)
    assert any(words in note for note in heard.notes)


def test_what_can_not_be_asked_to_stop_is_watched_on(target: Target) -> None:
    late = RefusedError("order O7 is not at work: RESTORED")
    agent = agent_with(AT_WORK, follow=[[KeyboardInterrupt()], relaunch_script(RESTORED)], cancel=[[late]])
    result, heard = watched(target, agent, lambda order: True)
    assert result == RESTORED
    assert "could not be asked to stop" in heard.warnings[0]


def test_ctrl_c_at_an_order_that_has_ended_asks_nothing(target: Target) -> None:
    agent = agent_with(ENDED, follow=[[KeyboardInterrupt()]])
    with pytest.raises(InterruptedByOperatorError):
        watched(target, agent, lambda order: pytest.fail("nothing to stop"))
