"""What a supervisor makes of an order that it can't, or may not, carry out."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from orchestrator.agent import supervisor, wire
from orchestrator.agent.follow import follow
from orchestrator.agent.history import read_history
from orchestrator.agent.journal import JOURNAL, Journal, ServiceLock, read_journal
from orchestrator.agent.locks import GpuLocks
from orchestrator.agent.private_files import write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder, read_record

ORDER = wire.Order("o2", wire.OrderKind.TEARDOWN, "svc", "", 1, wire.Policy(), "ann@laptop")


def keep_order(tmp_path: Path) -> tuple[wire.Order, StateFolder, Path]:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    path = folder.order_folder("o2")
    path.mkdir()
    order = wire.Order("o2", wire.OrderKind.TEARDOWN, "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop")
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    return order, folder, path


@pytest.mark.slow
def test_who_finds_the_service_held_leaves_that_as_its_result(tmp_path: Path) -> None:
    order, folder, path = keep_order(tmp_path)
    other = ServiceLock(folder)
    assert other.take("o1")
    try:
        supervisor.supervise(order, path)
    finally:
        other.release()
    told = follow(wire.OrderReference("svc", str(tmp_path), "o2"), lambda *_: None)
    assert (told.state, told.exit_code, told.service) == ("REFUSED", 5, "unchanged")
    assert "o1 is at work" in told.summary


def test_an_order_that_nobody_began_is_taken_back_for_good(tmp_path: Path) -> None:
    order, folder, path = keep_order(tmp_path)
    (path / "supervisor.log").write_text("Traceback\nOSError: no such file\n")
    with pytest.raises(AgentRefusal, match="nothing was touched") as refused:
        supervisor._withdraw(folder, path, "session 7")
    assert refused.value.failure.evidence == ["OSError: no such file"]
    assert not path.exists()
    with pytest.raises(OSError, match=str(path)):
        supervisor.supervise(order, path)


def test_a_supervisor_that_is_late_finds_that_its_order_was_taken_back(tmp_path: Path) -> None:
    order, _, path = keep_order(tmp_path)
    (path / "order.json").unlink()
    result = supervisor.supervise(order, path)
    assert (result.state, result.summary) == ("REFUSED", "the order was withdrawn before it was begun")
    assert read_journal(path / JOURNAL) == []
    assert read_record(wire.OrderResult, path / "result.json") is None


def test_a_result_whose_writer_was_killed_is_read_from_the_last_line(tmp_path: Path) -> None:
    order, _, path = keep_order(tmp_path)
    failure = wire.Failure("kernel_missing", "no kernel for this GPU", ["sm_120a"], "choose another")
    result = wire.OrderResult("o2", wire.State.RESTORED, 6, "put back", "the previous server serves again", failure, dark_seconds=7.5)
    with Journal(path) as journal:
        supervisor._write_last(journal, result)
    told = follow(wire.OrderReference("svc", str(tmp_path), "o2"), lambda *_: None)
    assert told == result
    assert supervisor.supervise(order, path) == result
    assert read_record(wire.OrderResult, path / "result.json") == result


@pytest.mark.slow
def test_an_order_whose_supervisor_is_at_work_is_not_taken_back(tmp_path: Path) -> None:
    _, folder, path = keep_order(tmp_path)
    lock = ServiceLock(folder)
    assert lock.take("o2")
    try:
        supervisor._withdraw(folder, path, "session 7")
    finally:
        lock.release()
    assert (path / "order.json").exists()


@pytest.mark.parametrize(
    ("error", "touched", "state", "exit_code", "service"),
    [
        (AgentRefusal("rights", "may not"), False, "REFUSED", 4, "unchanged"),
        (AgentRefusal("refused", "two servers"), False, "REFUSED", 3, "unchanged"),
        (OSError(errno.ENOSPC, "No space left on device"), False, "REFUSED", 3, "unchanged"),
        (ValueError("a fault"), False, "REFUSED", 1, "unchanged"),
        (ValueError("a fault"), True, "DOWN", 7, "not known to serve"),
        (AgentRefusal("kernel", "no pidfd"), True, "DOWN", 7, "not known to serve"),
    ],
)
def test_what_breaks_an_order_off_says_whether_anything_was_touched(
    error: Exception, touched: bool, state: str, exit_code: int, service: str
) -> None:
    result = supervisor._broken_off(ORDER, error, touched=touched)
    assert (result.state, result.exit_code, result.service) == (state, exit_code, service)


def test_a_result_that_finds_no_room_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, _, path = keep_order(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervisor, "write_private", full)
    monkeypatch.setattr(Journal, "state", full)
    result = supervisor.supervise(order, path)
    assert (result.state, result.exit_code) == ("REFUSED", 3)


@pytest.mark.parametrize(
    ("states", "state"),
    [(["CHECKED"], "REFUSED"), (["CHECKED", "STAGING"], "REFUSED"), (["CHECKED", "STAGING", "DRAINING"], "DOWN")],
)
def test_what_breaks_off_beside_an_old_server_that_was_left_alone_leaves_the_service_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], state: str
) -> None:
    order, _, path = keep_order(tmp_path)
    with Journal(path) as journal:
        for name in states:
            journal.state(name, "")

    def broken(*_: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("orchestrator.agent.relaunch.Relaunch.resume", broken)
    result = supervisor.supervise(order, path)
    assert (result.state, result.service == "unchanged") == (state, state == "REFUSED")


def test_an_order_with_a_staged_launch_is_not_kept_from_its_end(tmp_path: Path) -> None:
    order, folder, path = keep_order(tmp_path)
    write_private(folder.held, json.dumps(wire.to_json(wire.PersonLock("eve@pad", "firmware", 0.0))))
    with Journal(path) as journal:
        journal.state(wire.State.CHECKED, "")
        journal.state(wire.State.STAGING, "")
        history = read_history(read_journal(path / JOURNAL))
    assert supervisor._kept_away(order, folder, GpuLocks(str(tmp_path)), history) is None
    assert supervisor._kept_away(order, folder, GpuLocks(str(tmp_path)), None) is not None
