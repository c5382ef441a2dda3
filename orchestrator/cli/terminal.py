"""The screen of a person's terminal: colours that mean something, and one line that moves."""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from orchestrator.agent import wire
from orchestrator.cli import text
from orchestrator.cli.blocks import Block, Line, Tone, note_lines, part_aside, wrapped
from orchestrator.cli.screen import EVENT_INDENTATION, LEAST_WIDTH, Screen, discard
from orchestrator.remote.waiting import LONGEST_DEAF, listening
from orchestrator.results.redaction import Redactor

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from orchestrator.remote.waiting import Wait

_SHORT_WAIT_SECONDS = 1.0
"""What takes no longer is not worth a line."""

_SPINNER = "|/-\\"

_STYLES: dict[Tone, str] = {"": "", "good": "green", "warn": "yellow", "bad": "bold red", "quiet": "dim", "strong": "bold"}


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """Put Ctrl-C off for a moment: rich can't take back half of what begins or ends a live line."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *what: caught.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught and callable(before):
        before(*caught[0])


def _typed(prompt: str) -> str:
    """The line that somebody types. Ctrl-C in the moment in which reading begins would be heard only at the line's end: so it is waited for
    in short pieces, and read when it is there.

    Raises:
        EOFError: Ctrl-D.
    """
    if not sys.stdin.isatty():
        return input(prompt)
    sys.stdout.write(prompt)
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], LONGEST_DEAF)[0]:
        pass
    return input()


class TerminalScreen(Screen):
    """A person's terminal: colour, and one live line for what goes on now, or for what is waited for.

    Threads come here only to begin or end a wait; whatever has to do with the live line is done under one lock.
    """

    def __init__(self, redactor: Redactor, console: Console | None = None, errors: Console | None = None) -> None:
        super().__init__(redactor)
        from rich.console import Console

        self._console = console or Console(highlight=False, soft_wrap=True)
        self._error_console = errors or Console(stderr=True, highlight=False, soft_wrap=True)
        self.width = max(LEAST_WIDTH, self._console.width)
        self._live: Live | None = None
        self._now: tuple[wire.Progress, float] | None = None
        self._waits: list[Wait] = []
        self._asks = False
        self._watched = False
        """Whether what moves is what somebody else tells, again and again: that says itself what is waited for."""
        self._guard = threading.RLock()

    def wait(self, wait: Wait) -> Callable[[], None]:
        """Show a wait that begins, once it takes long and nothing else is shown; what is returned ends it."""
        if self._watched:
            return lambda: None
        late = threading.Timer(_SHORT_WAIT_SECONDS, self._show_waits)
        late.daemon = True
        with self._guard:
            self._waits.append(wait)
        late.start()

        def ended() -> None:
            late.cancel()
            with self._guard, contextlib.suppress(ValueError):  # the verb has ended before
                self._waits.remove(wait)
                if not self._waits and self._now is None and not self._watched:
                    self.close()

        return ended

    def _show_waits(self) -> None:
        with self._guard:
            if self._waits and self._live is None and not self._asks:
                self._begin_live(self._moving_line)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        try:
            with listening(self.wait):
                yield
        finally:
            with self._guard:
                self._waits.clear()
            self.close()

    @contextlib.contextmanager
    def _question(self) -> Iterator[None]:
        """Somebody reads and types: no line may move meanwhile."""
        with self._guard:
            self._asks = True
            self.close()
        try:
            yield
        except KeyboardInterrupt:
            self._write(self._console, "")  # what is said of it gets a line of its own
            raise
        finally:
            self._asks = False

    def _print(self, line: str) -> None:
        self._write(self._console, line)

    def _show_block(self, block: Block) -> None:
        self._write_block(self._console, block)

    def error(self, blocks: Iterable[Block]) -> None:
        self.close()
        for block in blocks:
            self._write_block(self._error_console, block)

    def _write_block(self, console: Console, block: Block) -> None:
        if isinstance(block, Line):
            for text_part, aside in part_aside(self._rows(block)[0], self._said(block.aside)):
                self._write(console, text_part, block.tone, aside=aside)
            return
        for line, tone in self._toned(block):
            self._write(console, line, tone)

    def _toned(self, block: Block) -> list[tuple[str, Tone]]:
        """Its lines; what is noted below a row is quiet."""
        rows = self._rows(block)
        if isinstance(block, Line):
            return [(line, block.tone) for line in rows[0]]
        tones: list[Tone] = ["strong", *(block.tone(index) for index in range(len(rows) - 1))]
        table, toned = self._masked(block), []
        for index, (row, tone) in enumerate(zip(rows, tones, strict=True)):
            cells = len(row) - len(note_lines(table, index - 1, self.width))
            toned += [(line, tone if number < cells else "quiet") for number, line in enumerate(row)]
        return toned

    def _write(self, console: Console, line: str, tone: Tone = "", time_of_day: str = "", aside: str = "") -> None:
        from rich.text import Text

        shown = Text.assemble((time_of_day, "dim"), (self.redactor.text(line), _STYLES[tone]), (aside, _STYLES["quiet"]))
        try:
            console.print(shown)
        except OSError:  # the terminal has gone: SIGHUP ends what it ends, and nothing of that may hang on what is shown
            discard(console.file)

    @property
    def interactive(self) -> bool:
        return sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        try:
            with self._question():
                answer = _typed(f"{question} [y/N] ")
        except (EOFError, OSError):
            return False
        return answer.strip().lower() in {"y", "yes"}

    def choose(self, question: str, answers: Sequence[str], otherwise: str) -> str:
        letters = {form: answer for answer in answers for form in (answer, answer[0])}
        while True:
            try:
                with self._question():
                    given = _typed(f"{question}: ").strip().lower()
            except (EOFError, OSError):
                return otherwise
            if given in letters:
                return letters[given]

    def prompt(self, question: str, default: str = "") -> str | None:
        try:
            with self._question():
                return _typed(f"{question}{f' [{default}]' if default else ''}: ").strip() or default
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        with self._guard:
            if self._live is not None:
                with _whole(), contextlib.suppress(OSError):  # the terminal may have gone
                    self._live.stop()
                self._live = None
            self._now = None
            self._watched = False

    def _begin_live(self, moving: Callable[[], Any], times_a_second: int = 8) -> None:
        from rich.live import Live

        with self._guard, _whole():
            self._live = Live(console=self._console, transient=True, refresh_per_second=times_a_second, get_renderable=moving)
            self._live.start()

    def event(self, line: str, tone: Tone = "") -> None:
        self.close()
        first, *rest = wrapped(self._said(line), self.width - EVENT_INDENTATION, hang=0)
        self._write(self._console, first, tone, time.strftime("%H:%M:%S  "))
        for part in rest:
            self._write(self._console, " " * EVENT_INDENTATION + part, tone)

    def progress(self, progress: wire.Progress) -> None:
        self._tell_pace(progress)
        with self._guard:
            self._now = (progress, time.monotonic())
            if self._live is None:
                self._begin_live(self._moving_line)

    def watch(self, blocks: Callable[[], Sequence[Block]]) -> bool:
        with self._guard:
            self.close()
            self._watched = True
            self._begin_live(lambda: self._moving(blocks()), times_a_second=4)
        return True

    def _moving(self, blocks: Sequence[Block]) -> Any:
        """As much of them as the terminal has room for."""
        from rich.text import Text

        lines = [Text(line, _STYLES[tone], no_wrap=True, overflow="ellipsis") for block in blocks for line, tone in self._toned(block)]
        return Text("\n").join(lines[: max(1, self._console.height - 1)])

    def _moving_line(self) -> Any:
        """What goes on, with the time since it was heard added: a phase that says nothing still grows older."""
        from rich.text import Text

        now, waits = self._now, self._waits[:]
        if now is not None:
            timed = self._pace.timed(now[0], time.monotonic() - now[1])
            line, overdue = text.progress_line(now[0], timed), timed.is_overdue
        elif waits:
            line, overdue = text.waiting_line(waits, time.monotonic()), False
        else:
            return Text()
        line = self.redactor.text(line)
        spinner = _SPINNER[int(time.monotonic() * 8) % len(_SPINNER)]
        tone: Tone = "warn" if overdue else ""
        return Text.assemble((spinner, "cyan"), " ", (line, _STYLES[tone]), no_wrap=True, overflow="ellipsis")

    def result(self, result: wire.OrderResult) -> None:
        self.close()
        super().result(result)
