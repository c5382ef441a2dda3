from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.launch_files import environment_text, merge_secrets, split_config, without_proxy
from orchestrator.agent.systemd import exec_word, run_arguments


def read_like_systemd(text: str) -> str:
    """What parse_env_file (systemd v252, basic/env-file.c) makes of one double-quoted value."""
    return re.sub(r'\\([\\"$`])', r"\1", text[:-1].partition('="')[2][:-1])


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t\n")))
def test_environment_round_trip(value: str) -> None:
    assert read_like_systemd(environment_text({"A": value})) == value


@pytest.mark.parametrize(
    ("arguments", "config", "rest"),
    [
        (["--a", "--config", "x.yaml", "--b"], "x.yaml", ["--a", "--b"]),
        (["--config=x.yaml"], None, ["--config=x.yaml"]),
        (["--config"], None, ["--config"]),
        ([], None, []),
    ],
)
def test_split_config(arguments: list[str], config: str | None, rest: list[str]) -> None:
    assert split_config(arguments) == (config, rest)


def test_secret_replaces_either_spelling() -> None:
    assert merge_secrets({"api_key": "old", "tp": 8}, {"api-key": "new"}) == {"tp": 8, "api-key": "new"}


def test_no_proxy_keeps_what_was_given_first() -> None:
    assert without_proxy(["a, b", "b,localhost"], "10.0.0.2") == "a,b,localhost,127.0.0.1,0.0.0.0,10.0.0.2"


def test_dollars_are_doubled_for_systemd() -> None:
    command = run_arguments("u.service", ["python", "$HOME", "100%"], ["KillMode=mixed"], "d")
    assert command[command.index("--") :] == ["--", "python", "$$HOME", "100%"]


def test_exec_word() -> None:
    assert exec_word('a "b" \\') == '"a \\"b\\" \\\\"'
