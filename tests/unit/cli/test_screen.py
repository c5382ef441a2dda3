"""The terminal's screen and the plain one."""

from __future__ import annotations

import io
import re
import signal
import time

import pytest
from rich.console import Console

from orchestrator.agent import wire
from orchestrator.cli.blocks import Line, Table, part_aside, table_lines, wrapped
from orchestrator.cli.screen import Screen
from orchestrator.cli.terminal import TerminalScreen
from orchestrator.cli.text import comparison, duration, ended, progress_line
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


@pytest.mark.parametrize("step", ["set_live", "clear_live", "pop_render_hook"])
def test_ctrl_c_in_the_middle_of_the_live_line_leaves_a_screen_that_can_be_closed(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, stream = terminal()
    whole = getattr(Console, step)

    def interrupted(console: Console, *given: object) -> object:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return whole(console, *given)

    def show() -> None:
        for number in range(2):
            screen.progress(wire.Progress("LOADING", "weights", 2.0, f"shards {number}/8"))
            screen.event("a line")

    monkeypatch.setattr(Console, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        show()
    screen.progress(wire.Progress("LOADING", "weights", 2.0, "shards 2/8"))
    screen.close()

    assert stream.getvalue().rpartition("\x1b[?25l")[2].count("\x1b[?25h") == 1, "the cursor is shown again"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (wire.State.WARMING, "the old server answers"),
        (wire.State.ACTIVATING, "nothing answers until its load is over"),
    ],
)
def test_what_clients_get_meanwhile_is_told(state: str, words: str) -> None:
    line = progress_line(wire.Progress(state, "imports", 2.0, "5 GiB of 9 GiB"))
    assert line == f"{state:<12}  imports: 5 GiB of 9 GiB (2.0 s); {words}"


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
    monkeypatch.setattr("orchestrator.cli.terminal.time.monotonic", lambda: started + 60.0)
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


LONG = "note: " + "a remark that goes on " * 9
COMMAND = "/opt/sglang/bin/python3 -m sglang.launch_server " + "--flag value " * 20


def test_everything_but_a_command_fits_eighty_columns_on_both_screens() -> None:
    on_terminal, stream = terminal()
    piped = io.StringIO()
    table = Table(["name", "now", "why"], [["--flag", "word " * 30, "because " * 20]])
    for screen in (on_terminal, Screen(Redactor(), piped, piped)):
        screen.width = 80
        screen.show([Line(LONG), Line(f"    {COMMAND}", whole=True), table])
        screen.error([Line(LONG)])
        screen.note(LONG)
        screen.state(wire.StateEntry(1, "CHECKED", 0.0, 0.0, LONG))
    for shown in (stream.getvalue(), piped.getvalue()):
        lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
        assert [line.strip() for line in lines if len(line) > 80] == [COMMAND.strip()]


def test_where_something_was_read_is_quiet_wherever_a_line_ends() -> None:
    on_terminal, stream = terminal()
    on_terminal.show([Line("  warn    xid: " + "word " * 12 + "end", "warn", aside=f"[/dev/kmsg of {CANARY} here]")])
    shown = stream.getvalue()
    quiet = "".join(re.findall(r"\x1b\[2m(.*?)\x1b\[0m", shown))
    assert " ".join(quiet.split()) == "[/dev/kmsg of ******** here]"
    yellow = "".join(re.findall(r"\x1b\[33m(.*?)\x1b\[0m", shown))
    assert yellow.split()[-1] == "end"


@pytest.mark.parametrize(
    ("lines", "aside", "parted"),
    [
        (["pass  [a b]"], "[a b]", [("pass  ", "[a b]")]),
        (["pass", "    [a", "    b]"], "[a b]", [("pass", ""), ("    ", "[a"), ("", "    b]")]),
        (["pass"], "", [("pass", "")]),
        ([""], "", [("", "")]),
    ],
)
def test_an_aside_is_found_again_in_wrapped_lines(lines: list[str], aside: str, parted: list[tuple[str, str]]) -> None:
    assert part_aside(lines, aside) == parted


def test_a_word_longer_than_a_line_stays_where_it_is() -> None:
    path = "/very" * 30
    assert wrapped(f"kept in {path}", 80) == [f"kept in {path}"]
    assert wrapped("  aa bb cc", 9) == ["  aa bb", "      cc"]
    assert wrapped("", 80) == [""]


def test_a_secret_is_masked_before_a_line_ends_in_it() -> None:
    stream = io.StringIO()
    redactor = Redactor()
    redactor.add(["two words"])
    screen = Screen(redactor, stream, stream)
    screen.width = 40
    screen.show([Line("x" * 34 + " two words"), Table(["a", "b"], [["y" * 20 + " two words", "z " * 30]])])
    screen.note("x" * 20 + " two words")
    assert "words" not in stream.getvalue()


def test_a_table_wraps_at_words_and_keeps_its_columns_apart() -> None:
    table = Table(["flag", "use"], [["--moe-runner-backend", "one two three four five six"]])
    assert table_lines(table, 40) == [
        "  flag                  use",
        "  --moe-runner-backend  one two three",
        "                        four five six",
    ]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("success exited 0", "exited with 0"),
        ("exit-code exited 2", "exited with 2"),
        ("signal killed KILL", "killed by SIGKILL"),
        ("core-dump dumped ABRT", "killed by SIGABRT"),
        ("-9", "exit status -9"),
    ],
)
def test_exit_statuses_in_words(status: str, words: str) -> None:
    assert ended(status) == words
