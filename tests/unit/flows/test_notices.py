"""Posting a notice from the operator's machine to webhooks of every temper."""

from __future__ import annotations

import time

import pytest

from orchestrator.agent.wire_notice import FateOutcome
from orchestrator.flows.notices import ATTEMPTS, post
from tests.agent.webhooks import answering, closed_port, dripping, hanging_up, silent, stubborn


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_posted_once() -> None:
    with answering() as webhook:
        assert post(webhook.url, "done") == (FateOutcome.DONE, "127.0.0.1 answered 200")
    assert webhook.bodies == [{"text": "done"}]


def test_what_was_surely_not_taken_is_posted_again() -> None:
    pauses: list[float] = []
    with answering(503, 429) as webhook:
        assert post(webhook.url, "done", pauses.append) == (FateOutcome.DONE, "127.0.0.1 answered 200")
    assert (webhook.connections, len(pauses)) == (3, 2)


def test_one_that_takes_nothing_is_given_up() -> None:
    with answering(*[500] * 9, said="no_service") as webhook:
        assert post(webhook.url, "done", lambda _: None) == (FateOutcome.FAILED, "127.0.0.1 answered 500: no_service")
    assert webhook.connections == ATTEMPTS


@pytest.mark.parametrize("status", [302, 403, 404])
def test_a_refusal_is_not_asked_again(status: int) -> None:
    with answering(status, said="invalid_token") as webhook:
        assert post(webhook.url, "done", lambda _: None) == (FateOutcome.FAILED, f"127.0.0.1 answered {status}: invalid_token")
    assert webhook.connections == 1


def test_nobody_listening_is_tried_a_few_times() -> None:
    pauses: list[float] = []
    outcome, detail = post(f"http://127.0.0.1:{closed_port()}/canary-hook", "done", pauses.append)
    assert (outcome, len(pauses)) == (FateOutcome.UNREACHED, ATTEMPTS - 1)
    assert "canary" not in detail


@pytest.mark.parametrize("temper", [silent, dripping])
def test_one_that_never_ends_its_answer_takes_no_more_than_its_time(temper: object) -> None:
    with stubborn(temper) as webhook:  # type: ignore[arg-type]
        begun = time.monotonic()
        outcome, detail = post(webhook.url, "done", seconds=1.0)
        assert time.monotonic() - begun < 3.0
    assert (outcome, webhook.connections) == (FateOutcome.UNKNOWN, 1)
    assert "canary" not in detail


def test_one_that_hangs_up_may_have_it_and_is_not_asked_again() -> None:
    with stubborn(hanging_up) as webhook:
        outcome, detail = post(webhook.url, "done")
    assert (outcome, webhook.connections) == (FateOutcome.UNKNOWN, 1)
    assert "canary" not in detail


def test_the_operators_own_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    with answering() as webhook:
        outcome, _ = post(webhook.url.replace("127.0.0.1", "chat.invalid"), "done", lambda _: None)
    assert (outcome, webhook.connections) == (FateOutcome.UNREACHED, 0)
