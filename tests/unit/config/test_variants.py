"""Which variant of a profile is meant: what the installed SGLang has counts before its number."""

from __future__ import annotations

import pytest

from orchestrator.config import Backend, choose, signs
from orchestrator.errors import RefusedError

SIGN = "sglang.new_path"
PROFILE = Backend.model_validate(
    {
        "name": "fast",
        "kind": "backend",
        "summary": "s",
        "variants": [
            {"sglang": ">=0.5.6,<0.5.11", "lacks": [SIGN], "arguments": {"--way": "old"}},
            {"sglang": ">=0.5.11,<0.5.18", "has": [SIGN], "arguments": {"--way": "new"}},
            {"sglang": ">=0.5.18", "has": [SIGN], "arguments": {"--way": "newest"}},
        ],
    }
)
PLAIN = Backend.model_validate(
    {
        "name": "plain",
        "kind": "backend",
        "summary": "s",
        "variants": [
            {"sglang": ">=0.5.6,<0.5.12", "arguments": {"--way": "old"}},
            {"sglang": ">=0.5.12,<0.5.13", "refused": "it is broken there"},
            {"sglang": ">=0.5.13", "arguments": {"--way": "new"}},
        ],
    }
)


@pytest.mark.parametrize(
    ("version", "found", "way", "certain"),
    [
        ("0.5.9", {SIGN: False}, "old", True),
        ("0.5.9", {}, "old", True),
        ("0.5.14", {SIGN: True}, "new", True),
        ("0.5.23", {SIGN: True}, "newest", True),
        # A fork, or a checkout between two releases, that has the new path already: the nearest variant that has it.
        ("0.5.9", {SIGN: True}, "new", False),
        ("0.5.11.dev42+g1a2b3c", {SIGN: True}, "new", False),
        # One that calls itself new and never got it.
        ("0.5.14", {SIGN: False}, "old", False),
        ("0.5.24.dev5+gabc", {SIGN: True}, "newest", True),
        # Numbers that say nothing.
        ("unknown", {SIGN: True}, "newest", False),
        ("unknown", {SIGN: False}, "old", False),
        ("unknown", {}, "newest", False),
        ("0.0.0.dev0", {SIGN: True}, "newest", False),
        ("main-1a2b3c", {SIGN: False}, "old", False),
    ],
)
def test_the_variant(version: str, found: dict[str, bool], way: str, certain: bool) -> None:
    choice = choose(PROFILE, version, found)
    assert (choice.variant.arguments["--way"], choice.certain) == (way, certain)
    assert version in choice.rests


@pytest.mark.parametrize(
    ("version", "found", "words"),
    [
        ("0.5.14", {SIGN: True}, "by its version 0.5.14, and its source has sglang.new_path"),
        ("0.5.14", {}, "by its version 0.5.14"),
        ("0.5.9", {SIGN: True}, "not by its version 0.5.9: its source has sglang.new_path"),
        ("0.5.14", {SIGN: False}, "not by its version 0.5.14: its source has no sglang.new_path"),
        ("unknown", {SIGN: False}, "version unknown says nothing; its source has no sglang.new_path"),
        ("unknown", {}, "version unknown says nothing"),
    ],
)
def test_it_is_said_what_the_choice_rests_on(version: str, found: dict[str, bool], words: str) -> None:
    assert choose(PROFILE, version, found).rests == words


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.5.12", "plain can't be had in SGLang 0.5.12: it is broken there"),
        ("0.5.5", "can't be had in SGLang 0.5.5: it does not exist there"),
    ],
)
def test_a_release_without_the_profile_is_refused(version: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        choose(PLAIN, version, {})


@pytest.mark.parametrize("version", ["unknown", "0.0.0.dev0", "", "git"])
def test_no_number_breaks_a_profile_that_is_told_apart_by_version_alone(version: str) -> None:
    choice = choose(PLAIN, version, {})
    assert (choice.variant.arguments, choice.certain) == ({"--way": "new"}, False)


def test_what_is_looked_for_is_asked_once() -> None:
    assert signs([PROFILE, PROFILE, PLAIN]) == [SIGN]
