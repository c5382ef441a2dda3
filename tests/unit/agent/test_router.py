"""Taking workers out of a router and having them in, on a router in memory that behaves as both real ones did."""

from __future__ import annotations

import pytest

from orchestrator.agent.clock import Deadline
from orchestrator.agent.http import RefusedError
from orchestrator.agent.quiet import wait_quiet
from orchestrator.agent.router_protocol import Ask, RouterFailed
from orchestrator.agent.wire_router import Trouble
from tests.unit.fake_router import FakeRouter

A, B, C = "http://a:30000", "http://b:30000", "http://c:30000"
both = pytest.mark.parametrize("smg", [False, True], ids=["0.3.2", "smg"])


@both
def test_a_worker_is_removed_by_the_id_of_its_url_and_waited_for(smg: bool) -> None:
    fake = FakeRouter.of(A, B, smg=smg)
    ids = [seat.id for seat in fake.seats.values()]
    fake.router.remove(B + "/", Deadline(5))
    assert fake.writes == [f"DELETE /workers/{ids[1]}"]
    assert [seat.url for seat in fake.seats.values()] == [A]


@both
def test_removing_what_is_out_asks_for_nothing(smg: bool) -> None:
    fake = FakeRouter.of(A, smg=smg)
    fake.router.remove(B, Deadline(5))
    assert fake.writes == []


def test_a_removal_that_is_on_its_way_is_not_asked_for_again() -> None:
    fake = FakeRouter.of(A, B, smg=True, drains=2)
    (_, seat) = fake.seats.values()
    seat.draining = 2
    fake.router.remove(B, Deadline(5))
    assert fake.writes == []
    assert fake.urls == [A]


def test_a_removal_that_does_not_come_is_told() -> None:
    fake = FakeRouter.of(A, B, smg=True, drains=10_000)
    with pytest.raises(RouterFailed, match="still has it") as failed:
        fake.router.remove(B, Deadline(0.3))
    assert failed.value.category == Trouble.TOO_LATE


@both
def test_a_worker_comes_in_and_the_202_is_not_believed(smg: bool) -> None:
    fake = FakeRouter.of(A, smg=smg, pends=3)
    fake.serving[B] = "m"
    worker = fake.router.add(B, None, Deadline(5))
    assert (worker.url, worker.serves) == (B, True)
    assert fake.writes == [f"POST {B}"]
    assert fake.urls == [A, B]


@both
def test_adding_what_is_in_asks_for_nothing(smg: bool) -> None:
    fake = FakeRouter.of(A, B, smg=smg)
    assert fake.router.add(B, None, Deadline(5)).url == B
    assert fake.writes == []


@both
def test_a_dead_worker_is_accepted_and_never_in(smg: bool) -> None:
    fake = FakeRouter.of(A, smg=smg)
    with pytest.raises(RouterFailed, match="does not use it") as failed:
        fake.router.add(B, None, Deadline(0.3))
    assert failed.value.category == Trouble.TOO_LATE
    assert fake.writes == [f"POST {B}"], "it is asked for once"


def test_a_worker_that_lacks_its_key_looks_healthy_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.router._MODEL_SECONDS", 0.2)
    fake = FakeRouter.of(A, keys={B: "WK"})
    fake.serving[B] = "m"
    with pytest.raises(RouterFailed, match="no key") as failed:
        fake.router.add(B, None, Deadline(5))
    assert failed.value.category == Trouble.UNKEYED
    fake.router.remove(B, Deadline(5))
    assert fake.router.add(B, "WK", Deadline(5)).serves


@both
def test_a_router_that_restarts_in_the_midst_is_asked_again(smg: bool) -> None:
    fake = FakeRouter.of(A, smg=smg, pends=3)
    fake.serving[B] = "m"
    restarts = iter([True])

    def on_ask(ask: Ask) -> None:
        if len(fake.writes) == 1 and ask.reads and next(restarts, False):
            fake.restart()
            fake.down = 3

    fake.on_ask = on_ask
    assert fake.router.add(B, None, Deadline(10)).serves
    assert fake.writes == [f"POST {B}", f"POST {B}"]


def test_a_dead_router_is_waited_for_and_then_told() -> None:
    fake = FakeRouter.of(A, B)
    fake.down = 10_000
    with pytest.raises(RouterFailed, match="connection refused") as failed:
        fake.router.add(B, None, Deadline(0.3))
    assert failed.value.category == Trouble.UNREACHABLE
    with pytest.raises(RouterFailed):
        fake.router.remove(B, Deadline(0.3))
    assert fake.writes == []


def test_counters_that_can_not_be_read_are_a_remark() -> None:
    fake = FakeRouter.of(A, B)

    def broken() -> str:
        raise RouterFailed(Trouble.UNREACHABLE, "connection refused")

    router = type(fake.router)(fake.exchange, broken)
    view = router.look()
    assert (view.healthy, view.counters) == (2, None)
    assert view.remark is not None
    assert "connection refused" in view.remark


def test_quiet_takes_three_looks_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.quiet.EVERY", 0.01)
    loads = iter([2, 0, 0, 1, 0, 0, 0, 5])
    report = wait_quiet(lambda: next(loads), 5.0)
    assert (report.quiet, report.load) == (True, 0)
    assert next(loads) == 5, "not one look more"


def test_a_server_that_does_not_say_is_never_quiet_and_one_that_has_gone_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.quiet.EVERY", 0.01)
    assert not wait_quiet(lambda: None, 0.1).quiet

    def refused() -> int:
        raise RefusedError("nobody listens")

    assert wait_quiet(refused, 5.0).quiet
