"""One thing for many: order, bound, one that hangs or raises, Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from orchestrator.errors import InterruptedByOperatorError
from orchestrator.flows.side_by_side import Endings, Overdue, all_of, default_bound
from tests.rig.commands import wait_for

ENDINGS = Endings[str](failed=lambda index, error: f"{index} raised {error}", interrupted=lambda index, asked: f"{index} asked: {asked}")


def nothing(index: int, answer: str) -> None:
    """Nobody listens."""


def test_answers_come_in_the_order_asked_and_are_heard_as_they_come() -> None:
    second_is_heard = threading.Event()

    def work(index: int, permit: Callable[[], None]) -> str:
        if index == 0:
            assert second_is_heard.wait(30)
        return str(index)

    heard: list[int] = []

    def told(index: int, answer: str) -> None:
        heard.append(index)
        second_is_heard.set()

    assert all_of(2, work, ENDINGS, told, 2) == ["0", "1"]
    assert heard == [1, 0]


@pytest.mark.parametrize("bound", [1, 3])
def test_no_more_than_the_bound_at_a_time(bound: int) -> None:
    lock = threading.Lock()
    now = most = 0
    full = threading.Barrier(bound)

    def work(index: int, permit: Callable[[], None]) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        full.wait(30)  # as many as may be are here at once
        with lock:
            now -= 1
        return ""

    assert len(all_of(bound * 4, work, ENDINGS, nothing, bound)) == bound * 4
    assert most == bound


def test_what_one_raises_is_its_own_answer() -> None:
    def work(index: int, permit: Callable[[], None]) -> str:
        if index == 1:
            raise ValueError("by accident")
        return str(index)

    assert all_of(3, work, ENDINGS, nothing, 1) == ["0", "1 raised by accident", "2"]


def test_those_that_hang_are_given_up_and_leave_their_place_to_the_others() -> None:
    let_go = threading.Event()

    def work(index: int, permit: Callable[[], None]) -> str:
        if index < 2:
            let_go.wait(60)
        return str(index)

    begun = time.monotonic()
    try:
        answers = all_of(6, work, ENDINGS, nothing, 2, Overdue(0.1, lambda index: f"{index} is late"))
    finally:
        let_go.set()
    assert answers == ["0 is late", "1 is late", "2", "3", "4", "5"]
    assert time.monotonic() - begun < 20


def test_a_late_answer_is_dropped() -> None:
    let_go = threading.Event()
    heard: list[str] = []

    def work(index: int, permit: Callable[[], None]) -> str:
        if index == 0:
            let_go.wait(60)
        return str(index)

    def told(index: int, answer: str) -> None:
        heard.append(answer)
        let_go.set()

    all_of(4, work, ENDINGS, told, 1, Overdue(0.05, lambda index: f"{index} is late"))
    assert heard == ["0 is late", "1", "2", "3"]


def test_ctrl_c_tells_of_each_whether_it_was_asked_and_lets_nothing_more_out() -> None:
    asked, closed = threading.Event(), threading.Event()
    let_out: list[bool] = []

    def work(index: int, permit: Callable[[], None]) -> str:
        if index == 0:
            permit()
            asked.set()
            closed.wait(60)
        elif index == 1:
            return "1"
        else:
            closed.wait(60)
            try:
                permit()
                let_out.append(True)
            except InterruptedByOperatorError:
                let_out.append(False)
        return "late"

    def told(index: int, answer: str) -> None:
        assert asked.wait(30)
        raise KeyboardInterrupt

    answers = all_of(4, work, ENDINGS, told, 3)
    closed.set()
    assert answers == ["0 asked: True", "1", "2 asked: False", "3 asked: False"]
    wait_for("somebody who asks for leave", lambda: bool(let_out), 10)
    assert not any(let_out)


def test_the_usual_bound_is_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, bound in ((1, 16), (2, 32), (4, 64), (128, 64)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert default_bound() == bound
