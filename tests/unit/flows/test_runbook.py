"""The walk through a playbook: order, guards, questions, verdicts, and taking it up again; hands that remember stand in for the world."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.playbook import Playbook, Step
from orchestrator.errors import LockedError, UnreachableError, UsageError
from orchestrator.flows import runbook
from orchestrator.flows.runbook import Answer, Confirm, Ended, NewestOrder, Walk, Walked, Way, filled_in
from orchestrator.results.runbook_record import FILE, RunbookRecord, newest_record, read_record
from orchestrator.results.runs import operator_name

ASKING = ("relaunch", "rollback")
"""Verbs that ask by themselves, as in the program."""


@dataclasses.dataclass
class Facts:
    """What a place shows."""

    facts: dict[str, str]
    order: NewestOrder

    def fact(self, name: str) -> str:
        return self.facts[name]

    finding = fact

    def newest_order(self) -> NewestOrder:
        return self.order


class RememberingHands:
    """Hands that do what the test says, and remember what they did."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.ends: dict[str, Ended | Exception] = {}
        self.answers: dict[str, Answer] = {}
        self.order = NewestOrder(None, "none", "")
        self.left_over: str | None = None
        self.looks = 0
        self.took: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.told: list[str] = []

    def view(self, service: str | None) -> Facts:
        self.looks += 1
        return Facts(dict(self.facts), self.order)

    def begin(self, step: Step, number: int, arguments: Mapping[str, Any]) -> None:
        self.told.append(f"begin {step.id}")

    def skipped(self, step: Step, number: int, because: str) -> None:
        self.told.append(f"skip {step.id}: {because}")

    def ask(self, step: Step, question: str, answers: Collection[Answer]) -> Answer:
        self.asked.append((step.id, question))
        answer = self.answers.get(step.id, Answer.YES)
        assert answer in answers
        return answer

    def asks_itself(self, step: Step) -> bool:
        return step.verb in ASKING

    def perform(self, verb: str, arguments: Mapping[str, Any], confirm: Confirm) -> Ended:
        given = "".join(f" {name}={value}" for name, value in arguments.items())
        self.took.append(verb + given)
        if verb in ASKING and not confirm(f"{verb} now?"):
            return Ended("refused", 3)
        return self._end(verb)

    def unfinished(self, verb: str, service: str | None) -> str | None:
        return self.left_over

    def check(self, name: str, service: str | None, arguments: Mapping[str, str]) -> Ended:
        self.took.append(f"check {name}")
        return self._end(name, Ended("holds"))

    def ended(self, step: Step, number: int, ended: Ended, *, goes_on: bool) -> None:
        self.told.append(f"end {step.id}: {ended.verdict}")

    def _end(self, name: str, otherwise: Ended | None = None) -> Ended:
        end = self.ends.get(name, otherwise or Ended("done"))
        if isinstance(end, BaseException):
            raise end
        return end


WORDS = {"why": "w", "look_at": "l", "when_it_fails": "f"}


def playbook(*steps: dict[str, Any], **inputs: dict[str, Any]) -> Playbook:
    named = [{"id": step.get("id", step.get("verb", step.get("check", "hand"))), **WORDS, **step} for step in steps]
    return Playbook.model_validate({"name": "p", "title": "t", "when": "w", "inputs": inputs, "steps": named})


@pytest.fixture
def hands() -> RememberingHands:
    return RememberingHands()


def walk(book: Playbook, hands: RememberingHands, folder: Path, **way: Any) -> Walked:
    record = RunbookRecord(folder / "run", lambda text: None)
    record.open()
    begun = {"playbook": "p", "digest": "d", "host": "h", "service": "s"}
    if way.get("before") is None:
        record.write("begun", inputs=dict(way.get("inputs", {})), **begun)
    try:
        return Walk(book, Way(**way), hands, record).run()
    finally:
        record.close()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / FILE).read_text().splitlines()]


