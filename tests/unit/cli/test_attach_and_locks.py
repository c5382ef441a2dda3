"""attach, resume, Ctrl-C and a person's lock on the command line, over a scripted agent."""

from __future__ import annotations

import dataclasses
import json
import signal
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.cli.screen import Screen
from orchestrator.cli.status_text import lock_blocks, order_lines, released_blocks
from tests.unit.cli.test_verbs import RELAUNCH, Box, box, restored
from tests.unit.flows.fake_agent import FakeAgent, answer, state
from tests.unit.flows.samples import COLLECTED, done, healthy_agent, relaunch_script, survey
from tests.unit.flows.test_attach_flow import AT_WORK, CUT_OFF, ENDED, UNTOUCHED, agent_with, lock_answer

__all__ = ["box"]

PERSON = wire.PersonLock("ann@laptop", "firmware", 1764400000.0)
SUMMARY = "order O7 is at work on glm5: launch by kim@laptop (night shift), in LOADING, since 2025-11-29 06:50:00 UTC"


def said(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("code", [0, 6, 7])
def test_attach_shows_an_order_keeps_a_run_and_ends_with_its_exit_code(box: Box, code: int) -> None:
    result = {0: done(), 6: restored(), 7: done(state="DOWN", exit_code=7)}[code]
    ended = box.run(agent_with(ENDED, follow=[[COLLECTED, *relaunch_script(result)]]), "attach", "--order", "O7")
    assert ended.code == code
    for words in ("launch O7 has ended in gpu1/101: RESTORED", "CHECKED", "weights", result.summary):
        assert words in said(ended.out)
    (folder,) = box.runs
    assert "attach" in folder.name
    assert {path.name for path in folder.iterdir()} >= {
        "run.json",
        "order.json",
        "events.jsonl",
        "result.json",
        "server.log",
        "journal.jsonl",
    }
    assert json.loads((folder / "order.json").read_text())["operator"] == "kim@laptop"


def test_resume_shows_it_too_and_the_document_holds_the_result(box: Box) -> None:
    ended = box.run(agent_with(CUT_OFF), "resume", "--json")
    assert (ended.code, ended.document["result"]["state"], ended.document["schema"]) == (6, "RESTORED", "1")
    assert "resume" in box.runs[0].name


def test_an_order_that_is_not_there_leaves_no_run(box: Box) -> None:
    ended = box.run(agent_with(None), "attach")
    assert (ended.code, box.runs) == (3, [])
    assert "there was no order of glm5 yet in gpu1/101" in said(ended.err)


class Terminal:
    """Somebody at a terminal, who answers questions in turn; an exception is their next Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: bool | BaseException) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(Screen, "interactive", property(lambda _: True))
        monkeypatch.setattr(Screen, "ask", lambda _, question: self._ask(question))

    def _ask(self, question: str) -> bool:
        self.asked.append(question)
        given = self._answers.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given


def interrupted(*rest: Any) -> FakeAgent:
    return healthy_agent(follow=[[state(1, "CHECKED"), KeyboardInterrupt()], *rest], cancel=[answer(AT_WORK)])


@pytest.mark.parametrize("answers", [(False,), (KeyboardInterrupt(),)])
def test_ctrl_c_on_a_terminal_may_leave_it_running_and_tells_how_to_come_back(
    box: Box, monkeypatch: pytest.MonkeyPatch, answers: tuple[Any, ...]
) -> None:
    terminal = Terminal(monkeypatch, *answers)
    agent = interrupted()
    ended = box.run(agent, *RELAUNCH)
    order_id = agent.requests("submit")[0].order_id
    assert ended.code == 130
    assert f"next: fab attach --host gpu1 --service glm5 --order {order_id}" in ended.err
    assert terminal.asked == [f"stop the relaunch {order_id} safely, so that nothing is left half-done? No leaves it running"]
    assert agent.requests("cancel") == []


@pytest.mark.parametrize("result", [restored(), done(state="REFUSED", exit_code=3, summary="stopped before anything was touched")])
def test_ctrl_c_on_a_terminal_may_stop_it_safely(box: Box, monkeypatch: pytest.MonkeyPatch, result: wire.OrderResult) -> None:
    Terminal(monkeypatch, True)
    agent = interrupted(relaunch_script(result))
    ended = box.run(agent, *RELAUNCH)
    assert ended.code == result.exit_code
    assert agent.requests("cancel")[0].order_id == agent.requests("submit")[0].order_id
    assert result.summary in ended.out


def test_ctrl_c_without_a_terminal_asks_nobody(box: Box) -> None:
    agent = interrupted()
    ended = box.run(agent, *RELAUNCH)
    assert (ended.code, agent.requests("cancel")) == (130, [])
    assert "goes on in gpu1/101" in said(ended.err)


def test_a_signal_that_ends_the_process_asks_nobody(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)

    class Terminated(FakeAgent):
        def call(self, verb: str, request: Any, timeout: float | None = None) -> Any:
            for event in super().call(verb, request, timeout):
                yield event
                if verb == "follow":
                    signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    agent = healthy_agent()
    terminated = Terminated()
    terminated.__dict__.update(agent.__dict__)
    ended = box.run(terminated, *RELAUNCH)
    assert (ended.code, terminal.asked) == (143, [])


@pytest.mark.parametrize("flag", ["-m", "--message"])
def test_a_lock_is_acquired_with_its_reason(box: Box, flag: str) -> None:
    agent = healthy_agent(lock=[lock_answer(None), lock_answer(None, person=PERSON)])
    ended = box.run(agent, "lock.acquire", flag, "new firmware")
    assert ended.code == 0
    assert agent.requests("lock")[1].reason == "new firmware"
    assert "fab lock.release --host gpu1 --service glm5" in ended.out
    assert box.runs == []


def test_a_lock_without_a_reason_is_wrong_usage(box: Box) -> None:
    ended = box.run(healthy_agent(), "lock.acquire")
    assert (ended.code, "fab lock.acquire -m REASON" in ended.err) == (2, True)


def test_the_short_flag_is_in_the_help(box: Box) -> None:
    assert "-m STRING, --message=STRING" in box.run(healthy_agent(), "lock.acquire", "--help").out


def test_who_finds_it_locked_learns_by_whom_and_why_and_ends_with_5(box: Box) -> None:
    agent = healthy_agent(survey=[answer(survey(lock=PERSON))])
    ended = box.run(agent, *RELAUNCH, "--wait", "60")
    assert ended.code == 5
    assert "glm5 is locked by ann@laptop since 2025-11-29 07:06:40 UTC: firmware" in said(ended.err)
    assert "not waited for" in ended.err


def test_a_second_operator_ends_with_5_and_learns_whose_order_it_is(box: Box) -> None:
    ended = box.run(healthy_agent(survey=[answer(survey(order=AT_WORK))]), *RELAUNCH)
    assert ended.code == 5
    assert SUMMARY in said(ended.err)
    assert "fab attach --host gpu1 --service glm5 # or give --wait SECONDS" in said(ended.err)


@pytest.mark.parametrize("verb", [RELAUNCH, ("launch", "--yes"), ("teardown", "--yes"), ("lock.acquire", "-m", "x"), ("prep",)])
def test_waiting_takes_seconds(box: Box, verb: tuple[str, ...]) -> None:
    ended = box.run(healthy_agent(), *verb, "--wait", "soon")
    assert (ended.code, "--wait takes seconds" in ended.err) == (2, True)


def test_release_says_whose_it_was_when_it_was_not_ones_own(box: Box) -> None:
    ended = box.run(healthy_agent(lock=[lock_answer(None, released=PERSON)]), "lock.release")
    assert ended.code == 0
    assert "The lock was not yours: by ann@laptop since 2025-11-29 07:06:40 UTC: firmware" in said(ended.out)


def texts(blocks: Any) -> list[str]:
    return [block.text for block in blocks]


def test_what_a_release_has_ended() -> None:
    assert texts(released_blocks("glm5", None, "me@here")) == ["nobody had locked glm5"]
    assert texts(released_blocks("glm5", dataclasses.replace(PERSON, operator="me@here"), "me@here")) == ["glm5 is free again"]


def test_lock_status_names_everybody_who_keeps_changes_away(box: Box) -> None:
    gpu = wire.GpuLock("GPU-1", "other", "O8", "relaunch", "eve@pad", 1764400000.0)
    found = wire.LockStatus(PERSON, AT_WORK, [gpu], preparing=wire.PersonLock("root@host", "prep to fast", 1764400000.0))
    ended = box.run(healthy_agent(lock=[answer(found)]), "lock.status")
    assert ended.code == 0
    for words in (
        "locked by ann@laptop",
        "O7 is at work on glm5",
        "GPU-1 is held by the relaunch O8 of other",
        "being changed by root@host",
    ):
        assert words in said(ended.out)
    assert texts(lock_blocks("glm5", wire.LockStatus(order=ENDED))) == ["glm5 is free"]
    assert "comes to its end first" in texts(lock_blocks("glm5", wire.LockStatus(order=CUT_OFF)))[0]


def test_status_tells_the_lock_and_how_an_order_in_progress_stands(box: Box) -> None:
    order = dataclasses.replace(AT_WORK, resumed=2)
    gpu = wire.GpuLock("GPU-1", "other", "O8", "relaunch", "eve@pad", 1764400000.0)
    out = said(box.run(healthy_agent(survey=[answer(survey(order=order, lock=PERSON, gpu_locks=[gpu]))]), "status").out)
    for words in (
        "lock glm5 is locked by ann@laptop",
        "launch O7 by kim@laptop: LOADING, at work",
        "begun 2025-11-29",
        "taken up again 2 times, after its supervisor was ended",
        "reason: night shift",
        "-> fab attach --service glm5",
        "GPU-1 is held by",
    ):
        assert words in out


def test_how_an_order_that_nobody_works_on_stands() -> None:
    assert ["half-done" in order_lines(CUT_OFF)[0], order_lines(CUT_OFF)[-1]] == [True, "-> fab resume --service glm5"]
    assert "cut off before it touched anything" in order_lines(UNTOUCHED)[0]
    assert not [line for line in order_lines(ENDED) if line.startswith("->")]
