"""Who keeps whom away from a service, its GPUs and its machine."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import locks, supervisor, wire
from orchestrator.agent.host_folder import Holder, HostFolder
from orchestrator.agent.journal import Journal, ServiceLock, try_lock
from orchestrator.agent.locks import GpuLocks, held_by_others, held_gpus, lock, person_lock, union_of_gpus, wanted_gpus
from orchestrator.agent.private_files import write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import GpuLock, LockAction, LockRequest, LockStatus, PersonLock, State

EIGHT = [wire.Gpu(index, f"GPU-{index:x}{index:x}aa-1", "B200", "10.0", 0, 1) for index in range(8)]
MIXED = [EIGHT[0], wire.Gpu(1, "GPU-11aa-1", "RTX PRO 6000", "12.0", 0, 1)]
UUIDS = [gpu.uuid for gpu in EIGHT]


def refuse_to_emit(kind: str, data: Any) -> None:
    raise AssertionError("a lock tells nothing on the way")


def ask(tmp_path: Path, action: str = LockAction.STATUS, operator: str = "ann@laptop", **more: Any) -> LockStatus:
    request = LockRequest(more.pop("service", "svc"), str(tmp_path), action, operator, more.pop("reason", "firmware"), **more)
    return lock(request, refuse_to_emit)


def write_order(tmp_path: Path, order_id: str, *states: str, service: str = "svc") -> tuple[wire.Order, Path]:
    folder = StateFolder(str(tmp_path), service)
    folder.create()
    path = folder.order_folder(order_id)
    path.mkdir()
    order = wire.Order(order_id, wire.OrderKind.RELAUNCH, service, str(tmp_path), 1, wire.Policy(), "bob@desk", "night shift")
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    with Journal(path) as journal:
        for state in states:
            journal.state(state, "")
    return order, path


@contextmanager
def at_work(tmp_path: Path, order_id: str = "o1", state: str = State.LOADING, service: str = "svc") -> Iterator[wire.Order]:
    order, _ = write_order(tmp_path, order_id, State.CHECKED, state, service=service)
    held = ServiceLock(StateFolder(str(tmp_path), service))
    assert held.take(order_id)
    try:
        yield order
    finally:
        held.release()


@pytest.mark.parametrize(
    ("gpus", "environment", "wanted"),
    [
        (EIGHT, {}, UUIDS),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "0,1"}, UUIDS[:2]),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": " 3 , 3"}, [UUIDS[3]]),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": ""}, []),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "-1"}, []),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "1,9,2"}, [UUIDS[1]]),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "GPU-22aa,GPU-33aa-1"}, UUIDS[2:4]),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "GPU-"}, []),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "MIG-4ac1"}, UUIDS),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "0"}, [gpu.uuid for gpu in MIXED]),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [MIXED[0].uuid]),
        ([], {"CUDA_VISIBLE_DEVICES": "0"}, []),
    ],
)
def test_which_gpus_a_process_may_use(gpus: list[wire.Gpu], environment: dict[str, str], wanted: list[str]) -> None:
    assert wanted_gpus(gpus, environment) == wanted


def test_an_order_needs_the_gpus_of_its_old_and_its_new_server() -> None:
    assert union_of_gpus(EIGHT, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1,0"}]) == UUIDS[:2]
    assert union_of_gpus(EIGHT, []) == []


def test_a_persons_lock_stands_until_it_is_released_and_says_whose_it_is(tmp_path: Path) -> None:
    taken = ask(tmp_path, LockAction.ACQUIRE)
    assert taken.person is not None
    assert (taken.person.operator, taken.person.reason) == ("ann@laptop", "firmware")
    with pytest.raises(AgentRefusal, match=r"svc is locked by ann@laptop since .* UTC: firmware") as refused:
        ask(tmp_path, LockAction.ACQUIRE, "bob@desk")
    assert refused.value.failure.category == "locked"
    released = ask(tmp_path, LockAction.RELEASE, "bob@desk")
    assert (released.person, released.released) == (None, taken.person)
    assert ask(tmp_path, LockAction.RELEASE).released is None
    assert [path.name for path in (tmp_path / "svc").iterdir() if "held" in path.name] == []


def test_a_lock_that_can_not_be_understood_stands_as_well(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    folder.held.write_text("{")
    held = person_lock(folder)
    assert held is not None
    assert "can't be understood" in held.reason
    with pytest.raises(AgentRefusal):
        ask(tmp_path, LockAction.ACQUIRE)
    assert ask(tmp_path, LockAction.RELEASE).released is not None


def test_while_a_person_has_the_service_no_order_is_taken_or_resumed(tmp_path: Path) -> None:
    order, _ = write_order(tmp_path, "o1", State.CHECKED)
    ask(tmp_path, LockAction.ACQUIRE)
    begins: list[Callable[[], object]] = [
        lambda: supervisor.submit(order, refuse_to_emit),
        lambda: supervisor.resume(wire.OrderReference("svc", str(tmp_path), "o1"), refuse_to_emit),
    ]
    for begin in begins:
        with pytest.raises(AgentRefusal, match=r"locked by ann@laptop since .*: firmware") as refused:
            begin()
        assert refused.value.failure.category == "locked"


def test_a_supervisor_that_finds_a_persons_lock_has_touched_nothing(tmp_path: Path) -> None:
    order, path = write_order(tmp_path, "o1", State.CHECKED)
    write_private(StateFolder(str(tmp_path), "svc").held, json.dumps(wire.to_json(PersonLock("ann@laptop", "firmware", 1.0))))
    result = supervisor.supervise(order, path)
    assert (result.state, result.exit_code) == (State.REFUSED, 5)
    assert "locked by ann@laptop" in result.summary
    status = ask(tmp_path).order
    assert status is not None
    assert status.state == State.REFUSED


def test_a_lock_is_refused_while_an_order_is_at_work(tmp_path: Path) -> None:
    with (
        at_work(tmp_path),
        pytest.raises(AgentRefusal, match=r"o1 is at work on svc: relaunch by bob@desk \(night shift\), in LOADING") as no,
    ):
        ask(tmp_path, LockAction.ACQUIRE)
    assert (no.value.failure.category, no.value.failure.next_step) == ("locked", "fab attach")
    assert person_lock(StateFolder(str(tmp_path), "svc")) is None


@pytest.mark.parametrize("state", [State.STAGING, State.DRAINING])
def test_a_lock_is_refused_while_an_order_was_cut_off_half_way(tmp_path: Path, state: str) -> None:
    write_order(tmp_path, "o1", State.CHECKED, state)
    with pytest.raises(AgentRefusal, match=f"relaunch o1 by bob@desk was cut off in {state}") as refused:
        ask(tmp_path, LockAction.ACQUIRE)
    assert (refused.value.failure.category, refused.value.failure.next_step) == ("interrupted", "fab resume")


@pytest.mark.parametrize("state", [State.BASELINE, State.WARMING])
def test_an_order_that_was_cut_off_before_it_touched_anything_keeps_nobody_away(tmp_path: Path, state: str) -> None:
    write_order(tmp_path, "o1", State.CHECKED, state)
    assert ask(tmp_path, LockAction.ACQUIRE).person is not None


def test_the_status_names_orders_of_every_service_and_who_prepares_the_machine(tmp_path: Path) -> None:
    with at_work(tmp_path, service="one"), HostFolder(str(tmp_path)).locked(Holder("eve@pad", "after the reboot", "fast")):
        every = ask(tmp_path, service="")
        one = ask(tmp_path, service="two", order_id="none")
    for status in (every, one):
        assert [(order.service, order.order_id) for order in status.at_work] == [("one", "o1")]
        assert status.preparing is not None
        assert (status.preparing.operator, status.preparing.reason) == ("eve@pad", "prep to fast, after the reboot")
    assert (one.order, one.person) == (None, None)
    assert ask(tmp_path).preparing is None


def test_an_order_tells_since_when_it_runs_and_how_often_it_was_resumed(tmp_path: Path) -> None:
    _, path = write_order(tmp_path, "o1", State.CHECKED)
    with Journal(path) as journal:
        journal.state(State.LOADING, "", {"resumed": 2})
    status = ask(tmp_path).order
    assert status is not None
    assert status.half_done
    assert (status.resumed, status.began < status.since) == (2, True)


def order_of(tmp_path: Path, service: str, order_id: str) -> wire.Order:
    return wire.Order(order_id, wire.OrderKind.RELAUNCH, service, str(tmp_path), 1, wire.Policy(), "bob@desk")


def test_two_orders_share_no_gpu(tmp_path: Path) -> None:
    one, two = GpuLocks(str(tmp_path)), GpuLocks(str(tmp_path))
    assert one.take(order_of(tmp_path, "one", "o1"), UUIDS[:2]) is None
    holder = two.take(order_of(tmp_path, "two", "o2"), UUIDS[1:3], seconds=0.1)
    assert holder is not None
    assert (holder.uuid, holder.service, holder.order_id, holder.operator) == (UUIDS[1], "one", "o1", "bob@desk")
    assert {held.uuid for held in held_gpus(str(tmp_path))} == set(UUIDS[:2])
    assert [held.uuid for held in held_by_others("two", str(tmp_path), EIGHT, {"CUDA_VISIBLE_DEVICES": "1,2"})] == [UUIDS[1]]
    assert held_by_others("one", str(tmp_path), EIGHT, {}) == []
    assert two.take(order_of(tmp_path, "two", "o2"), UUIDS[2:4]) is None
    one.release()
    two.release()
    assert held_gpus(str(tmp_path)) == []


def test_all_or_none_of_the_gpus_are_taken(tmp_path: Path) -> None:
    one, two, three = (GpuLocks(str(tmp_path)) for _ in range(3))
    assert one.take(order_of(tmp_path, "one", "o1"), [UUIDS[5]]) is None
    assert two.take(order_of(tmp_path, "two", "o2"), UUIDS, seconds=0.1) is not None
    assert three.take(order_of(tmp_path, "three", "o3"), UUIDS[:5]) is None


@pytest.mark.parametrize(("state", "kept"), [(State.LOADING, True), (State.CHECKED, False), (State.DONE, False)])
def test_a_gpu_is_not_given_away_under_an_order_that_was_cut_off_half_way(tmp_path: Path, state: str, kept: bool) -> None:
    order, _ = write_order(tmp_path, "o1", state, service="one")
    left = GpuLock(UUIDS[0], "one", "o1", "relaunch", "bob@desk", 1.0)
    (tmp_path / ".gpus").mkdir()
    (tmp_path / ".gpus" / UUIDS[0]).write_text(json.dumps(wire.to_json(left)))
    assert bool(held_gpus(str(tmp_path))) is kept
    holder = GpuLocks(str(tmp_path)).take(order_of(tmp_path, "two", "o2"), UUIDS[:1])
    assert (holder == left) if kept else holder is None
    if kept:
        again, other = GpuLocks(str(tmp_path)), GpuLocks(str(tmp_path))
        again.retake(order)
        assert other.take(order_of(tmp_path, "two", "o2"), UUIDS[:1], seconds=0.1) == left


def test_an_order_is_refused_while_another_one_has_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.gpu.read_gpus", lambda seconds: EIGHT)
    monkeypatch.setattr(locks, "_PROBE_SECONDS", 0.1)
    order, path = write_order(tmp_path, "o2", service="two")
    launch = wire.Launch("l", "two", "auto", "/py", [], "127.0.0.1", 1, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    order = wire.Order(**{**vars(order), "new": launch})
    other = GpuLocks(str(tmp_path))
    assert other.take(order_of(tmp_path, "one", "o1"), [UUIDS[1]]) is None
    result = supervisor.supervise(order, path)
    assert (result.state, result.exit_code) == (State.REFUSED, 5)
    assert f"{UUIDS[1]} is held by the relaunch o1 of one by bob@desk" in result.summary


def test_an_order_is_not_begun_while_the_machine_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PREPARING_SECONDS", 0.1)
    order, path = write_order(tmp_path, "o1")
    with HostFolder(str(tmp_path)).locked(Holder("eve@pad", "", "fast")):
        with pytest.raises(AgentRefusal, match="knobs of this machine are being changed: by eve@pad"):
            supervisor.submit(order, refuse_to_emit)
        result = supervisor.supervise(order, path)
    assert (result.exit_code, "eve@pad" in result.summary) == (5, True)


def test_a_supervisor_that_takes_over_holds_its_gpus_again_and_gives_them_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, path = write_order(tmp_path, "o1", State.CHECKED, State.LOADING)
    gpu = tmp_path / ".gpus" / UUIDS[0]
    gpu.parent.mkdir()
    gpu.write_text(json.dumps(wire.to_json(GpuLock(UUIDS[0], "svc", "o1", "relaunch", "bob@desk", 1.0))))
    held: list[bool] = []

    def carry_out(*_: Any) -> wire.OrderResult:
        with gpu.open() as stream:
            held.append(not try_lock(stream.fileno(), fcntl.LOCK_SH))
        return wire.OrderResult("o1", State.DONE, 0, "", "serving")

    monkeypatch.setattr(supervisor, "_carry_out", carry_out)
    supervisor.supervise(order, path)
    assert held == [True]
    assert gpu.read_text() == ""