def test_steps_are_taken_in_their_order_with_one_question_each(hands: RememberingHands, tmp_path: Path) -> None:
    book = playbook({"verb": "status"}, {"verb": "relaunch"}, {"check": "serves"}, {"manual": "Do it."})
    walked = walk(book, hands, tmp_path)
    assert (walked.how, walked.exit_code) == ("done", 0)
    assert hands.took == ["status", "relaunch", "check serves"]
    assert hands.asked == [("status", "run it?"), ("relaunch", "relaunch now?"), ("hand", "done?")]
    answered = [(line["step"], line["answer"], line["operator"]) for line in lines(tmp_path) if line["event"] == "answered"]
    assert answered == [(step, "yes", operator_name()) for step in ("status", "relaunch", "hand")]
    assert lines(tmp_path)[-1]["how"] == "done"


def test_without_asking_only_manual_steps_are_asked_about(hands: RememberingHands, tmp_path: Path) -> None:
    book = playbook({"verb": "status"}, {"verb": "relaunch"}, {"manual": "Do it."}, {"id": "again", "manual": "And that."})
    assert walk(book, hands, tmp_path, ask=False, done=("hand",)).how == "done"
    assert hands.asked == [("again", "done?")]


def test_a_person_can_leave_out_a_step_or_leave(hands: RememberingHands, tmp_path: Path) -> None:
    hands.answers = {"status": Answer.SKIP, "relaunch": Answer.SKIP, "doctor": Answer.QUIT}
    book = playbook({"verb": "status"}, {"verb": "relaunch"}, {"verb": "doctor"}, {"verb": "prep"})
    walked = walk(book, hands, tmp_path)
    assert (walked.how, walked.exit_code) == ("left", 130)
    assert walked.step is not None
    assert walked.step.id == "doctor"
    assert hands.took == ["relaunch"], "the verb asks by itself, after its plan"
    assert [record.verdict for record in walked.outcomes] == ["skipped", "skipped"]


def test_what_a_person_has_not_done_ends_it(hands: RememberingHands, tmp_path: Path) -> None:
    hands.answers = {"hand": Answer.NO}
    walked = walk(playbook({"manual": "Do it."}, {"verb": "launch"}), hands, tmp_path)
    assert (walked.how, walked.exit_code, hands.took) == ("failed", 130, [])


@pytest.mark.parametrize(
    ("guard", "taken"),
    [
        ({"fact": "health", "is": "down"}, True),
        ({"fact": "health", "is": ["serving", "starting"]}, False),
        ({"fact": "health", "is_not": "down"}, False),
        ({"fact": "health", "is_not": ["serving", "starting"]}, True),
        ({"fact": "backend", "is": {"input": "backend"}}, True),
        ({"input": "backend", "is": "auto"}, True),
        ({"input": "backend", "is_not": "auto"}, False),
        ({"finding": "cuda", "is": ["warn", "refuse"]}, True),
        ({"step": "status", "is": "done"}, True),
        ({"step": "status", "is": "not_run"}, False),
    ],
)
def test_only_if(guard: dict[str, Any], taken: bool, hands: RememberingHands, tmp_path: Path) -> None:
    hands.facts = {"health": "down", "backend": "auto", "cuda": "refuse"}
    book = playbook({"verb": "status"}, {"verb": "launch", "only_if": [guard]}, backend={"about": "b"})
    walked = walk(book, hands, tmp_path, inputs={"backend": "auto"})
    assert (walked.how, "launch" in hands.took) == ("done", taken)


def test_why_a_step_is_skipped_is_told_with_what_is(hands: RememberingHands, tmp_path: Path) -> None:
    hands.facts = {"health": "serving"}
    walk(playbook({"verb": "launch", "only_if": [{"fact": "health", "is": "down"}]}), hands, tmp_path)
    assert hands.told == ["skip launch: only if health is down; it is serving"]


@pytest.mark.parametrize(("ends", "code"), [("done", 0), ("refused", 3)])
def test_stop_if_ends_it_before_the_step(ends: str, code: int, hands: RememberingHands, tmp_path: Path) -> None:
    hands.facts = {"health": "serving"}
    stop = {"fact": "health", "is": "serving", "because": "It serves.", "ends": ends}
    walked = walk(playbook({"verb": "status"}, {"verb": "teardown", "stop_if": [stop]}), hands, tmp_path)
    assert (walked.how, walked.exit_code, walked.because) == (ends, code, "It serves.")
    assert hands.took == ["status"]


