"""Where output goes: a terminal (rich), anything else (plain lines with the time), or one JSON document.

Each screen is an observer (orchestrator.flows.observer) and shows blocks. Whatever is written goes through the redactor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, TextIO

from orchestrator.agent import wire
from orchestrator.cli import text
from orchestrator.cli.blocks import Block, Line, Table, Tone, table_rows, wrapped
from orchestrator.cli.called import as_typed, typed_in
from orchestrator.cli.documents.envelope import document, written, written_on_a_line
from orchestrator.cli.hook_text import hook_line, notice_line
from orchestrator.cli.pace import Ended, Pace
from orchestrator.errors import OrchestratorError
from orchestrator.results.redaction import Redactor

if TYPE_CHECKING:
    from orchestrator.cli.documents.envelope import Envelope
    from orchestrator.flows.plan import Plan
    from orchestrator.results.hook_run import HookRun

_SAME_PHASE_SECONDS = 60.0
"""On a plain screen, a phase that only grows older is told again no more often than this."""

EVENT_INDENTATION = len("00:00:00  ")
_USUAL_WIDTH = 80
"""Of a pipe, a file or a log."""
LEAST_WIDTH = 40


def open_screen(redactor: Redactor, *, as_json: bool) -> Screen:
    """The screen for this process's standard output. Where a stream was closed (``>&-``), what goes there goes nowhere."""
    sys.stdout, sys.stderr = (stream or io.StringIO() for stream in (sys.stdout, sys.stderr))
    if as_json:
        return JsonScreen(redactor)
    if sys.stdout.isatty():
        from orchestrator.cli.terminal import TerminalScreen

        return TerminalScreen(redactor)
    return Screen(redactor)


class Screen:
    """Lines for a pipe, a file or a log: events with the local time, answers as they are."""

    def __init__(self, redactor: Redactor, out: TextIO | None = None, errors: TextIO | None = None) -> None:
        self.redactor = redactor
        self._out = out or sys.stdout
        self._errors = errors or sys.stderr
        self.hooks: list[HookRun] = []
        """What became of the commands around the order, so far."""
        self.noticed: wire.Fate | None = None
        """What became of the notice of its end; None: there is none, or nobody has said."""
        self.outlives_reader = False
        """Whether a reader of the output who leaves (``| head``) ends nothing: a change is watched to its exit code."""
        self.width = max(LEAST_WIDTH, shutil.get_terminal_size((_USUAL_WIDTH, 24)).columns)
        self._last_phase: tuple[str, str, str] | None = None
        self._last_time = 0.0
        self._pace = Pace()

    def show(self, blocks: Iterable[Block]) -> None:
        """Show a part of the answer."""
        for block in blocks:
            self._show_block(block)

    def _show_block(self, block: Block) -> None:
        for line in self._lines(block):
            self._print(line)

    def _lines(self, block: Block) -> list[str]:
        return [line for row in self._rows(block) for line in row]

    def _rows(self, block: Block) -> list[list[str]]:
        """The lines of a text, or of a table's headings and rows. Secrets are masked before a line's end can part them."""
        if isinstance(block, Table):
            return table_rows(self._masked(block), self.width)
        text = self._said(f"{block.text}  {block.aside}" if block.aside else block.text)
        return [[text] if block.whole else wrapped(text, self.width)]

    def _masked(self, table: Table) -> Table:
        rows = [[self._said(cell) for cell in row] for row in table.rows]
        return dataclasses.replace(table, rows=rows, notes=[self._said(note) for note in table.notes])

    def _said(self, text: str) -> str:
        """A text of ours, to be shown: without secrets, its commands as they are typed here. A server's log is none."""
        return as_typed(self.redactor.text(text))

    def _print(self, line: str) -> None:
        try:
            print(self.redactor.text(line), file=self._out, flush=True)
        except OSError as error:
            lost, self._out = self._out, io.StringIO()
            self._give_up(lost, error)

    def _give_up(self, stream: TextIO, error: OSError) -> None:
        """Write no more to where nothing can be written: a reader has left, or a disk is full. A change is still watched to its end.

        Raises:
            BrokenPipeError: a reader has left, and there is nothing to be watched.
            OrchestratorError: something else is wrong with it, and there is nothing to be watched.
        """
        if isinstance(error, BrokenPipeError) and not self.outlives_reader:
            raise error
        discard(stream)
        message = f"standard output can't be written: {error.strerror or error}"
        if not self.outlives_reader:
            raise OrchestratorError(message, next_step="df -h, or another file") from None
        if not isinstance(error, BrokenPipeError):
            self.warn(message)

    def document(self, envelope: Envelope, answer: Any) -> None:
        """Give the whole answer as JSON: nothing to do where it was shown as text."""

    def line(self, envelope: Envelope, answer: Any) -> None:
        """Give the answer of one of many as JSON on one line: nothing to do where it is shown as text."""

    def watch(self, blocks: Callable[[], Sequence[Block]]) -> bool:
        """Show what `blocks` gives, again and again until :meth:`close`; whether this is a screen on which that can be seen."""
        return False

    def room(self, taken: int) -> int:
        """How many more lines there is room for at once where `taken` are taken; at least one."""
        return max(1, shutil.get_terminal_size((_USUAL_WIDTH, 24)).lines - taken)

    def error(self, blocks: Iterable[Block]) -> None:
        """Show on standard error why it did not go well."""
        for block in blocks:
            for line in self._lines(block):
                print(line, file=self._errors, flush=True)

    @property
    def interactive(self) -> bool:
        """Whether there is somebody to ask."""
        return False

    def ask(self, question: str) -> bool:
        """Ask a yes-or-no question; anything but yes is no."""
        return False

    def choose(self, question: str, answers: Sequence[str], otherwise: str) -> str:
        """Ask until one of `answers`, or its first letter, is given; `otherwise` where nobody answers."""
        return otherwise

    def prompt(self, question: str, default: str = "") -> str | None:
        """Ask for a word; `default` where nothing is typed, None where nobody answers."""
        return None

    def close(self) -> None:
        """Take away what is only there while something goes on."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A verb is at work. Where something moves on the screen, what it waits for is shown meanwhile."""
        yield

    def event(self, line: str, tone: Tone = "") -> None:
        """Show one line with the time of day."""
        for part in wrapped(f"{time.strftime('%H:%M:%S')}  {self._said(line)}", self.width, hang=EVENT_INDENTATION):
            self._print(part)

    def note(self, text: str) -> None:
        self.event(text, "quiet")

    def warn(self, text: str) -> None:
        self.error([Line(f"warning: {text}", "warn")])

    def hide(self, values: Sequence[str]) -> None:
        self.redactor.add(values)

    def plan(self, plan: Plan) -> None:
        self.show(text.plan_blocks(plan))

    def state(self, entry: wire.StateEntry) -> None:
        self._last_phase = None
        self._tell_ended(self._pace.enter(entry))
        self.event(*text.state_line(entry))

    def progress(self, progress: wire.Progress) -> None:
        self._tell_pace(progress)
        key = (progress.state, progress.phase, progress.detail)
        now = time.monotonic()
        if key == self._last_phase and now - self._last_time < _SAME_PHASE_SECONDS:
            return
        self._last_phase, self._last_time = key, now
        self.event(text.progress_line(progress, self._pace.timed(progress)), "quiet")

    def _tell_pace(self, progress: wire.Progress) -> None:
        """Say what phase of a load is over, and once of each that takes longer than ever."""
        self._tell_ended(self._pace.hear(progress))
        overdue = self._pace.newly_overdue(progress)
        if overdue is not None:
            self.event(text.overdue_line(progress, overdue), "warn")

    def _tell_ended(self, ended: Ended | None) -> None:
        if ended is not None:
            self.event(text.ended_line(ended.progress, ended.timed), "warn" if ended.timed.is_overdue else "quiet")

    def log(self, text: str) -> None:
        self._print(text)

    def result(self, result: wire.OrderResult) -> None:
        self.show(text.result_blocks(result))

    def collected(self, collected: wire.Collected) -> None:
        """Kept in the run folder, not shown."""

    @property
    def kept_in(self) -> str | None:
        """Nothing is kept of what is shown."""
        return None

    def hook(self, run: HookRun) -> None:
        self.hooks.append(run)
        self.event(*hook_line(run))

    def notice(self, fate: wire.Fate) -> None:
        self.noticed = fate
        self.event(*notice_line(fate))


