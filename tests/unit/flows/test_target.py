"""A next step from the box names the host that the operator knows it by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.flows.target import Target


@pytest.mark.parametrize(
    ("from_the_box", "shown"),
    [
        (None, None),
        ("ss -ltnp", "ss -ltnp"),
        ("fab status", "fab status --host gpu1 --service glm5"),
        ("fab status, then fab logs", "fab status --host gpu1 --service glm5, then fab logs --host gpu1 --service glm5"),
        ("fab logs --host gpu2", "fab logs --host gpu2"),
        ("fab logs --launch l1   # why", "fab logs --host gpu1 --service glm5 --launch l1   # why"),
        ("`fab backends` lists them", "`fab backends` lists them"),
    ],
)
def test_commands_from_the_box_get_their_host(from_the_box: str | None, shown: str | None) -> None:
    named = SimpleNamespace
    target = Target(cast(Any, None), cast(Any, named(name="gpu1")), cast(Any, named(name="glm5")))
    assert target.named(from_the_box) == shown