def test_guards_see_what_a_step_before_has_changed(hands: RememberingHands, tmp_path: Path) -> None:
    hands.facts = {"health": "serving"}
    guard = {"fact": "health", "is": "down"}
    book = playbook({"verb": "teardown", "only_if": [{"fact": "health", "is": "serving"}]}, {"verb": "launch", "only_if": [guard]})
    perform = hands.perform

    def stopping(verb: str, arguments: Mapping[str, Any], confirm: Confirm) -> Ended:
        hands.facts = {"health": "down" if verb == "teardown" else "serving"}
        return perform(verb, arguments, confirm)

    hands.perform = stopping  # type: ignore[method-assign]
    walk(book, hands, tmp_path)
    assert hands.took == ["teardown", "launch"]
    assert hands.looks == 2


def test_steps_that_are_skipped_in_a_row_share_one_look(hands: RememberingHands, tmp_path: Path) -> None:
    hands.facts = {"health": "serving", "order": "none"}
    guard = {"fact": "health", "is": "down"}
    book = playbook({"verb": "launch", "only_if": [guard]}, {"verb": "rollback", "only_if": [guard, {"fact": "order", "is": "none"}]})
    walk(book, hands, tmp_path)
    assert hands.looks == 1


@pytest.mark.parametrize(("between", "looks"), [({"check": "no_order"}, 1), ({"verb": "prep"}, 2), ({"manual": "Do it."}, 2)])
def test_a_check_changes_nothing_and_all_else_may(between: dict[str, Any], looks: int, hands: RememberingHands, tmp_path: Path) -> None:
    hands.facts = {"health": "serving"}
    guard = {"fact": "health", "is": "down"}
    walk(playbook({"verb": "launch", "only_if": [guard]}, between, {"verb": "rollback", "only_if": [guard]}), hands, tmp_path)
    assert hands.looks == looks


def test_a_look_that_is_old_does_not_count(hands: RememberingHands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runbook, "LOOK_SECONDS", -1.0)
    hands.facts = {"health": "serving"}
    guard = {"fact": "health", "is": "down"}
    walk(playbook({"verb": "launch", "only_if": [guard]}, {"verb": "rollback", "only_if": [guard]}), hands, tmp_path)
    assert hands.looks == 2


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (Ended("rolled_back", 6), 6),
        (UnreachableError("gone"), 4),
        (LockedError("taken"), 5),
        (Ended("drift", 8), 8),
        (Ended("failed", 1), 1),
    ],
)
def test_a_step_that_fails_ends_it_with_its_exit_code(end: Ended | Exception, code: int, hands: RememberingHands, tmp_path: Path) -> None:
    hands.ends = {"prep": end}
    walked = walk(playbook({"verb": "prep"}, {"verb": "status"}), hands, tmp_path)
    assert (walked.how, walked.exit_code, hands.took) == ("failed", code, ["prep"])


def test_a_bad_verdict_that_is_overlooked_can_be_asked_for_later(hands: RememberingHands, tmp_path: Path) -> None:
    hands.ends = {"no_drift": Ended("does_not_hold", 8)}
    book = playbook(
        {"check": "no_drift", "go_on_after": ["does_not_hold"]},
        {"verb": "prep", "only_if": [{"step": "no_drift", "is": "does_not_hold"}]},
        {"verb": "measure", "only_if": [{"step": "prep", "is": "skipped"}]},
    )
    assert walk(book, hands, tmp_path).exit_code == 0
    assert hands.took == ["check no_drift", "prep"]


def test_an_argument_is_an_input_or_the_run_of_an_earlier_step(hands: RememberingHands, tmp_path: Path) -> None:
    hands.ends = {"measure": Ended("done", run="/runs/1")}
    arguments = {"first": {"input": "good"}, "second": {"run_of": "measure"}, "invalid": True}
    book = playbook({"verb": "measure"}, {"verb": "compare", "arguments": arguments}, good={"about": "g"})
    walk(book, hands, tmp_path, inputs={"good": "/runs/0"})
    assert hands.took == ["measure", "compare first=/runs/0 second=/runs/1 invalid=True"]


