"""The lock of a roll in its replica's state folder: one of two gets it, it is kept until it is released, and only its own is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.agent.roll_lock import rolling
from orchestrator.agent.wire_router import RollLock, RollLockAction, RollLockRequest, RollLockStatus


def ask(root: Path, action: str, token: str = "", instead_of: str | None = None) -> RollLockStatus:
    request = RollLockRequest("r1", str(root), action, "front", f"roll-{token}", token, f"{token}@laptop", instead_of)
    return rolling(request, lambda kind, data: None)


def holder(status: RollLockStatus) -> str | None:
    return None if status.held is None else status.held.token


def test_the_second_hears_whose_it_is_and_since_when(tmp_path: Path) -> None:
    first = ask(tmp_path, RollLockAction.TAKE, "ann").held
    assert isinstance(first, RollLock)
    assert (first.router, first.roll, first.operator) == ("front", "roll-ann", "ann@laptop")
    assert first.since > 0
    assert ask(tmp_path, RollLockAction.TAKE, "bob").held == first
    assert ask(tmp_path, RollLockAction.TAKE, "ann").held == first, "taken up again"
    assert ask(tmp_path, RollLockAction.STATUS).held == first
    assert (tmp_path / "r1" / "rolled.json").stat().st_mode & 0o777 == 0o600


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda number: holder(ask(tmp_path, RollLockAction.TAKE, f"t{number}")), range(24)))
    assert len(set(seen)) == 1


def test_only_its_own_is_released(tmp_path: Path) -> None:
    ask(tmp_path, RollLockAction.TAKE, "ann")
    assert holder(ask(tmp_path, RollLockAction.RELEASE, "bob")) == "ann"
    released = ask(tmp_path, RollLockAction.RELEASE, "ann")
    assert (released.held, released.released is not None) == (None, True)
    assert ask(tmp_path, RollLockAction.RELEASE, "ann") == RollLockStatus()
    assert holder(ask(tmp_path, RollLockAction.TAKE, "bob")) == "bob"


@pytest.mark.parametrize(("instead_of", "expected"), [("ann", "bob"), ("eve", "ann"), (None, "ann")])
def test_one_that_is_given_up_is_replaced_and_no_other(tmp_path: Path, instead_of: str | None, expected: str) -> None:
    ask(tmp_path, RollLockAction.TAKE, "ann")
    assert holder(ask(tmp_path, RollLockAction.TAKE, "bob", instead_of)) == expected


def test_a_look_makes_no_folder(tmp_path: Path) -> None:
    assert ask(tmp_path, RollLockAction.STATUS) == RollLockStatus()
    assert list(tmp_path.iterdir()) == []


def test_one_that_cant_be_understood_stands_until_it_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "rolled.json").write_text("{")
    held = ask(tmp_path, RollLockAction.TAKE, "ann").held
    assert held is not None
    assert (held.operator, "can't be understood" in held.roll) == ("somebody", True)
    ask(tmp_path, RollLockAction.RELEASE, held.token)
    assert holder(ask(tmp_path, RollLockAction.TAKE, "ann")) == "ann"
