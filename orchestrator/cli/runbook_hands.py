"""What a walk through a runbook does with the world: verbs run in this process, checks, questions on the terminal."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli import edge, runbook_text
from orchestrator.cli.documents.runbooks import StepTaken
from orchestrator.cli.screen import JsonScreen
from orchestrator.cli.verbs import tasks
from orchestrator.config import playbook_words as words
from orchestrator.config.playbook_checks import Verbs
from orchestrator.errors import UsageError
from orchestrator.flows.runbook import Answer, Confirm, Ended
from orchestrator.flows.runbook_facts import View, make_check
from orchestrator.flows.target import Target, choose_target

if TYPE_CHECKING:
    from orchestrator.cli.edge import Call
    from orchestrator.config import Inventory
    from orchestrator.config.playbook import Step
    from orchestrator.results.redaction import Redactor

_ASKS_NOTHING = ("plan", "list", "print")
"""Switches with which a verb only shows something, and asks nothing."""
_LETTERS = {Answer.YES: "[y]es", Answer.NO: "[n]o", Answer.SKIP: "[s]kip", Answer.QUIT: "[q]uit"}


@dataclasses.dataclass
class Subject:
    """What a runbook is about. The inventory is read anew when it is asked for: a step may have written into it."""

    load: Callable[[], Inventory]
    folder: str | None
    host: str
    service: str | None

    def target(self, service: str | None) -> Target:
        """The service that a step is about: its own, or the runbook's.

        Raises:
            UsageError: there is none.
        """
        named = service or self.service
        if named is None:
            raise UsageError(
                f"this step is about a service, and none of {self.host} was named", next_step="--service NAME; see fab services"
            )
        return choose_target(self.load(), self.host, named)

    def flags(self, takes: Collection[str]) -> dict[str, Any]:
        """What every verb is told of it, of what it takes."""
        known = {"host": self.host, "service": self.service, "inventory": self.folder}
        return {name: value for name, value in known.items() if name in takes and value is not None}


class TerminalHands:
    """Hands of the command line; see :class:`orchestrator.flows.runbook.Hands`."""

    def __init__(self, call: Call, subject: Subject, verbs: Verbs, steps: int, *, ask: bool) -> None:
        self._call = call
        self._subject = subject
        self._verbs = verbs
        self._steps = steps
        self._ask = ask
        self._tasks = tasks()
        self.taken: list[StepTaken] = []
        """What became of each step so far."""

    def view(self, service: str | None) -> View:
        return View(self._subject.target(service), self._call.screen)

    def begin(self, step: Step, number: int, arguments: Mapping[str, Any]) -> None:
        self._call.screen.show(runbook_text.begin_blocks(step, number, self._steps, self.command(step, arguments)))

    def skipped(self, step: Step, number: int, because: str) -> None:
        self._call.screen.show(runbook_text.skipped_blocks(step, number, self._steps, because))
        self._keep(step, Ended(words.SKIPPED, seen=because), goes_on=True)

    def ended(self, step: Step, number: int, ended: Ended, *, goes_on: bool) -> None:
        self._call.screen.show(runbook_text.ended_blocks(step, number, self._steps, ended, goes_on=goes_on))
        self._keep(step, ended, goes_on=goes_on)

    def ask(self, step: Step, question: str, answers: Collection[Answer]) -> Answer:
        screen = self._call.screen
        if not screen.interactive:
            return Answer.QUIT
        text = f"step {step.id}: {question} {', '.join(_LETTERS[answer] for answer in answers)}"
        return Answer(screen.choose(text, [answer.value for answer in answers], Answer.QUIT.value))

    def asks_itself(self, step: Step) -> bool:
        assert step.verb is not None
        return "yes" in self._verbs[step.verb].switches and not any(step.arguments.get(name) for name in _ASKS_NOTHING)

    def perform(self, verb: str, arguments: Mapping[str, Any], confirm: Confirm) -> Ended:
        takes = self._verbs[verb]
        given = {name: [value] if name in takes.several else value for name, value in arguments.items()}
        flags = {**self._subject.flags(takes.flags), **given}
        if "yes" in takes.switches:
            flags["yes"] = not self._ask
        call, answer = self._inner(verb)
        call.confirm = confirm
        code = edge.perform(self._tasks[verb], call, {name.replace("-", "_"): value for name, value in flags.items()})
        run = str(call.run.path) if call.run is not None and call.run.kept else None
        text = answer.getvalue()
        return Ended(words.EXIT_VERDICTS.get(code, words.FAILED), code, run, json.loads(text) if text else None)

    def unfinished(self, verb: str, service: str | None) -> str | None:
        from orchestrator.results.sweep_journal import find_sweep

        assert verb == "sweep"
        target = self._subject.target(service)
        try:
            return str(find_sweep(None, target.host.name, target.service.name))
        except UsageError:
            return None

    def check(self, name: str, service: str | None, arguments: Mapping[str, str]) -> Ended:
        found = make_check(self.view(service), name, arguments)
        verdict = words.HOLDS if found.holds else words.DOES_NOT_HOLD
        return Ended(verdict, found.exit_code, seen=found.seen, evidence=found.evidence, next_step=found.next_step)

    def command(self, step: Step, arguments: Mapping[str, Any]) -> str:
        """The command line that does the same."""
        if step.verb is None:
            return ""
        return runbook_text.command_line(self._verbs[step.verb], {**self._subject.flags(self._verbs[step.verb].flags), **arguments})

    def _inner(self, verb: str) -> tuple[Call, io.StringIO]:
        """A call of its own for a verb; as JSON its document goes to where it can be read, instead of standard output."""
        answer = io.StringIO()

        def open_screen(redactor: Redactor) -> JsonScreen:
            return JsonScreen(redactor, out=answer)

        as_json = self._call.as_json
        call = edge.Call(verb, as_json=as_json, open_screen=open_screen if as_json else None)
        call.outer = self._call
        call.screen.outlives_reader = True
        return call, answer

    def _keep(self, step: Step, ended: Ended, *, goes_on: bool) -> None:
        self.taken.append(
            StepTaken(
                step=step.id,
                kind=step.kind,
                verdict=ended.verdict,
                exit_code=ended.exit_code,
                goes_on=goes_on,
                seen=ended.seen,
                run=ended.run,
                document=ended.document,
            )
        )
