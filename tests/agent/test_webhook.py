"""Posting from the box to webhooks of every temper."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.agent.webhook import post, reach
from orchestrator.agent.wire_notice import FateOutcome, ReachRequest
from tests.agent.webhooks import answering, certificate, closed_port, dripping, hanging_up, silent, stubborn

SECONDS = 1.5


def reached(port: int, *, tls: bool = False, host: str = "127.0.0.1") -> str | None:
    return reach(ReachRequest(host, port, tls), lambda *_: None).problem


def test_a_webhook_that_answers_gets_the_text_once() -> None:
    with answering() as webhook:
        assert post(webhook.url, 'done "é" \U0001f680', SECONDS) == (FateOutcome.DONE, "127.0.0.1 answered 200")
    assert webhook.bodies == [{"text": 'done "é" \U0001f680'}]
    assert webhook.paths == [webhook.path]


@pytest.mark.parametrize("status", [302, 403, 404, 500])
def test_a_refusal_says_why(status: int) -> None:
    with answering(status, said="invalid_token\x1b[2J") as webhook:
        assert post(webhook.url, "x", SECONDS) == (FateOutcome.FAILED, f"127.0.0.1 answered {status}: invalid_token [2J")


def test_nobody_listening_is_nobody_reached() -> None:
    port = closed_port()
    assert post(f"http://127.0.0.1:{port}/canary", "x", SECONDS) == (
        FateOutcome.UNREACHED,
        f"127.0.0.1 port {port}: Connection refused",
    )
    assert reached(port) == f"127.0.0.1 port {port}: Connection refused"


@pytest.mark.parametrize("temper", [silent, dripping])
def test_one_that_never_ends_its_answer_takes_no_more_than_its_time(temper: object) -> None:
    with stubborn(temper) as webhook:  # type: ignore[arg-type]
        begun = time.monotonic()
        outcome, detail = post(webhook.url, "x", SECONDS)
        assert time.monotonic() - begun < SECONDS + 1.0
    assert outcome == FateOutcome.UNKNOWN, "it may have arrived"
    assert "canary" not in detail


def test_one_that_hangs_up_may_have_it() -> None:
    with stubborn(hanging_up) as webhook:
        outcome, detail = post(webhook.url, "x", SECONDS)
    assert outcome == FateOutcome.UNKNOWN
    assert detail.startswith("it was handed over, and then: ")


def test_a_name_that_nobody_knows() -> None:
    outcome, detail = post("https://no-such-host.invalid/canary", "x", SECONDS)
    assert outcome == FateOutcome.UNREACHED
    assert "canary" not in detail
    assert "no-such-host.invalid" in detail


def test_a_certificate_that_nobody_knows_is_not_trusted(tmp_path: Path) -> None:
    _, context = certificate(tmp_path)
    with answering(context=context) as webhook:
        outcome, detail = post(webhook.url, "x", SECONDS)
        problem = reached(webhook.port, tls=True)
    assert (outcome, webhook.bodies) == (FateOutcome.UNREACHED, [])
    assert detail == f"the certificate of 127.0.0.1 port {webhook.port} is not trusted: self-signed certificate"
    assert problem == detail


def test_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, context = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with answering(context=context) as webhook:
        assert reached(webhook.port, tls=True) is None
        assert post(webhook.url, "x", SECONDS).outcome == FateOutcome.DONE
    assert webhook.texts == ["x"]


def test_what_speaks_no_tls_is_not_reached_with_it() -> None:
    with answering() as webhook:
        problem = reached(webhook.port, tls=True)
    assert problem is not None
    assert "does not speak TLS as it should" in problem


def test_to_reach_one_sends_it_nothing() -> None:
    with stubborn(silent) as webhook:
        assert reached(webhook.port) is None
    assert webhook.connections == 1


def test_one_that_is_silent_in_its_handshake_is_given_up() -> None:
    with stubborn(silent) as webhook:
        begun = time.monotonic()
        assert reached(webhook.port, tls=True) is not None
        assert time.monotonic() - begun < 4.5


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    with answering() as webhook:
        assert post(webhook.url, "x", SECONDS).outcome == FateOutcome.DONE