def discard(stream: IO[str]) -> None:
    """Let what is still buffered for a reader who has left go nowhere, instead of failing at the interpreter's last flush."""
    with contextlib.suppress(OSError):  # no file of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class JsonScreen(Screen):
    """One document on standard output, at the end; everything else goes to standard error."""

    def __init__(self, redactor: Redactor, out: TextIO | None = None, errors: TextIO | None = None) -> None:
        super().__init__(redactor, errors or sys.stderr, errors or sys.stderr)
        self._document_stream = out or sys.stdout
        self._heard: dict[str, Any] = {}

    def show(self, blocks: Iterable[Block]) -> None:
        """The document holds it."""

    def plan(self, plan: Plan) -> None:
        self._heard["plan"] = plan

    def result(self, result: wire.OrderResult) -> None:
        self._heard["result"] = result

    def hook(self, run: HookRun) -> None:
        super().hook(run)
        self._heard["hooks"] = self.hooks

    def notice(self, fate: wire.Fate) -> None:
        super().notice(fate)
        self._heard["notice"] = fate

    def document(self, envelope: Envelope, answer: Any) -> None:
        """Write the answer; where there is none, the plan and the result that were heard before it failed, and what was done around it."""
        self._write_json(document(envelope, self._heard if answer is None or envelope.error is not None else vars(answer)), written)

    def line(self, envelope: Envelope, answer: Any) -> None:
        self._write_json(document(envelope, answer if isinstance(answer, dict) else vars(answer)), written_on_a_line)

    def _write_json(self, data: Any, write: Callable[[Any], str]) -> None:
        text = write(typed_in(self.redactor.data(data)))
        try:
            print(text, file=self._document_stream, flush=True)
        except OSError as error:
            lost, self._document_stream = self._document_stream, io.StringIO()
            self._give_up(lost, error)
