"""A person's lock, and waiting for whoever changes a service, against an agent that answers from a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.errors import LockedError, UnfinishedOrderError
from orchestrator.flows.locks import Patience, acquire, release, status, wait_for_orders
from orchestrator.flows.order import Options
from orchestrator.flows.target import Target
from orchestrator.flows.teardown import teardown
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer
from tests.unit.flows.samples import SUBMITTED, done, healthy_agent, relaunch_script, survey
from tests.unit.flows.test_attach_flow import AT_WORK, CUT_OFF, ENDED, lock_answer, yes

PERSON = wire.PersonLock("ann@laptop", "firmware", 1764400000.0)
GPU_LOCK = wire.GpuLock("GPU-1", "other", "O8", "relaunch", "eve@pad", 1764400000.0)
FREE = lock_answer(ENDED)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.patience = Patience(seconds, self._sleep, lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_lock_is_taken_for_whoever_types_with_the_reason(target: Target) -> None:
    agent = healthy_agent(lock=[FREE, lock_answer(None, person=PERSON)])
    assert acquire(target, "firmware", Heard(), connect=FakeBox(agent).connect).person == PERSON
    looked, asked = agent.requests("lock")
    assert (looked.action, asked.action, asked.reason, "@" in asked.operator) == ("status", "acquire", "firmware", True)


def test_release_and_status_name_the_service(target: Target) -> None:
    agent = healthy_agent(lock=[lock_answer(None, released=PERSON)])
    assert release(target, FakeBox(agent).connect).released == PERSON
    status(target, FakeBox(agent).connect)
    assert [(request.action, request.service) for request in agent.requests("lock")] == [("release", "glm5"), ("status", "glm5")]


def scripted(*answers: wire.LockStatus) -> Callable[[], wire.LockStatus]:
    """Each answer in turn, the last one for ever."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("busy", "said"),
    [
        (wire.LockStatus(order=AT_WORK), "O7 is at work on glm5: launch by kim@laptop"),
        (wire.LockStatus(gpus=[GPU_LOCK]), "GPU-1 is held by the relaunch O8 of other by eve@pad"),
        (wire.LockStatus(preparing=PERSON), "being changed by ann@laptop"),
    ],
)
def test_who_is_at_work_is_waited_for_as_long_as_was_asked(target: Target, busy: wire.LockStatus, said: str) -> None:
    clock, heard = Clock(60.0), Heard()
    assert wait_for_orders(target, scripted(busy, busy, wire.LockStatus(order=ENDED)), heard, clock.patience)
    assert [said in note for note in heard.notes] == [True]
    assert clock.now == 4.0

    clock = Clock(5.0)
    with pytest.raises(LockedError, match=said) as locked:
        wait_for_orders(target, scripted(busy), Heard(), clock.patience)
    assert (clock.now, locked.value.exit_code, locked.value.evidence) == (5.0, 5, ["waited for 5 s"])


def test_a_lock_waits_for_orders_on_its_service_alone(target: Target) -> None:
    agent = healthy_agent(lock=[lock_answer(AT_WORK), lock_answer(ENDED, gpus=[GPU_LOCK], preparing=PERSON)])
    clock = Clock(60.0)
    acquire(target, "firmware", Heard(), clock.patience, FakeBox(agent).connect)
    assert clock.now == 2.0
    assert [request.action for request in agent.requests("lock")] == ["status", "status", "acquire"]


def test_whom_it_waits_for_is_said_again_when_that_changes_and_now_and_then(target: Target) -> None:
    clock, heard = Clock(200.0), Heard()
    loading, verified = lock_answer(AT_WORK), lock_answer(dataclasses.replace(AT_WORK, state="VERIFIED"))
    agent = healthy_agent(lock=[*[loading] * 20, *[verified] * 3, FREE])
    acquire(target, "firmware", heard, clock.patience, FakeBox(agent).connect)
    assert [note.rpartition("in ")[2].partition(",")[0] for note in heard.notes] == ["LOADING", "LOADING", "VERIFIED"]


