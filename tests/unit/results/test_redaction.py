"""Secret values disappear, however they are written."""

from __future__ import annotations

import json

import pytest

from orchestrator.results.redaction import MASK, Redactor


@pytest.mark.parametrize("secret", ["plain", 'with "quotes"', "back\\slash", "it's", "übel", "a"])
def test_a_value_is_hidden_as_it_is_and_as_repr_and_json_write_it(secret: str) -> None:
    redactor = Redactor()
    redactor.add([secret])
    for written in (secret, repr(secret), json.dumps(secret), f"--api-key={secret} --other"):
        assert secret not in redactor.text(written) or secret in MASK
        assert MASK in redactor.text(written)


def test_a_value_that_holds_another_is_hidden_whole() -> None:
    redactor = Redactor()
    redactor.add(["abc", "abcdef"])
    assert redactor.text("abcdef") == MASK


def test_data_is_hidden_in_keys_and_values_at_any_depth() -> None:
    redactor = Redactor()
    redactor.add(["canary"])
    assert "canary" not in json.dumps(redactor.data({"canary": [{"x": ("a canary", 1, None, True)}]}))


def test_an_empty_value_hides_nothing() -> None:
    redactor = Redactor()
    redactor.add([""])
    assert redactor.text("text") == "text"
    assert redactor.data({"a": 1}) == {"a": 1}
