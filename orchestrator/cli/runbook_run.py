"""One run of a runbook at the command line: what is shown, kept and returned."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

from orchestrator.cli import runbook_text
from orchestrator.cli.blocks import Line
from orchestrator.cli.documents.runbooks import RunbookPlan, RunbookPlanned, RunbookStep, RunbookWalked
from orchestrator.cli.runbook_hands import Subject, TerminalHands
from orchestrator.cli.verbs import verb_flags
from orchestrator.errors import OrchestratorError
from orchestrator.flows.runbook import Walk, Walked, Way
from orchestrator.results.runbook_record import RunbookRecord

if TYPE_CHECKING:
    from orchestrator.cli.edge import Call
    from orchestrator.config.playbook_files import PlaybookFile


class Session:
    """A runbook, what it is about, and how it is walked."""

    def __init__(self, call: Call, file: PlaybookFile, subject: Subject, way: Way) -> None:
        self._call = call
        self._file = file
        self._subject = subject
        self._way = way
        self._verbs = verb_flags()

    def show(self) -> int:
        """Show what would be done."""
        target = self._subject.flags(("host", "service"))
        self._call.screen.show(runbook_text.show_blocks(self._file, self._verbs, self._way.inputs, target))
        steps = [RunbookStep(step.id, step.kind) for step in self._file.playbook.steps]
        self._call.answer(RunbookPlanned(**self._about(), plan=RunbookPlan(steps)))
        return 0

    def walk(self) -> int:
        """Go through it, and return its exit code."""
        call, playbook = self._call, self._file.playbook
        call.screen.outlives_reader = True
        record = self._record()
        hands = TerminalHands(call, self._subject, self._verbs, len(playbook.steps), ask=self._way.ask)
        walk = Walk(playbook, self._way, hands, record)
        first = playbook.steps[min(walk.first_index(), len(playbook.steps) - 1)].id
        title = f"{playbook.name} on {self._subject.host}" + (f", {self._subject.service}" if self._subject.service else "")
        call.screen.show([Line(f"{title}: {playbook.title}", "strong")])
        if self._way.before is not None:
            record.write("resumed", **{"from": first})
            call.screen.note(f"going on with {self._way.before.path.name} at step {first}")
        try:
            walked = walk.run()
        finally:
            record.close()
        if call.stopped_by is not None:
            walked = dataclasses.replace(walked, exit_code=call.interrupted_code)
        with contextlib.suppress(OSError) if call.stopped_by is not None else contextlib.nullcontext():  # the terminal may have gone
            self._tell_end(walked)
        call.answer(RunbookWalked(**self._about(), ended=walked.how, because=walked.because, steps=hands.taken))
        return walked.exit_code

    def _about(self) -> dict[str, Any]:
        playbook = self._file.playbook
        return {"runbook": playbook.name, "host": self._subject.host, "service": self._subject.service, "inputs": dict(self._way.inputs)}

    def _record(self) -> RunbookRecord:
        """The record in the run's folder: that of the run that is taken up again, or a new one."""
        call, playbook = self._call, self._file.playbook
        if self._way.before is not None:
            record = RunbookRecord(self._way.before.path, call.screen.warn)
            record.open()
            return record
        names = [playbook.name, self._subject.host, *([self._subject.service] if self._subject.service else [])]
        folder = call.keep_run(*names)
        folder.begin()
        record = RunbookRecord(folder.path, call.screen.warn)
        record.open()
        record.write("begun", playbook=playbook.name, digest=self._file.digest, path=str(self._file.path), **self._where())
        return record

    def _where(self) -> dict[str, Any]:
        return {"inputs": dict(self._way.inputs), "host": self._subject.host, "service": self._subject.service}

    def _tell_end(self, walked: Walked) -> None:
        """How it ended; after a step that failed also what its author says, and the state of the service."""
        screen = self._call.screen
        if walked.how == "failed" and walked.step is not None:
            screen.show(runbook_text.failed_blocks(walked.step))
            self._show_service(walked)
        screen.show(runbook_text.end_blocks(self._file.playbook, walked, self._resume_command()))

    def _show_service(self, walked: Walked) -> None:
        """What runs now. Nothing of it may hide why the step failed."""
        from orchestrator.cli.status_text import status_blocks
        from orchestrator.flows.status import status

        named = walked.step.arguments.get("service") if walked.step is not None else None
        try:
            target = self._subject.target(named if isinstance(named, str) else None)
            found = status(target)
        except OrchestratorError as error:
            self._call.screen.error([Line(f"the state of the service is not known: {error.message}", "bad")])
            return
        self._call.screen.show([Line(), *status_blocks(target.service.name, target.place, found.survey, found.boot)])

    def _resume_command(self) -> str:
        words = [f"--{name} {shlex.quote(value)}" for name, value in self._subject.flags(("host", "service")).items()]
        return " ".join([f"fab runbook.run {self._file.playbook.name} --resume", *words])