def test_a_persons_lock_is_never_waited_for(target: Target) -> None:
    clock = Clock(60.0)
    agent = healthy_agent(lock=[lock_answer(None, person=PERSON)])
    with pytest.raises(LockedError, match=r"glm5 is locked by ann@laptop since .* UTC: firmware") as locked:
        acquire(target, "mine", Heard(), clock.patience, FakeBox(agent).connect)
    assert clock.now == 0.0
    assert "not waited for" in locked.value.evidence[0]
    assert "fab lock.release --host gpu1 --service glm5" in str(locked.value.next_step)


def torn_down(agent: FakeAgent, target: Target, heard: Heard, **options: Any) -> Any:
    return teardown(target, Options(**options), heard, yes, FakeBox(agent).connect)


@pytest.mark.parametrize("found", [{"lock": PERSON}, {"gpu_locks": [GPU_LOCK]}, {"order": AT_WORK}])
def test_a_change_is_refused_while_somebody_keeps_it_away(target: Target, found: dict[str, Any]) -> None:
    agent = healthy_agent(survey=[answer(survey(**found))])
    with pytest.raises(LockedError) as locked:
        torn_down(agent, target, Heard())
    assert locked.value.exit_code == 5
    assert [verb for verb, _ in agent.asked] == ["survey"]


def test_a_plan_may_be_made_while_a_person_has_the_service_and_says_so(target: Target) -> None:
    agent, heard = healthy_agent(survey=[answer(survey(lock=PERSON))]), Heard()
    assert torn_down(agent, target, heard, plan_only=True).result is None
    assert "locked by ann@laptop" in heard.warnings[0]


def test_a_change_that_waited_looks_afresh(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.flows.locks.POLL_SECONDS", 0.0)
    agent = healthy_agent(
        survey=[answer(survey(order=AT_WORK)), answer(survey(order=ENDED))],
        lock=[lock_answer(AT_WORK), FREE],
        follow=[relaunch_script(done())],
    )
    heard = Heard()
    assert torn_down(agent, target, heard, wait=30.0).result == done()
    assert [verb for verb, _ in agent.asked] == ["survey", "lock", "lock", "survey", "submit", "follow"]
    assert any("waiting for up to 30 s" in note for note in heard.notes)


def test_one_that_is_cut_off_while_it_is_waited_for_is_brought_to_its_end(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.flows.locks.POLL_SECONDS", 0.0)
    agent = healthy_agent(
        survey=[answer(survey(order=AT_WORK)), answer(survey(order=CUT_OFF)), answer(survey(order=ENDED))],
        lock=[lock_answer(CUT_OFF)],
        resume=[answer(wire.Submitted("O7", "session 1"))],
        follow=[relaunch_script(done(order_id="O7")), relaunch_script(done())],
    )
    assert torn_down(agent, target, Heard(), wait=30.0).result == done()
    assert [verb for verb, _ in agent.asked if verb != "follow"] == ["survey", "lock", "survey", "resume", "survey", "submit"]


@pytest.mark.parametrize("late", [LockedError("order O9 is at work"), UnfinishedOrderError("O9 was cut off")])
def test_who_waits_and_finds_somebody_faster_looks_again(target: Target, monkeypatch: pytest.MonkeyPatch, late: LockedError) -> None:
    monkeypatch.setattr("orchestrator.flows.locks.POLL_SECONDS", 0.0)
    agent = healthy_agent(submit=[[late], answer(SUBMITTED)], follow=[relaunch_script(done())])
    heard = Heard()
    assert torn_down(agent, target, heard, wait=30.0).result == done()
    assert [verb for verb, _ in agent.asked] == ["survey", "submit", "survey", "submit", "follow"]
    assert any("looking again" in note for note in heard.notes)


def test_who_does_not_wait_does_not_look_again(target: Target) -> None:
    agent = healthy_agent(submit=[[LockedError("order O9 is at work", next_step="fab attach")]])
    with pytest.raises(LockedError, match="O9 is at work") as locked:
        torn_down(agent, target, Heard())
    assert locked.value.next_step == "fab attach --host gpu1 --service glm5"
    assert [verb for verb, _ in agent.asked] == ["survey", "submit"]