def test_the_run_of_a_step_that_kept_none_ends_it(hands: RememberingHands, tmp_path: Path) -> None:
    book = playbook({"verb": "measure"}, {"verb": "compare", "arguments": {"first": {"run_of": "measure"}}})
    walked = walk(book, hands, tmp_path)
    assert (walked.how, walked.exit_code) == ("failed", 3)
    assert walked.because == "step measure ended done, and kept no run folder"


def test_it_is_taken_up_after_the_last_step_that_let_it_go_on(hands: RememberingHands, tmp_path: Path) -> None:
    hands.ends = {"measure": Ended("done", run="/runs/1"), "doctor": Ended("refused", 3)}
    book = playbook({"verb": "measure"}, {"verb": "doctor"}, {"verb": "compare", "arguments": {"first": {"run_of": "measure"}}})
    assert walk(book, hands, tmp_path).how == "failed"
    before = read_record(tmp_path / "run")
    assert before is not None
    assert before.ended == "failed"
    hands.ends = {}
    hands.took.clear()
    assert walk(book, hands, tmp_path, before=before).how == "done"
    assert hands.took == ["doctor", "compare first=/runs/1"]


def test_it_begins_at_the_step_that_is_named(hands: RememberingHands, tmp_path: Path) -> None:
    guard = {"step": "status", "is": "not_run"}
    book = playbook({"verb": "status"}, {"verb": "prep", "only_if": [guard]}, {"verb": "doctor"})
    walk(book, hands, tmp_path, first="prep")
    assert hands.took == ["prep", "doctor"]


class KilledError(BaseException):
    """This process is gone."""


@pytest.mark.parametrize(
    ("order", "taken"),
    [
        (("NEW", "at_work", "me"), "attach order=NEW"),
        (("NEW", "ended", "me"), "attach order=NEW"),
        (("NEW", "half_done", "me"), "resume order=NEW"),
        (("OLD", "ended", "me"), "relaunch"),
        (("NEW", "ended", "somebody@else"), "relaunch"),
        ((None, "none", ""), "relaunch"),
    ],
)
def test_a_change_that_was_cut_off_is_watched_to_its_end_and_not_made_twice(
    order: tuple[str | None, str, str], taken: str, hands: RememberingHands, tmp_path: Path
) -> None:
    hands.order = NewestOrder("OLD", "ended", "me")
    book = playbook({"verb": "status"}, {"verb": "relaunch"}, {"check": "serves"})

    def killed(verb: str, arguments: Mapping[str, Any], confirm: Confirm) -> Ended:
        if verb == "relaunch":
            raise KilledError
        return Ended("done")

    perform, hands.perform = hands.perform, killed  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        walk(book, hands, tmp_path)
    before = read_record(tmp_path / "run")
    assert before is not None
    assert before.cut_off is not None
    assert (before.cut_off.step, before.cut_off.order_before, before.ended) == ("relaunch", "OLD", None)
    hands.perform = perform  # type: ignore[method-assign]
    hands.order = NewestOrder(order[0], order[1], operator_name() if order[2] == "me" else order[2])
    assert walk(book, hands, tmp_path, before=before).how == "done"
    assert hands.took == [taken, "check serves"]


@pytest.mark.parametrize(
    ("left_over", "taken"),
    [
        ("/runs/run-sweep-h-s", "sweep resume=/runs/run-sweep-h-s"),
        ("/runs/before-sweep-h-s", "sweep backends=a,b"),  # one from before this run is nothing of it
        (None, "sweep backends=a,b"),  # killed before its journal was there
    ],
)
def test_a_sweep_that_was_cut_off_is_taken_up_by_its_own_journal(
    left_over: str | None, taken: str, hands: RememberingHands, tmp_path: Path
) -> None:
    book = playbook({"verb": "sweep", "arguments": {"backends": "a,b"}}, {"check": "serves"})
    hands.ends = {"sweep": KilledError()}  # type: ignore[dict-item]
    with pytest.raises(KilledError):
        walk(book, hands, tmp_path)
    hands.took, hands.ends, hands.left_over = [], {}, left_over
    assert walk(book, hands, tmp_path, before=read_record(tmp_path / "run")).how == "done"
    assert hands.took == [taken, "check serves"]


