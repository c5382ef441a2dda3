"""What holds between the parts of a playbook: names that exist, in the order in which they exist, and flags that verbs have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config import playbook_words as words
from orchestrator.config.mistakes import KeyPath, did_you_mean
from orchestrator.config.playbook import Condition, InputReference, Playbook, RunReference, Step, Value
from orchestrator.config.yaml_reader import Document


@dataclass(frozen=True)
class VerbFlags:
    """What a verb of the program takes, by flag without its dashes. A switch stands alone; the others take a value.

    Those `on` are switches that are on unless ``--no-`` turns them off. Those in `several` may be given more than once, those in
    `optional` also without their value, which is then true.
    """

    name: str
    switches: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    on: frozenset[str] = frozenset()
    several: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    @property
    def flags(self) -> list[str]:
        return sorted(self.switches | self.values)


Verbs = Mapping[str, VerbFlags]

GIVEN = ("host", "inventory", "json", "yes")
"""Flags that the runbook gives to each step itself."""
NOT_A_STEP = ("runbook", "lab")
"""Families of verbs that are no step of a runbook."""


def check(playbook: Playbook, document: Document, verbs: Verbs) -> None:
    """Note in `document` every mistake that no single value shows."""
    _Checker(playbook, document, verbs).run()


class _Checker:
    def __init__(self, playbook: Playbook, document: Document, verbs: Verbs) -> None:
        self.playbook = playbook
        self.document = document
        self.verbs = verbs
        self.used: set[str] = set()
        self.before: dict[str, Step] = {}

    def run(self) -> None:
        for index, step in enumerate(self.playbook.steps):
            path: KeyPath = ("steps", index)
            if step.id in self.before:
                self._report((*path, "id"), f"{step.id!r} names an earlier step already")
            self._check_step(step, path)
            self.before[step.id] = step
        for name in self.playbook.inputs:
            if name not in self.used:
                self._report(("inputs", name), "no step uses it")

    def _report(self, path: KeyPath, message: str) -> None:
        self.document.report(path, message)

    def _check_step(self, step: Step, path: KeyPath) -> None:
        kinds = [kind for kind in ("verb", "check", "manual") if getattr(step, kind) is not None]
        if len(kinds) != 1:
            said = f"has {' and '.join(kinds)}" if kinds else "has none of them"
            self._report(path, f"a step is one of verb, check and manual, and this one {said}")
            return
        if step.kind == "verb":
            self._check_verb(step, path)
        elif step.kind == "check":
            self._check_check(step, path)
        elif step.arguments:
            self._report((*path, "arguments"), "a manual step has none; its commands are by_hand:")
        if step.by_hand and step.kind != "manual":
            self._report((*path, "by_hand"), "only with manual: what a verb or a check is by hand is known")
        for number, condition in enumerate(step.only_if):
            self._check_condition(condition, (*path, "only_if", number))
        for number, stop in enumerate(step.stop_if):
            self._check_condition(stop, (*path, "stop_if", number))
        for number, verdict in enumerate(step.go_on_after):
            self._one_of(verdict, words.OVERLOOKED, (*path, "go_on_after", number), "a verdict that can be overlooked")

    def _check_verb(self, step: Step, path: KeyPath) -> None:
        assert step.verb is not None
        known = [name for name in self.verbs if name.partition(".")[0] not in NOT_A_STEP]
        if not self._one_of(step.verb, known, (*path, "verb"), "a verb that a step can be"):
            return
        verb = self.verbs[step.verb]
        allowed = [flag for flag in verb.flags if flag not in GIVEN]
        for flag, value in step.arguments.items():
            where = (*path, "arguments", flag)
            if flag in GIVEN:
                self._report(where, f"--{flag} is given to every step by fab runbook.run")
            elif self._one_of(flag, allowed, where, f"a flag of fab {verb.name}"):
                self._check_flag(verb, flag, value, where)
        for flag in verb.required:
            if flag not in step.arguments:
                self._report(path, f"fab {verb.name} needs its argument {flag}")

    def _check_flag(self, verb: VerbFlags, flag: str, value: Value, path: KeyPath) -> None:
        if flag in verb.switches and not isinstance(value, bool):
            self._report(path, f"--{flag} of fab {verb.name} takes no value: write true or false")
        elif flag in verb.values and isinstance(value, bool) and not (value and flag in verb.optional):
            self._report(path, f"--{flag} of fab {verb.name} takes a value, and this is {'true' if value else 'false'}")
        else:
            self._check_value(value, path)

    def _check_value(self, value: Value, path: KeyPath) -> None:
        if isinstance(value, InputReference):
            self.used.add(value.name)
            self._one_of(value.name, self.playbook.inputs, path, "an input of this playbook")
        if isinstance(value, RunReference):
            kept = [name for name, step in self.before.items() if step.kind == "verb"]
            self._one_of(value.step, kept, path, "an earlier step with a verb, which keeps a run folder")

    def _check_check(self, step: Step, path: KeyPath) -> None:
        assert step.check is not None
        if not self._one_of(step.check, words.CHECKS, (*path, "check"), "a check"):
            return
        word = words.CHECKS[step.check]
        allowed = [*word.arguments, "service"]
        for name, value in step.arguments.items():
            where = (*path, "arguments", name)
            if not self._one_of(name, allowed, where, f"an argument of {step.check}"):
                continue
            self._check_value(value, where)
            if name == "finding" and not isinstance(value, InputReference):
                self._one_of(str(value), words.FINDINGS, where, "a check of fab doctor that a playbook may name")
            if name == "within" and (isinstance(value, bool) or not isinstance(value, int | float | InputReference)):
                self._report(where, "expected seconds, or {input: NAME}")
        for name in word.required:
            if name not in step.arguments:
                self._report(path, f"the check {step.check} needs its argument {name}: {word.arguments[name]}")

    def _check_condition(self, condition: Condition, path: KeyPath) -> None:
        kinds = [kind for kind in ("fact", "finding", "step", "input") if getattr(condition, kind) is not None]
        if len(kinds) != 1:
            self._report(path, "a guard asks for one of fact, finding, step and input")
            return
        if (condition.is_ is None) == (condition.is_not is None):
            self._report(path, "a guard has one of is and is_not")
            return
        kind, name = condition.subject
        key = "is" if condition.is_ is not None else "is_not"
        for wanted in condition.wanted:
            if isinstance(wanted, InputReference):
                self._check_value(wanted, (*path, key))
        texts = [wanted for wanted in condition.wanted if isinstance(wanted, str)]
        values = self._values(kind, name, (*path, kind))
        for text in texts if values is not None else ():
            self._one_of(text, values or (), (*path, key), f"what {kind} {name} can be")

    def _values(self, kind: str, name: str, path: KeyPath) -> Sequence[str] | None:
        """What `name` can read as; None: any text, or a name that is not known and was told."""
        if kind == "fact":
            return words.FACTS[name] if self._one_of(name, words.FACTS, path, "a fact") else None
        if kind == "finding":
            known = self._one_of(name, words.FINDINGS, path, "a check of fab doctor that a playbook may name")
            return words.OUTCOMES if known else None
        if kind == "step":
            return words.VERDICTS if self._one_of(name, self.before, path, "an earlier step") else None
        self.used.add(name)
        self._one_of(name, self.playbook.inputs, path, "an input of this playbook")
        return None

    def _one_of(self, name: str, allowed: Collection[str], path: KeyPath, what: str) -> bool:
        if name in allowed:
            return True
        self._report(path, f"{name!r} is not {what}; {did_you_mean(name, list(allowed))}")
        return False
