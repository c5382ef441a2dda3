"""A webhook's URL in its parts."""

from __future__ import annotations

import pytest

from orchestrator.agent.webhook_address import Address, parse, secret_parts

SLACK = "https://hooks.slack.com/services/T000/B000/XXXXcanary123"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (SLACK, Address("hooks.slack.com", 443, True, "/services/T000/B000/XXXXcanary123")),
        ("http://chat.lan:8065/hooks/abc?x=1", Address("chat.lan", 8065, False, "/hooks/abc?x=1")),
        ("http://[::1]:9/", Address("::1", 9, False, "/")),
        ("https://chat.lan", Address("chat.lan", 443, True, "/")),
    ],
)
def test_the_parts(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/canary",
        "canary",
        "https:///canary",
        "https://h:port/canary",
        "https://u:canary@h/",
        "https://h/ca nary",
        "https://h/canaryé",
    ],
)
def test_what_can_not_be_posted_to_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|holds) ") as refused:
        parse(url)
    assert "canary" not in str(refused.value)
    assert url not in str(refused.value)


def test_what_of_it_is_a_secret() -> None:
    assert secret_parts(SLACK) == [SLACK, "/services/T000/B000/XXXXcanary123", "XXXXcanary123"]
    assert secret_parts("http://chat.lan/hook") == ["http://chat.lan/hook"]
