"""Walking through a playbook: guards, questions, steps in their order, and a record by which it can be taken up again.

What a step does is not decided here: :class:`Hands` runs verbs, makes checks and asks people.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchestrator.config import playbook_words as words
from orchestrator.config.playbook import Condition, InputReference, Playbook, RunReference, Step, Stop, Value
from orchestrator.errors import OrchestratorError, RefusedError, UsageError
from orchestrator.flows.runbook_inputs import unknown_input
from orchestrator.results.runbook_record import CutOff, Recorded, RunbookRecord, StepRecord
from orchestrator.results.runs import operator_name

CHANGES = ("relaunch", "launch", "teardown", "rollback")
"""Verbs that submit an order, which goes on on the box when this end is cut off."""
RESUMABLE = ("sweep",)
"""Verbs of many orders, which keep a journal of their own and are taken up again by their ``--resume``."""
INTERRUPTED_CODE = 130
LOOK_SECONDS = 5.0
"""How long one look counts while no step was taken since."""


class Answer(enum.Enum):
    """What a person says to a step."""

    YES = "yes"
    NO = "no"
    SKIP = "skip"
    QUIT = "quit"


@dataclass(frozen=True)
class Ended:
    """How a step ended. `run` is the run folder that a verb kept, `document` its answer as JSON, `seen` what a check saw."""

    verdict: str
    exit_code: int = 0
    run: str | None = None
    document: Any = None
    seen: str = ""
    evidence: Sequence[str] = ()
    next_step: str | None = None


@dataclass(frozen=True)
class NewestOrder:
    """The box's newest order: its id, None where there is none, where it stands (as the fact ``order`` has it), and whose it is."""

    order_id: str | None
    stands: str
    operator: str


class View(Protocol):
    """What guards are told by; see :class:`orchestrator.flows.runbook_facts.View`."""

    def fact(self, name: str) -> str: ...

    def finding(self, name: str) -> str: ...

    def newest_order(self) -> NewestOrder: ...


class Hands(Protocol):
    """What a walk does with the world."""

    def view(self, service: str | None) -> View:
        """What the place shows now."""

    def begin(self, step: Step, number: int, arguments: Mapping[str, Any]) -> None:
        """Show a step that is about to be taken."""

    def skipped(self, step: Step, number: int, because: str) -> None:
        """Show that a step is left out."""

    def ask(self, step: Step, question: str, answers: Collection[Answer]) -> Answer:
        """Ask a person. Where nobody can be asked, QUIT."""

    def asks_itself(self, step: Step) -> bool:
        """Whether the step's verb shows a plan and asks."""

    def perform(self, verb: str, arguments: Mapping[str, Any], confirm: Confirm) -> Ended:
        """Run a verb; it asks by `confirm` where it would ask a person."""

    def unfinished(self, verb: str, service: str | None) -> str | None:
        """The run folder of the newest run of a :data:`RESUMABLE` verb that has not come to its end; None where there is none."""

    def check(self, name: str, service: str | None, arguments: Mapping[str, str]) -> Ended:
        """Make a check."""

    def ended(self, step: Step, number: int, ended: Ended, *, goes_on: bool) -> None:
        """Show how a step ended."""


class Confirm(Protocol):
    """Asks a person one question in the midst of a verb; whether it may go on."""

    def __call__(self, question: str) -> bool: ...


