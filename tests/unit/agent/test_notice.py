"""The notice of an order's end and what else follows it: sent once, by whom it is asked for first, also when somebody is killed."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import notice, supervisor, wire
from orchestrator.agent.follow import collect
from orchestrator.agent.journal import Journal, ServiceLock, order_status
from orchestrator.agent.notice import Teller, claim
from orchestrator.agent.private_files import write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import Scrubber
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.webhook import Posted
from orchestrator.agent.wire_notice import NOTICE, SUPERVISOR, Afterwards, ClaimReport, ClaimRequest, Fate, FateOutcome, Told
from tests.agent.webhooks import answering, stubborn

URL = "https://hooks.example/services/T0/B0/canary-hook-41x"
BOTH = [Told.FAILURE, Told.SUCCESS]
AFTERWARDS = Afterwards("relaunch", "gpu1", "triton", "auto", hooks=True, notice=BOTH, webhook=URL)
HOOK = "0123456789ab"


class Killed(BaseException):
    """SIGKILL."""


class Box:
    """A service's state folder with one order, and what was sent."""

    def __init__(self, root: Path, afterwards: Afterwards | None = AFTERWARDS) -> None:
        self.folder = StateFolder(str(root), "glm5")
        self.folder.create()
        self.path = self.folder.order_folder("O1")
        self.path.mkdir()
        self.order = wire.Order(
            "O1", wire.OrderKind.TEARDOWN, "glm5", str(root), 1, wire.Policy(), "ann@laptop", "firmware", afterwards=afterwards
        )
        write_private(self.path / "order.json", json.dumps(wire.to_json(self.order)))
        self.sent: list[tuple[str, str]] = []
        self.answer = Posted(FateOutcome.DONE, "hooks.example answered 200")

    def end(self, state: str = wire.State.DONE, exit_code: int = 0, summary: str = "it is gone") -> Box:
        result = wire.OrderResult("O1", state, exit_code, summary, "down, as asked")
        with Journal(self.path) as journal:
            journal.state(state, summary, {"result": result})
        write_private(self.path / "result.json", json.dumps(wire.to_json(result)))
        return self

    def send(self, url: str, text: str) -> Posted:
        self.sent.append((url, text))
        return self.answer

    def supervise(self, send: Callable[[str, str], Posted] | None = None) -> None:
        """The end of a supervisor's life."""
        teller = Teller(self.order, self.path, Scrubber([URL]).data, send or self.send)
        teller.hold()
        teller.tell()

    def ask(self, what: str = NOTICE, token: str = "a", by: str = "bob@pad", fate: Fate | None = None) -> ClaimReport:
        return claim(ClaimRequest("glm5", str(self.folder.path.parent), "O1", what, by, token, fate), lambda *_: None)

    @property
    def fate(self) -> Fate | None:
        return read_record(Fate, self.path / "notice.json")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_the_supervisor_sends_once_and_keeps_what_became_of_it(box: Box) -> None:
    box.end().supervise()
    box.supervise()
    ((url, text),) = box.sent
    assert url == URL
    assert text.startswith("relaunch of glm5 on gpu1: DONE, it is gone\nby ann@laptop (firmware)")
    assert box.fate is not None
    assert (box.fate.by, box.fate.outcome, box.fate.detail) == (SUPERVISOR, FateOutcome.DONE, "hooks.example answered 200")
    status = order_status(box.folder, "O1")
    assert status is not None
    assert status.notice == box.fate


def test_nothing_is_sent_of_an_order_that_has_not_ended(box: Box) -> None:
    with Journal(box.path) as journal:
        journal.state(wire.State.LOADING, "")
    box.supervise()
    assert (box.sent, box.fate) == ([], None)
    assert box.ask() == ClaimReport(False, None, replace(AFTERWARDS, webhook=None), "ann@laptop", "firmware")
    assert not box.ask(HOOK).granted


@pytest.mark.parametrize(
    ("notices", "exit_code", "sent"), [([Told.FAILURE], 0, 0), ([Told.FAILURE], 6, 1), ([Told.SUCCESS], 0, 1), ([Told.SUCCESS], 7, 0)]
)
def test_only_the_endings_that_were_asked_for_are_told(tmp_path: Path, notices: list[str], exit_code: int, sent: int) -> None:
    box = Box(tmp_path, replace(AFTERWARDS, notice=notices))
    box.end(wire.State.DONE if exit_code == 0 else wire.State.DOWN, exit_code).supervise()
    assert len(box.sent) == sent
    assert not box.ask().granted


