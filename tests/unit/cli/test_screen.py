"""The terminal's screen and the plain one."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from orchestrator.agent import wire
from orchestrator.cli.blocks import Line, Table, table_lines
from orchestrator.cli.screen import Screen, TerminalScreen
from orchestrator.cli.text import comparison, duration
from orchestrator.results.redaction import Redactor
from tests.unit.flows.samples import CANARY, done, timing


def terminal() -> tuple[TerminalScreen, io.StringIO]:
    stream = io.StringIO()
    redactor = Redactor()
    redactor.add([CANARY])
    console = Console(file=stream, force_terminal=True, width=80, highlight=False, soft_wrap=True)
    return TerminalScreen(redactor, console, console), stream


def test_a_terminal_shows_what_a_pipe_shows() -> None:
    screen, stream = terminal()
    screen.state(wire.StateEntry(1, "CHECKED", 0.0, 0.0, "all is well"))
    screen.progress(wire.Progress("LOADING", "weights", 2.0, "shards 1/8"))
    screen.state(wire.StateEntry(2, "VERIFIED", 0.0, 0.0, "it serves"))
    screen.result(done())
    shown = stream.getvalue()
    for words in ("CHECKED", "weights: shards 1/8 (2.0 s)", "VERIFIED", "time per output token, ms", "dark for 41.5 s"):
        assert words in shown


def test_a_terminal_takes_square_brackets_as_they_are() -> None:
    screen, stream = terminal()
    screen.log("[bold]not markup[/bold] [2026-11-29] :smile:")
    screen.progress(wire.Progress("LOADING", "[green]y[/green]", 1.0))
    screen.close()
    screen.show([Line("[red]x[/red]"), Table(["[a]"], [["[b]"]])])
    for words in ("[bold]not markup[/bold] [2026-11-29] :smile:", "[green]y[/green]", "[red]x[/red]", "[a]", "[b]"):
        assert words in stream.getvalue()


def test_a_terminal_masks_secrets_in_every_form() -> None:
    screen, stream = terminal()
    screen.log(CANARY)
    screen.note(CANARY)
    screen.progress(wire.Progress("LOADING", CANARY, 1.0))
    screen.show([Line(CANARY), Table(["x"], [[CANARY]])])
    screen.error([Line(CANARY), Table(["x"], [[CANARY]])])
    assert CANARY not in stream.getvalue()


def test_a_plain_screen_does_not_repeat_a_phase_that_only_grows_older() -> None:
    stream = io.StringIO()
    screen = Screen(Redactor(), stream, stream)
    for seconds in range(50):
        screen.progress(wire.Progress("LOADING", "weights", float(seconds)))
    screen.progress(wire.Progress("LOADING", "graph_capture", 51.0))
    assert len(stream.getvalue().splitlines()) == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [(25.0, 20.0, "faster: 1.25 times"), (20.0, 25.0, "slower: 0.80 times"), (25.0, 24.0, "no difference")],
)
def test_two_timings_differ_only_when_their_repeats_do_not_overlap(old: float, new: float, words: str) -> None:
    assert words in comparison(timing(old), timing(new))


def test_a_phase_that_says_nothing_grows_older(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, stream = terminal()
    screen.progress(wire.Progress("LOADING", "weights", 2.0))
    started = time.monotonic()
    monkeypatch.setattr("orchestrator.cli.screen.time.monotonic", lambda: started + 60.0)
    screen.close()
    assert "weights (1 min 02 s)" in stream.getvalue()


def test_a_table_is_aligned_and_never_cut() -> None:
    table = Table(["name", "n"], [["a", "10"], ["long name", "9"]], right=frozenset({"n"}))
    assert table_lines(table) == ["  name        n", "  a          10", "  long name   9"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7260, "2 h 01 min"), (200000, "2 d 7 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
