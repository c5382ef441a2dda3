from __future__ import annotations

import os
import time
from pathlib import Path

from orchestrator.agent.bounded_call import Answer, call_bounded, call_each_bounded


def test_answers_in_order() -> None:
    content = os.urandom(300_000)
    assert call_each_bounded([lambda: content, lambda: 7, lambda: None], 10) == [Answer(content), Answer(7), Answer(None)]
    assert call_each_bounded([], 10) == []


def test_exception_travels() -> None:
    answer = call_bounded(lambda: os.stat("/no such file"), 10)
    assert answer == Answer(None, "No such file or directory", 2)
    assert call_bounded(lambda: 1 / 0, 10).problem == "ZeroDivisionError: division by zero"


def test_stuck_call_is_left_behind_and_the_others_are_made(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    began = time.monotonic()
    stuck = lambda: os.open(tmp_path / "fifo", os.O_RDONLY)  # noqa: E731
    answers = call_each_bounded([lambda: 1, stuck, lambda: 3], 0.3)
    assert answers == [Answer(1), Answer(None, "no answer within 0.3 s", stuck=True), Answer(3)]
    assert time.monotonic() - began < 3


def test_child_that_ends_early() -> None:
    problem = "the child that asked ended early"
    assert call_each_bounded([lambda: 1, lambda: os._exit(3), lambda: 3], 10) == [Answer(1), Answer(None, problem), Answer(None, problem)]


def test_child_holds_nothing_that_its_parent_had_open(tmp_path: Path) -> None:
    held = os.open(tmp_path / "held", os.O_RDWR | os.O_CREAT)
    try:
        found = call_bounded(lambda: [name for name in range(held + 10) if os.path.exists(f"/proc/self/fd/{name}")], 10).value
    finally:
        os.close(held)
    assert len(found) == 1, "the pipe for the answers"


def test_child_is_reaped() -> None:
    before = os.listdir("/proc/self/task")
    pid = call_bounded(os.getpid, 10).value
    assert not os.path.exists(f"/proc/{pid}")
    assert os.listdir("/proc/self/task") == before