@pytest.mark.parametrize("afterwards", [None, replace(AFTERWARDS, webhook=None)])
def test_the_supervisor_sends_only_what_it_was_given(tmp_path: Path, afterwards: Afterwards | None) -> None:
    box = Box(tmp_path, afterwards)
    box.end().supervise()
    assert (box.sent, box.fate) == ([], None)


def test_the_secret_is_in_the_order_alone(box: Box) -> None:
    box.answer = Posted(FateOutcome.FAILED, f"moved to {URL}")
    (box.path / "supervisor.log").write_text(f"Traceback: {URL} /services/T0/B0/canary-hook-41x\n")
    box.end(summary=f"see {URL}").supervise()
    (_, text), fate = box.sent[0], box.fate
    assert fate is not None
    holding = [path.name for path in box.path.iterdir() if "canary" in path.read_text()]
    assert (URL in text, "canary" in fate.detail, sorted(holding)) == (
        False,
        False,
        ["journal.jsonl", "order.json", "result.json", "supervisor.log"],
    )
    files = collect(box.folder, "O1").files
    assert files.keys() == {"journal.jsonl", "progress.jsonl", "supervisor.log"}
    assert [name for name, content in files.items() if "canary" in content] == []
    assert "canary" not in json.dumps(wire.to_json([box.ask(), Box.ask(box, HOOK)]))


def test_a_supervisor_that_is_killed_while_it_sends_sends_a_second_time_and_no_third(box: Box) -> None:
    def killed(url: str, text: str) -> Posted:
        box.sent.append((url, text))
        raise Killed

    box.end()
    for _ in range(4):
        try:
            box.supervise(killed)
        except Killed:
            continue
    assert len(box.sent) == 2
    assert box.fate is not None
    assert (box.fate.outcome, box.fate.attempts) == (FateOutcome.BEGUN, 2)


