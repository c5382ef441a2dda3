from __future__ import annotations

import random

import pytest

from orchestrator.config.versions import Version, VersionRange

IN_ORDER = [
    "0.5.9",
    "0.5.10.dev3",
    "0.5.10a1.dev2",
    "0.5.10a1",
    "0.5.10b2",
    "0.5.10rc1",
    "0.5.10rc2",
    "0.5.10",
    "0.5.10.post1.dev1",
    "0.5.10.post1",
    "0.5.10.post2",
    "0.5.11",
    "0.6",
    "1.0.0",
]


def test_order() -> None:
    shuffled = random.Random(1).sample(IN_ORDER, len(IN_ORDER))
    assert sorted(shuffled, key=Version.parse) == IN_ORDER


@pytest.mark.parametrize(
    ("one", "other"), [("0.5", "0.5.0"), ("v0.5.1", "0.5.1"), ("0.5.1+g12ab.d2026", "0.5.1"), ("0.5.10-post1", "0.5.10.post1")]
)
def test_equal(one: str, other: str) -> None:
    assert Version.parse(one) == Version.parse(other)


@pytest.mark.parametrize("text", ["", "x", "0.5.x", "0.5.", "0.5.11 beta", "\u0660.\u0665", "0" * 40 + ".1", "1.2.3.4.5.6.7"])
def test_not_a_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version number"):
        Version.parse(text)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=0.5.11", ["0.5.11", "0.5.23", "1.0"], ["0.5.10.post1", "0.5.11rc1", "0.5.9"]),
        (">=0.5.6,<0.5.11", ["0.5.6", "0.5.10.post1"], ["0.5.11", "0.5.5.post3"]),
        ("== 0.5.10", ["0.5.10", "0.5.10.0"], ["0.5.10.post1"]),
        (">0.5.10, <=0.5.12", ["0.5.10.post1", "0.5.12"], ["0.5.10", "0.5.12.post1"]),
        ("!=0.5.12", ["0.5.11"], ["0.5.12"]),
    ],
)
def test_range(text: str, inside: list[str], outside: list[str]) -> None:
    versions = VersionRange.parse(text)
    assert [item for item in inside + outside if Version.parse(item) in versions] == inside
    assert str(versions) == text


@pytest.mark.parametrize("text", ["", "0.5.11", "~=0.5", ">=", ">=0.5.11,", ">=0.5.11 <0.6", "=>0.5"])
def test_not_a_range(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        VersionRange.parse(text)
