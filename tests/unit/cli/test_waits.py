"""What is waited for, on a terminal: shown when it takes long, gone when it is over, never in the way of a question."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

import pytest
from rich.console import Console

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.cli.blocks import Line
from orchestrator.cli.screen import Screen
from orchestrator.cli.terminal import TerminalScreen
from orchestrator.cli.text import waiting_line
from orchestrator.remote.waiting import Wait, listening, waiting
from orchestrator.results.redaction import Redactor

WORDS = "waiting for gpu1/101: survey"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TerminalScreen, io.StringIO]]:
    monkeypatch.setattr("orchestrator.cli.terminal._SHORT_WAIT_SECONDS", 0.05)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, highlight=False, soft_wrap=True)
    screen = TerminalScreen(Redactor(), console, console)
    with screen.watching():
        yield screen, stream


def seen(stream: io.StringIO, words: str) -> bool:
    return wait_until(lambda: words in stream.getvalue(), Deadline(10.0), 0.01)


def test_a_wait_that_takes_long_is_shown_with_its_end(shown: tuple[TerminalScreen, io.StringIO]) -> None:
    screen, stream = shown
    with waiting(WORDS, 120.0):
        assert seen(stream, f"{WORDS} (0.")
        assert " s of at most 2 min 00 s)" in stream.getvalue()
        assert screen._live is not None
    assert screen._live is None
    assert stream.getvalue().count("\x1b[?25h") == stream.getvalue().count("\x1b[?25l") == 1, "the cursor is shown again"


def test_what_many_are_asked_for_is_neither_hidden_nor_ended_by_the_waits_for_them(shown: tuple[TerminalScreen, io.StringIO]) -> None:
    screen, stream = shown
    with waiting(WORDS, 120.0):
        assert screen.watch(lambda: [Line("1/3  1 serving")])
        moving = screen._live
    assert moving is not None
    assert screen._live is moving, "the end of a wait that began before takes nothing away"
    with waiting("logging in to gpu2", 120.0):
        assert seen(stream, "1/3  1 serving")
    assert screen._live is moving
    assert screen._waits == []
    screen.close()
    with waiting("a wait after that", 120.0):
        assert seen(stream, "a wait after that")


def test_a_short_wait_and_one_without_an_end_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Wait] = []
    with listening(lambda wait: heard.append(wait) or (lambda: None)):  # type: ignore[func-returns-value]
        with waiting("follow", None):
            pass
        with waiting("survey", 5.0):
            pass
    with waiting("after that", 5.0):
        pass
    assert [wait.what for wait in heard] == ["survey"]


def test_progress_is_shown_instead_of_the_wait_for_it(shown: tuple[TerminalScreen, io.StringIO]) -> None:
    screen, stream = shown
    with waiting("waiting for gpu1: measure", 900.0):
        screen.progress(wire.Progress("MEASURE", "sample 1 of 3", 1.0))
        assert str(screen._moving_line())[2:].startswith("MEASURE       sample 1 of 3 (1.")
        screen.event("a line")
        assert seen(stream, "waiting for gpu1: measure (")


def test_of_many_waits_the_longest_is_named() -> None:
    waits = [Wait("waiting for gpu2: tune", 11.0, 120.0), Wait("connecting to gpu1 at 192.0.2.11:22", 10.0, 10.0)]
    assert waiting_line(waits, 14.0) == "connecting to gpu1 at 192.0.2.11:22 (4.0 s of at most 10 s), and 1 more"


def test_a_wait_beside_a_question_moves_nothing(shown: tuple[TerminalScreen, io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    screen, stream = shown
    moved: list[bool] = []

    def question(_prompt: str) -> str:
        with waiting(WORDS, 120.0):  # as a host that is asked beside it
            timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
            for timer in timers:
                timer.join(10.0)
            moved.append(screen._live is not None)
        return "y"

    monkeypatch.setattr("builtins.input", question)
    assert screen.ask("now?") is True
    assert moved == [False]
    assert WORDS not in stream.getvalue()


def test_what_is_left_behind_by_ctrl_c_shows_nothing_any_more(shown: tuple[TerminalScreen, io.StringIO]) -> None:
    screen, stream = shown
    ended = screen.wait(Wait(WORDS, 0.0, 120.0))
    assert seen(stream, WORDS)
    with pytest.raises(KeyboardInterrupt), screen.watching():
        raise KeyboardInterrupt
    assert screen._live is None
    length = len(stream.getvalue())
    screen._show_waits()
    ended()
    assert len(stream.getvalue()) == length


def test_a_plain_screen_shows_no_waits() -> None:
    stream = io.StringIO()
    screen = Screen(Redactor(), stream, stream)
    with screen.watching(), waiting(WORDS, 120.0):
        pass
    assert stream.getvalue() == ""
