"""What a service's owner expects, asked of a stand-in."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from orchestrator.agent import expectations, wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.expectations import Answer
from orchestrator.agent.http import Client
from tests.agent.standin_sglang import StandIn, stand_in

PARIS = wire.Expectation("The capital of France is", contains=["Paris"])


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in() as made:
        made.says = " Paris, of course."
        yield made


def ask(server: StandIn, *expected: wire.Expectation, seconds: float = 30.0, key: str | None = None) -> list[Answer]:
    return expectations.ask(Client(server.port, key=key), list(expected), Deadline(seconds))


@pytest.mark.parametrize(
    ("expectation", "wrong"),
    [
        (PARIS, ""),
        (wire.Expectation("p", contains=["Paris", "course"]), ""),
        (wire.Expectation("p", contains=["Paris", "London"]), "it does not contain 'London'"),
        (wire.Expectation("p", matches=r"^\s*Paris\b"), ""),
        (wire.Expectation("p", matches=r"^Rome"), "it does not match '^Rome'"),
        (wire.Expectation("p", contains=["Paris"], matches=r"^Rome"), "it does not match '^Rome'"),
        (wire.Expectation("p", contains=["Paris"], chat=True), ""),
        (wire.Expectation("p", matches="("), "'(' could not be searched for"),
    ],
)
def test_an_answer_is_held_against_what_is_expected(server: StandIn, expectation: wire.Expectation, wrong: str) -> None:
    (answer,) = ask(server, expectation)

    assert answer.wrong.startswith(wrong)
    assert bool(answer.wrong) == bool(wrong)


def test_prompts_are_asked_greedily_and_as_chat_where_said(server: StandIn) -> None:
    ask(server, PARIS, wire.Expectation("Who?", contains=["x"], chat=True, max_tokens=7))

    assert server.asked == ["POST /generate", "POST /v1/chat/completions"]
    plain, chat = server.bodies
    assert plain == {"text": PARIS.prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 64}}
    assert (chat["messages"], chat["temperature"], chat["max_tokens"]) == ([{"role": "user", "content": "Who?"}], 0, 7)


@pytest.mark.slow
def test_an_expression_that_never_ends_is_given_up(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.expectations._SEARCH_SECONDS", 0.5)
    server.says = "a" * 60
    began = time.monotonic()
    (answer,) = ask(server, wire.Expectation("p", matches=r"(a+)+b"))

    assert "could not be searched for" in answer.wrong
    assert time.monotonic() - began < 5


def test_a_server_that_does_not_answer_fails_what_is_expected_of_it(server: StandIn) -> None:
    server.generate_status = 500
    (answer,) = ask(server, PARIS)

    assert answer.wrong.startswith("no answer: /generate: HTTP 500")
    assert answer.asked


def test_what_there_is_no_time_for_is_not_asked(server: StandIn) -> None:
    (answer,) = ask(server, PARIS, seconds=0.0)

    assert not answer.asked
    assert server.asked == []


GOOD, BAD, LATE = Answer("p", "Paris"), Answer("p", "!!!!", "it does not contain 'Paris'"), Answer("p", wrong="no time", asked=False)


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ([GOOD], [GOOD], "pass"),
        ([], [GOOD], "pass"),
        ([GOOD], [BAD], "refuse"),
        ([], [BAD], "refuse"),
        ([BAD], [BAD], "warn"),
        ([BAD, GOOD], [BAD, BAD], "refuse"),
        ([GOOD], [LATE], "warn"),
        ([LATE], [BAD], "refuse"),
        ([GOOD, GOOD], [BAD], "refuse"),
    ],
)
def test_what_the_old_server_failed_too_is_not_counted(old: list[Answer], new: list[Answer], outcome: str) -> None:
    assert expectations.judge(old, new).outcome == outcome


def test_a_refusal_shows_the_answer() -> None:
    verdict = expectations.judge([], [BAD])

    assert verdict.evidence == ['"p": it does not contain \'Paris\'; the answer: "!!!!"']
