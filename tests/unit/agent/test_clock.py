"""The moment of boot, by which places of one machine know each other."""

from __future__ import annotations

import re
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import orchestrator.agent
from orchestrator.agent.clock import GAP_SECONDS, SteadyClock, boot_moment, wait_set


def test_the_moment_is_the_same_each_time_it_is_asked() -> None:
    moments = [boot_moment() for _ in range(20)]
    assert max(moments) - min(moments) < 0.05
    assert abs(moments[0] - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))) < 0.5


@pytest.mark.parametrize(
    ("text", "offset"), [("monotonic 5 0\nboottime 86400 500000000\n", 86400.5), ("boottime 0 0\n", 0.0), ("", 0.0), (None, 0.0)]
)
def test_the_offset_of_a_time_namespace_is_taken_out(text: str | None, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> StringIO:
        if text is None:
            raise FileNotFoundError
        return StringIO(text)

    expected = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr("builtins.open", opened)
    assert abs(boot_moment() - expected - offset) < 0.5


class Reading:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.moment = 1000.0

    def __call__(self) -> float:
        return self.moment


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Without a heartbeat of its own: the test touches the clock, or does not."""
    monkeypatch.setattr("orchestrator.agent.clock.BEAT_SECONDS", 3600.0)
    return Reading()


def test_a_gap_is_left_out_once_whoever_comes_first(reading: Reading) -> None:
    clock = SteadyClock(reading)
    clock.start()
    began = clock.now()
    reading.moment += 300.0
    moments: list[float] = []
    threads = [threading.Thread(target=lambda: moments.append(clock.now())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.stop()

    assert moments == [began] * 8
    assert [gap.seconds for gap in clock.gaps()] == [300.0]


def test_time_that_somebody_was_awake_in_counts(reading: Reading) -> None:
    clock = SteadyClock(reading)
    clock.start()
    began = clock.now()
    for _ in range(10):
        reading.moment += GAP_SECONDS
        clock.now()
    clock.stop()

    assert clock.now() - began == 50.0
    assert clock.gaps() == []


def test_without_a_heartbeat_nothing_is_left_out(reading: Reading) -> None:
    clock = SteadyClock(reading)
    began = clock.now()
    reading.moment += 300.0

    assert clock.now() - began == 300.0


def test_the_heartbeat_touches_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.clock.BEAT_SECONDS", 0.01)
    read = Reading()
    asked = threading.Event()

    def reading() -> float:
        if threading.current_thread().name == "heartbeat":
            asked.set()
        return read()

    clock = SteadyClock(reading)
    clock.start()
    assert asked.wait(10.0)
    clock.stop()


def test_no_wait_of_the_agent_is_measured_by_the_wall_clock() -> None:
    """Before Python 3.11 the timed waits of threading are, and one that the clock is set back in lasts for hours."""
    timed = re.compile(r"(?:[Tt]hread|_ended|_done|[Ee]vent|stop)\.(?:wait|join)\([^)]")
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(Path(orchestrator.agent.__file__).parent.glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if timed.search(line)
    ]
    assert found == []


def test_an_event_is_waited_for_as_long_as_asked() -> None:
    event = threading.Event()
    assert not wait_set(event, 0.02)
    event.set()
    assert wait_set(event, 0.0)


def test_a_forked_child_has_no_heartbeat_to_rely_on(reading: Reading) -> None:
    clock = SteadyClock(reading)
    clock.start()
    clock.after_fork()
    began = clock.now()
    reading.moment += 300.0

    assert clock.now() - began == 300.0