@dataclass(frozen=True)
class Way:
    """How a playbook is walked.

    Attributes:
        inputs: the value of each input.
        ask: whether a person is asked before each step; manual steps are asked about in any case.
        done: manual steps that a person has done beforehand.
        first: the step to begin at; None: the first one.
        before: what was recorded of the run that is taken up again.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    ask: bool = True
    done: Collection[str] = ()
    first: str | None = None
    before: Recorded | None = None


@dataclass(frozen=True)
class Walked:
    """How a walk ended.

    `how`: ``done`` (at its end, or there was nothing to do), ``refused`` (a guard), ``failed`` (a step), ``left`` (by a person, or as
    nobody could be asked). `step` is where; None at the end.
    """

    how: str
    exit_code: int
    step: Step | None = None
    because: str = ""
    outcomes: Sequence[StepRecord] = ()


def defaults(playbook: Playbook) -> dict[str, str]:
    """The inputs that need not be set."""
    return {name: item.default for name, item in playbook.inputs.items() if item.default is not None}


def filled_in(playbook: Playbook, given: Mapping[str, str]) -> dict[str, str]:
    """The value of each input: what was given, else its default.

    Raises:
        UsageError: one that the playbook doesn't have, or one that has no default and was not given.
    """
    unknown = sorted(given.keys() - playbook.inputs.keys())
    if unknown:
        raise unknown_input(playbook, unknown[0])
    values = {**defaults(playbook), **given}
    missing = [f"--set {name}=VALUE: {item.about}" for name, item in playbook.inputs.items() if name not in values]
    if missing:
        raise UsageError(f"runbook {playbook.name} needs to be told more", evidence=missing, next_step=f"fab runbook.show {playbook.name}")
    return values


def resolved(value: Value, inputs: Mapping[str, str], outcomes: Mapping[str, StepRecord]) -> bool | str:
    """An argument as a verb or a check gets it.

    Raises:
        RefusedError: it is the run folder of a step that kept none.
    """
    if isinstance(value, InputReference):
        return inputs[value.name]
    if isinstance(value, RunReference):
        record = outcomes.get(value.step)
        if record is None or record.run is None:
            what = "was not taken" if record is None else f"ended {record.verdict}, and kept no run folder"
            raise RefusedError(f"step {value.step} {what}", next_step=f"--from {value.step}")
        return record.run
    return value if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class _Look:
    """What was seen of a service for a step's guards. `ended`: when the last of it was told, on the steady clock."""

    service: str | None
    view: View
    step: str
    ended: float = field(default_factory=time.monotonic)

    def age(self) -> float:
        """Seconds."""
        return time.monotonic() - self.ended