def test_a_sweep_that_is_begun_anew_after_its_end_does_not_take_up_another(hands: RememberingHands, tmp_path: Path) -> None:
    book = playbook({"verb": "sweep", "arguments": {"backends": "a,b"}})
    hands.ends = {"sweep": Ended("refused", 3)}
    assert walk(book, hands, tmp_path).how == "failed"
    hands.took, hands.ends, hands.left_over = [], {}, "/runs/run-sweep-h-s"
    assert walk(book, hands, tmp_path, before=read_record(tmp_path / "run")).how == "done"
    assert hands.took == ["sweep backends=a,b"]


def test_ctrl_c_leaves_it_to_be_taken_up(hands: RememberingHands, tmp_path: Path) -> None:
    hands.ends = {"serves": KeyboardInterrupt()}  # type: ignore[dict-item]
    walked = walk(playbook({"verb": "status"}, {"check": "serves"}), hands, tmp_path)
    assert (walked.how, walked.exit_code) == ("left", 130)
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record.ended == "left"


def test_inputs_are_given_or_have_a_default() -> None:
    book = playbook({"verb": "status"}, backend={"about": "which"}, reason={"about": "why", "default": 10})
    assert filled_in(book, {"backend": "auto"}) == {"backend": "auto", "reason": "10"}
    with pytest.raises(UsageError) as caught:
        filled_in(book, {})
    assert caught.value.evidence == ["--set backend=VALUE: which"]
    with pytest.raises(UsageError, match="has no input 'bakend'"):
        filled_in(book, {"bakend": "auto"})


def test_a_torn_line_is_none_and_the_next_one_is_whole(tmp_path: Path) -> None:
    record = RunbookRecord(tmp_path, lambda text: None)
    record.open()
    record.write("begun", playbook="p", digest="d", inputs={}, host="h", service=None)
    record.write("outcome", step="a", verdict="done", exit_code=0, goes_on=True, run=None)
    record.close()
    with (tmp_path / FILE).open("a") as stream:
        stream.write('{"event": "outcome", "step": "b", "verd')
    again = RunbookRecord(tmp_path, lambda text: None)
    again.open()
    again.write("outcome", step="c", verdict="done", exit_code=0, goes_on=True, run=None)
    again.close()
    found = read_record(tmp_path)
    assert found is not None
    assert list(found.outcomes) == ["a", "c"]


def test_two_do_not_take_up_one_run(tmp_path: Path) -> None:
    record = RunbookRecord(tmp_path, lambda text: None)
    record.open()
    with pytest.raises(LockedError):
        RunbookRecord(tmp_path, lambda text: None).open()
    record.close()
    again = RunbookRecord(tmp_path, lambda text: None)
    again.open()
    again.close()


def test_a_record_that_cannot_be_kept_is_told_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    record = RunbookRecord(tmp_path, warned.append)
    record.open()

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", full)
    record.write("step", step="a")
    record.write("step", step="b")
    assert warned == [f"this run can't be kept in {tmp_path}, so it can't be resumed: No space left on device"]


def test_the_newest_run_of_this_playbook_on_this_host_is_found(tmp_path: Path) -> None:
    for stamp, host in (("20261130T000001Z", "a"), ("20261130T000002Z", "a"), ("20261130T000003Z", "b")):
        record = RunbookRecord(tmp_path / f"{stamp}-runbook.run-p-{host}", lambda text: None)
        record.open()
        record.write("begun", playbook="p", digest=stamp, inputs={}, host=host, service=None)
        record.close()
    found = newest_record("runbook.run", "p", "a", None, tmp_path)
    assert found is not None
    assert found.digest == "20261130T000002Z"
    assert newest_record("runbook.run", "p", "a", "s", tmp_path) is None
    assert newest_record("runbook.run", "q", "a", None, tmp_path) is None
