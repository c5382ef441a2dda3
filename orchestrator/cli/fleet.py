"""One question to many on the screen: a live table on a terminal, a line each elsewhere, one summary and one exit code."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestrator.cli.blocks import Block, Line, Table, Tone
from orchestrator.cli.fleet_rows import Row, error_row
from orchestrator.errors import InterruptedByOperatorError, OrchestratorError, UsageError, worst

if TYPE_CHECKING:
    from orchestrator.cli.edge import Call
    from orchestrator.config import Host, Inventory
    from orchestrator.flows.fleet import Answered, Fleet, Question, Subject

T = TypeVar("T")

_STEPS = 5
"""What is to be typed is told of this number, and of how many more there are."""


@dataclass(frozen=True)
class View(Generic[T]):
    """A verb's question to many, and how its answers are told.

    Attributes:
        columns: of the table, beside host, service and how it stands.
        row: one answer in it.
        document: the same as data, of the type that the verb's own document has.
        numbers: columns of numbers.
    """

    question: Question[T]
    columns: Sequence[str]
    row: Callable[[Subject, T], Row]
    document: Callable[[Subject, T], Any]
    exit_code: Callable[[T], int] = lambda answer: 0
    numbers: frozenset[str] = frozenset()


def named_hosts(call: Call, inventory: Inventory, text: str | None) -> list[Host] | None:
    """The hosts where several are meant (a list, a group, or all); None where it is one, or nothing was said.

    Raises:
        UsageError: there is no such host.
    """
    if text is None or not inventory.names_several(text):
        return None
    named = inventory.hosts_named(text)
    for item in named:
        if item.by_container:
            call.screen.note(f"{item.host.place(container=True).label} is on {item.host.name}: all services of {item.host.name} are meant")
    return [item.host for item in named]


def several(
    call: Call,
    inventory: Inventory,
    host: str | None,
    service: str | None,
    *,
    all: bool,  # noqa: A002  # the flag's name
    only_services: bool = False,
) -> list[Subject] | None:
    """What is meant where that is several; None where it is one, or nothing was said.

    Args:
        only_services: hosts without a service are left out, and that is told.

    Raises:
        UsageError: there is no such host or service, or nothing is left.
    """
    from orchestrator.cli.common import hosts_text
    from orchestrator.flows.fleet import subjects_of

    hosts = named_hosts(call, inventory, hosts_text(host, all=all))
    if hosts is None:
        return None
    subjects = subjects_of(inventory, hosts, service)
    without = [subject.host.name for subject in subjects if subject.target is None] if only_services else []
    left = [subject for subject in subjects if subject.host.name not in without]
    if not left:
        raise UsageError(
            "none of these hosts has a service" if without else "the inventory has no hosts",
            next_step=f"write one: {inventory.directory}/services/NAME.yml" if without else f"edit {inventory.directory}/hosts.yml",
        )
    if without:
        call.screen.note(f"left out, as they have no service: {', '.join(without)}")
    return left


def ask_many(call: Call, inventory: Inventory, subjects: Sequence[Subject], view: View[T], forks: int) -> int:
    """Ask all, show what becomes of each, and return the worst exit code."""
    from orchestrator.flows.fleet import Fleet, sharing
    from orchestrator.flows.prep import share_connections

    call.screen.note(f"inventory {inventory.label}")
    call.screen.note(f"asking {counted(len(subjects), subjects)}, {min(forks, len(subjects))} at a time")
    call.interrupted = ""
    shared = share_connections(inventory)
    report = _Report(call, Fleet(subjects, view.question, sharing(shared)), view)
    code = report.run(forks)
    if code != call.interrupted_code:  # else whoever is still connected ends with this process
        shared.close()
    return code


class _Report(Generic[T]):
    """What is shown of one call."""

    def __init__(self, call: Call, fleet: Fleet[T], view: View[T]) -> None:
        self._call = call
        self._fleet = fleet
        self._view = view
        self._rows: dict[int, Row] = {}
        self._watched = False

    def run(self, forks: int) -> int:
        """Ask and show; the exit code."""
        call = self._call
        self._watched = call.screen.watch(self._so_far)
        try:
            answers = self._fleet.ask(self._told, forks)
        finally:
            call.screen.close()
        for index, answered in enumerate(answers):
            if index not in self._rows:  # interrupted
                self._tell_document(answered)
            self._rows[index] = self._row(answered)
        call.screen.show([Line(), self._table(range(len(answers))), Line()])
        self._tell_errors(answers)
        code = worst([self._code(answered) for answered in answers])
        call.screen.show([summary_line(self._fleet.subjects, list(self._rows.values()), code)])
        return call.interrupted_code if code == InterruptedByOperatorError.exit_code else code

    def _told(self, index: int, answered: Answered[T]) -> None:
        row = self._rows[index] = self._row(answered)
        self._tell_document(answered)
        if not self._watched:
            note = f": {row.note}" if row.note else ""
            self._call.screen.event(
                f"{len(self._rows)}/{len(self._fleet.subjects)}  {answered.subject.label}  {row.standing}{note}", row.tone
            )

    def _row(self, answered: Answered[T]) -> Row:
        if answered.error is not None or answered.answer is None:
            return error_row(answered.error or OrchestratorError("no answer"), answered.subject.host.name)
        return self._view.row(answered.subject, answered.answer)

    def _code(self, answered: Answered[T]) -> int:
        if answered.error is not None or answered.answer is None:
            return answered.error.exit_code if answered.error is not None else OrchestratorError.exit_code
        return self._view.exit_code(answered.answer)

    def _tell_document(self, answered: Answered[T]) -> None:
        if not self._call.as_json:
            return
        subject, error = answered.subject, answered.error
        if answered.answer is not None:
            document = self._view.document(subject, answered.answer)
        else:
            document = {"host": subject.host.name, "service": subject.service}
        self._call.line(document, self._code(answered), error)

    def _so_far(self) -> list[Block]:
        """How many there are of each kind, who is being asked, and those that are done, the newest first, as far as there is room."""
        rows, at_work = dict(self._rows), dict(self._fleet.at_work)
        now = time.monotonic()
        waiting = [
            f"{self._fleet.subjects[index].label} ({now - begun:.0f} s)" for index, begun in sorted(at_work.items(), key=lambda i: i[1])
        ]
        asked = f"asking {', '.join(waiting[:_STEPS])}" + (f" and {len(waiting) - _STEPS} more" if waiting[_STEPS:] else "")
        newest = list(reversed(rows))[: self._call.screen.room(4)]
        done = f"{len(rows)}/{len(self._fleet.subjects)}  {standings(list(rows.values()))}".rstrip()
        return [Line(done, "strong"), Line(asked, "quiet"), *([self._table(newest)] if newest else [])]

    def _table(self, indices: Sequence[int]) -> Table:
        chosen = [(self._fleet.subjects[index], self._rows[index]) for index in indices]
        return fleet_table(chosen, self._view.columns, self._view.numbers)

    def _tell_errors(self, answers: Sequence[Answered[T]]) -> None:
        """What to type, once for each thing that can be typed; the table has the rest."""
        screen = self._call.screen
        errors = [(answered.subject, answered.error) for answered in answers if answered.error is not None]
        causes = [error.__cause__ for _, error in errors if is_unforeseen(error) and error.__cause__ is not None]
        steps = [
            f"{subject.label}, next: {error.next_step}"
            for subject, error in errors
            if error.next_step and error.exit_code != InterruptedByOperatorError.exit_code
        ]
        more = [f"and something to do for {len(steps) - _STEPS} more: ask each alone"] if len(steps) > _STEPS + 1 else steps[_STEPS:]
        told = [*steps[:_STEPS], *more, *(self._call.keep_tracebacks(*causes) if causes else [])]
        if told:
            screen.error([Line(line, whole=True) for line in told])


def is_unforeseen(error: OrchestratorError) -> bool:
    """Whether nobody knows what kind of error it is; its cause has the traceback."""
    return type(error) is OrchestratorError


def fleet_table(rows: Sequence[tuple[Subject, Row]], columns: Sequence[str], numbers: frozenset[str]) -> Table:
    """A row for each, and below it what is to be known of it."""
    with_service = any(subject.service is not None for subject, _ in rows)
    headings = ["host", *(["service"] if with_service else []), "is", *columns]
    cells = [
        [
            subject.host.name,
            *([subject.service or "-"] if with_service else []),
            row.standing,
            *(row.cells or ["-"] * len(columns)),
        ]
        for subject, row in rows
    ]
    tones = tuple((index, row.tone) for index, (_, row) in enumerate(rows) if row.tone)
    return Table(headings, cells, right=numbers, tones=tones, notes=[row.note for _, row in rows])


def standings(rows: Sequence[Row]) -> str:
    """``27 serving, 3 down, 1 not reached``, the most frequent first."""
    return ", ".join(f"{number} {standing}" for standing, number in Counter(row.standing for row in rows).most_common())


def summary_line(subjects: Sequence[Subject], rows: Sequence[Row], code: int) -> Line:
    """All in one line: ``31 services on 30 hosts: 27 serving, 3 down, 1 not reached``."""
    tones = {row.tone for row in rows}
    tone: Tone = "bad" if code or "bad" in tones else "warn" if "warn" in tones else "good"
    return Line(f"{counted(len(subjects), subjects)}: {standings(rows)}", tone)


def counted(number: int, subjects: Sequence[Subject]) -> str:
    """``31 services on 30 hosts``, or ``30 hosts`` where there is one question for each."""
    hosts = len({subject.host.name for subject in subjects})
    on_hosts = f"{hosts} host{'' if hosts == 1 else 's'}"
    return on_hosts if number == hosts else f"{number} services on {on_hosts}"