class Walk:
    """One walk through a playbook."""

    def __init__(self, playbook: Playbook, way: Way, hands: Hands, record: RunbookRecord) -> None:
        self.playbook = playbook
        self.way = way
        self.hands = hands
        self.record = record
        self.outcomes: dict[str, StepRecord] = dict(way.before.outcomes) if way.before is not None else {}
        self._taken: list[StepRecord] = []
        self._left = ""
        self._looked: _Look | None = None

    def run(self) -> Walked:
        """Take the steps in their order. A step that fails is an answer, not an exception."""
        walked = self._run()
        step = None if walked.step is None else walked.step.id
        self.record.write("ended", how=walked.how, step=step, exit_code=walked.exit_code, because=walked.because)
        return walked

    def first_index(self) -> int:
        """Where it begins: at the step that was named, or after the last one from which the recorded run went on."""
        ids = [step.id for step in self.playbook.steps]
        if self.way.first is not None:
            return ids.index(self.way.first)
        return next((index for index, name in enumerate(ids) if name not in self.outcomes or not self.outcomes[name].goes_on), len(ids))

    def _run(self) -> Walked:
        for number in range(self.first_index(), len(self.playbook.steps)):
            step = self.playbook.steps[number]
            try:
                walked = self._take(step, number + 1)
            except KeyboardInterrupt:
                walked = self._walked("left", INTERRUPTED_CODE, step, "interrupted here")
            if walked is not None:
                return walked
        return self._walked("done", 0)

    def _walked(self, how: str, exit_code: int, step: Step | None = None, because: str = "") -> Walked:
        return Walked(how, exit_code, step, because, self._taken)

    def _take(self, step: Step, number: int) -> Walked | None:
        """One step; what ends the walk at it, or None where it goes on."""
        try:
            stop = self._stop(step)
            if stop is not None:
                return self._walked(stop.ends, RefusedError.exit_code if stop.ends == "refused" else 0, step, stop.because)
            unmet = next((guard for guard in step.only_if if not self._holds(guard, step)), None)
            if unmet is not None:
                kind, name = unmet.subject
                self._skip(step, number, f"only if {in_words(unmet, self.way.inputs)}; it is {self._read(kind, name, step)}")
                return None
            ended = self._do(step, number)
        except OrchestratorError as error:
            ended = failed(error)
        if self._left:
            return self._walked("left", INTERRUPTED_CODE, step, self._left)
        goes_on = ended.verdict in words.GOOD or ended.verdict in step.go_on_after
        self._note(step, ended, goes_on=goes_on)
        if ended.verdict == words.SKIPPED:
            self.hands.skipped(step, number, "left out by a person")
            return None
        self.hands.ended(step, number, ended, goes_on=goes_on)
        if goes_on:
            return None
        how = "left" if ended.verdict == words.INTERRUPTED else "failed"
        return self._walked(how, ended.exit_code, step, ended.seen or ended.verdict)

    def _stop(self, step: Step) -> Stop | None:
        return next((stop for stop in step.stop_if if self._holds(stop, step)), None)

    def _holds(self, condition: Condition, step: Step) -> bool:
        kind, name = condition.subject
        wanted = {self.way.inputs[item.name] if isinstance(item, InputReference) else item for item in condition.wanted}
        value = self._read(kind, name, step)
        return (value in wanted) == (condition.is_ is not None)

    def _read(self, kind: str, name: str, step: Step) -> str:
        if kind == "input":
            return self.way.inputs[name]
        if kind == "step":
            return self.outcomes[name].verdict if name in self.outcomes else words.NOT_RUN
        view = self._view(step)
        value = view.finding(name) if kind == "finding" else view.fact(name)
        if self._looked is not None:
            self._looked = dataclasses.replace(self._looked, ended=time.monotonic())
        return value

    def _view(self, step: Step) -> View:
        """One look for all guards of a step, and for those of the steps after it that are skipped: a look at what hangs takes 10 s."""
        looked, service = self._looked, self._service(step)
        if looked is None or looked.service != service or not (looked.step == step.id or looked.age() <= LOOK_SECONDS):
            looked = _Look(service, self.hands.view(service), step.id)
        self._looked = dataclasses.replace(looked, step=step.id)
        return looked.view

    def _service(self, step: Step) -> str | None:
        """The service that a step is about, where it names another than the runbook's."""
        value = step.arguments.get("service")
        return None if value is None else str(resolved(value, self.way.inputs, self.outcomes))

    def _do(self, step: Step, number: int) -> Ended:
        arguments = {name: resolved(value, self.way.inputs, self.outcomes) for name, value in step.arguments.items()}
        self.hands.begin(step, number, arguments)
        view = self._view(step) if step.verb in CHANGES else None
        if step.kind != "check":
            self._looked = None
        if step.kind == "manual":
            return self._manual(step)
        if step.check is not None:
            self.record.write("step", step=step.id, command=step.check, is_change=False)
            return self.hands.check(step.check, self._service(step), {name: str(value) for name, value in arguments.items()})
        assert step.verb is not None
        cut_off = self.way.before.cut_off if self.way.before is not None else None
        if cut_off is not None and cut_off.step == step.id and cut_off.is_change:
            taken_up = self._taken_up(step, cut_off, view) if view is not None else None
            if taken_up is not None:
                return taken_up
        unfinished = self._unfinished(step) if cut_off is not None and cut_off.step == step.id else None
        if unfinished is not None:
            arguments = {**{name: value for name, value in arguments.items() if name == "service"}, "resume": unfinished}
        return self._verb(step, step.verb, arguments, view)

    def _unfinished(self, step: Step) -> str | None:
        """The run folder that this step had begun when it was cut off; None where none was, or its verb begins anew."""
        assert step.verb is not None
        assert self.way.before is not None
        found = self.hands.unfinished(step.verb, self._service(step)) if step.verb in RESUMABLE else None
        if found is None or Path(found).name.partition("-")[0] < self.way.before.path.name.partition("-")[0]:
            return None  # an older one is somebody's, and nothing of this runbook
        return found

    def _manual(self, step: Step) -> Ended:
        if step.id in self.way.done:
            self._answered(step, "done?", "yes, beforehand")
            return Ended(words.DONE)
        answer = self.hands.ask(step, "done?", (Answer.YES, Answer.NO, Answer.SKIP, Answer.QUIT))
        self._answered(step, "done?", answer.value)
        if answer is Answer.QUIT:
            self._left = "a person is needed for this step"
        if answer is Answer.SKIP:
            return Ended(words.SKIPPED)
        return Ended(words.DONE) if answer is Answer.YES else Ended(words.NOT_DONE, INTERRUPTED_CODE)

    def _verb(self, step: Step, verb: str, arguments: Mapping[str, Any], view: View | None) -> Ended:
        """Run a verb, with one question: the verb's own after its plan, or one of the runbook's before it."""
        answers: list[Answer] = []

        def asked(question: str) -> bool:
            answers.append(self.hands.ask(step, question, (Answer.YES, Answer.SKIP, Answer.QUIT)) if self.way.ask else Answer.YES)
            self._answered(step, question, answers[-1].value if self.way.ask else "yes, by --yes")
            return answers[-1] is Answer.YES

        order_before = view.newest_order().order_id if view is not None else None
        if not self.hands.asks_itself(step) and not asked("run it?"):
            ended = Ended(words.SKIPPED)
        else:
            self.record.write("step", step=step.id, command=verb, order_before=order_before, is_change=verb in CHANGES)
            ended = self.hands.perform(verb, arguments, asked)
        if Answer.QUIT in answers:
            self._left = "left by a person"
        return Ended(words.SKIPPED) if Answer.SKIP in answers else ended

    def _taken_up(self, step: Step, cut_off: CutOff, view: View) -> Ended | None:
        """How the change ended that this step had begun when it was cut off; None where it never came to be, and the step is taken anew."""
        order = view.newest_order()
        if order.order_id in (None, cut_off.order_before) or order.operator != operator_name():
            return None
        verb = "resume" if order.stands == "half_done" else "attach"
        service = {name: value for name, value in step.arguments.items() if name == "service"}
        arguments = {name: resolved(value, self.way.inputs, self.outcomes) for name, value in service.items()}
        self.record.write("step", step=step.id, command=verb, order_before=cut_off.order_before, is_change=True)
        return self.hands.perform(verb, {**arguments, "order": order.order_id}, lambda _question: True)

    def _answered(self, step: Step, question: str, answer: str) -> None:
        self.record.write("answered", step=step.id, question=question, answer=answer)

    def _skip(self, step: Step, number: int, because: str) -> None:
        self._note(step, Ended(words.SKIPPED), goes_on=True, because=because)
        self.hands.skipped(step, number, because)

    def _note(self, step: Step, ended: Ended, *, goes_on: bool, because: str = "") -> None:
        found = StepRecord(step.id, ended.verdict, ended.exit_code, goes_on, ended.run)
        self.outcomes[step.id] = found
        self._taken.append(found)
        self.record.write("outcome", **dataclasses.asdict(found), seen=ended.seen or because)


def failed(error: OrchestratorError) -> Ended:
    """A step that could not be taken."""
    verdict = words.EXIT_VERDICTS.get(error.exit_code, words.FAILED)
    return Ended(verdict, error.exit_code, seen=error.message, evidence=error.evidence, next_step=error.next_step)


def in_words(condition: Condition, inputs: Mapping[str, str] | None = None) -> str:
    """``health is down``; with `inputs` their values are put in."""
    kind, name = condition.subject
    known = inputs or {}
    wanted = [known.get(item.name, f"(input {item.name})") if isinstance(item, InputReference) else item for item in condition.wanted]
    what = {"fact": name, "finding": f"doctor's {name}", "step": f"step {name}", "input": f"input {name}"}[kind]
    return f"{what} is {'' if condition.is_ is not None else 'not '}{' or '.join(wanted)}"