@pytest.mark.parametrize("point", ["before the notice", "the notice"])
def test_a_supervisor_that_is_killed_around_it_still_sends(box: Box, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    armed = [point]

    def crash_point(name: str) -> None:
        if name in armed:
            armed.remove(name)
            raise Killed

    monkeypatch.setattr(notice, "crash_point", crash_point)
    box.end()
    with pytest.raises(Killed):
        box.supervise()
    box.supervise()
    assert len(box.sent) == (1 if point == "before the notice" else 2)
    assert box.fate is not None
    assert box.fate.outcome == FateOutcome.DONE


def test_whatever_goes_wrong_with_it_is_told_and_not_raised(box: Box) -> None:
    def broken(url: str, text: str) -> Posted:
        raise ValueError(f"{url} is wrong")

    box.end().supervise(broken)
    assert box.fate is not None
    assert (box.fate.outcome, box.fate.detail) == (FateOutcome.FAILED, "ValueError: it could not be sent")


def test_a_box_without_tls_leaves_it_to_others(box: Box) -> None:
    def lacking(url: str, text: str) -> Posted:
        raise ModuleNotFoundError("No module named '_ssl'")

    box.end().supervise(lacking)
    assert box.ask().granted


def test_an_orders_folder_that_has_gone_is_nothing_to_a_notice(tmp_path: Path) -> None:
    box = Box(tmp_path)
    teller = Teller(box.order, tmp_path / "gone", send=box.send)
    teller.hold()
    teller.tell()
    assert box.sent == []


def test_who_asks_first_sends_what_the_box_did_not_reach_and_nobody_after(box: Box) -> None:
    box.answer = Posted(FateOutcome.UNREACHED, "hooks.example port 443: Connection refused")
    box.end().supervise()
    first = box.ask(token="a")
    assert (first.granted, first.text) == (True, box.sent[0][1])
    assert box.ask(token="a").granted, "its answer was lost, and it asks again"
    second = box.ask(token="b", by="eve@desk")
    assert second.fate is not None
    assert (second.granted, second.fate.by, second.fate.outcome) == (False, "bob@pad", FateOutcome.BEGUN)
    assert not box.ask(token="b", fate=Fate("eve@desk", FateOutcome.DONE)).granted
    box.ask(token="a", fate=Fate("bob@pad", FateOutcome.DONE, "hooks.example answered 200", token="a"))
    kept = box.ask(token="b").fate
    assert kept is not None
    assert (kept.by, kept.outcome) == ("bob@pad", FateOutcome.DONE)
    box.supervise()
    assert len(box.sent) == 1


@pytest.mark.parametrize("outcome", [FateOutcome.DONE, FateOutcome.FAILED, FateOutcome.UNKNOWN])
def test_what_may_have_arrived_is_not_sent_again_by_others(box: Box, outcome: str) -> None:
    box.answer = Posted(outcome, "x")
    box.end().supervise()
    report = box.ask()
    assert report.fate is not None
    assert (report.granted, report.fate.outcome) == (False, outcome)


def test_a_supervisor_that_is_gone_before_it_sent_leaves_it_to_who_asks(box: Box) -> None:
    box.end()
    assert box.ask().granted


def test_whoever_asks_waits_for_a_supervisor_that_may_still_send(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "_CLAIM_SECONDS", 0.2)
    box.end()
    teller = Teller(box.order, box.path, send=box.send)
    teller.hold()
    waiting = box.ask()
    assert (waiting.granted, waiting.fate) == (False, Fate(SUPERVISOR, FateOutcome.BEGUN, "it is being sent"))
    teller.tell()
    assert box.ask().fate == box.fate


def test_a_second_supervisor_of_the_order_does_not_send_beside_the_first(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "_HOLD_SECONDS", 0.1)
    box.end()
    descriptor = os.open(box.path / "notice.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    box.supervise()
    os.close(descriptor)
    assert box.sent == []


def test_a_command_is_for_one_and_does_not_wait_for_the_notice(box: Box) -> None:
    box.end()
    teller = Teller(box.order, box.path, send=box.send)
    teller.hold()
    assert box.ask(HOOK, token="a").granted
    assert not box.ask(HOOK, token="b").granted
    assert box.ask("fedcba987654", token="b").granted
    teller.tell()
    box.ask(HOOK, token="a", fate=Fate("bob@pad", FateOutcome.FAILED, "status 1", token="a"))
    kept = read_record(Fate, box.path / f"hook-{HOOK}.json")
    assert kept is not None
    assert (kept.outcome, kept.detail) == (FateOutcome.FAILED, "status 1")


def test_no_command_follows_an_order_that_was_given_none(tmp_path: Path) -> None:
    box = Box(tmp_path, replace(AFTERWARDS, hooks=False)).end()
    assert not box.ask(HOOK).granted


@pytest.mark.parametrize("what", ["../../x", "hook", "", "0123456789AB"])
def test_nothing_else_can_be_asked_for(box: Box, what: str) -> None:
    with pytest.raises(AgentRefusal, match="nothing that follows"):
        box.end().ask(what)


def test_an_order_that_is_not_there(box: Box) -> None:
    (box.path / "order.json").unlink()
    with pytest.raises(AgentRefusal, match="no order O1"):
        box.ask()


def test_a_supervisor_that_was_started_again_after_the_end_sends_what_is_left(tmp_path: Path) -> None:
    with answering() as webhook:
        box = Box(tmp_path, replace(AFTERWARDS, webhook=webhook.url)).end()
        for _ in range(2):
            assert supervisor.supervise(box.order, box.path).state == wire.State.DONE
    assert [text.split("\n")[0] for text in webhook.texts] == ["relaunch of glm5 on gpu1: DONE, it is gone"]
    assert box.fate is not None
    assert box.fate.outcome == FateOutcome.DONE


def test_an_order_that_was_turned_away_is_told_too(tmp_path: Path) -> None:
    with answering() as webhook:
        box = Box(tmp_path, replace(AFTERWARDS, webhook=webhook.url))
        other = ServiceLock(box.folder)
        assert other.take("O0")
        try:
            result = supervisor.supervise(box.order, box.path)
        finally:
            other.release()
    assert (result.state, len(webhook.texts)) == (wire.State.REFUSED, 1)
    assert "order O0 is at work" in webhook.texts[0]


def test_the_services_lock_is_free_while_a_webhook_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "SEND_SECONDS", 1.0)
    free: list[bool] = []

    def look(connection: object, over: threading.Event) -> None:
        lock = ServiceLock(StateFolder(str(tmp_path), "glm5"))
        free.append(lock.take("O2", 0.5))
        lock.release()
        over.wait(30)

    with stubborn(look) as webhook:
        box = Box(tmp_path, replace(AFTERWARDS, webhook=webhook.url)).end()
        supervisor.supervise(box.order, box.path)
    assert free == [True]
    assert box.fate is not None
    assert box.fate.outcome == FateOutcome.UNKNOWN
