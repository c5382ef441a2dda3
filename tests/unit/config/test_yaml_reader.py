"""What is read as what: plain values mean the same to every reader of YAML, or are refused (test_mistakes.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.yaml_reader import Document, read_bytes


def _read(text: str) -> Document:
    return read_bytes(text.encode(), Document("test.yml", Path()))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-12", -12),
        ("0.85", 0.85),
        ("-1.50", -1.5),
        ("192.0.2.1", "192.0.2.1"),
        ("0.5.10.post1", "0.5.10.post1"),
        ("fe80::1", "fe80::1"),
        ("'off'", "off"),
        ('"22:22"', "22:22"),
        ('"0755"', "0755"),
        ("'1e-3'", "1e-3"),
        ('""', ""),
        ("~/key", "~/key"),
        ("a\n  b", "a b"),
        ("{a: [1, two]}", {"a": [1, "two"]}),
    ],
)
def test_values(text: str, value: object) -> None:
    document = _read(f"key: {text}\n")
    assert document.mistakes == []
    assert document.data == {"key": value}
    assert type(document.data["key"]) is type(value)


def test_lines_are_those_of_keys_and_items() -> None:
    document = _read("# comment\na:\n  b: |\n    text\n    text\n  c:\n    - 1\n    - 2\n")
    assert document.lines == {(): 2, ("a",): 2, ("a", "b"): 3, ("a", "c"): 6, ("a", "c", 0): 7, ("a", "c", 1): 8}
    assert document.line(("a", "c", 1, "deeper")) == 8


def test_byte_order_mark_and_windows_line_ends() -> None:
    document = read_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n", Document("test.yml"))
    assert (document.data, document.lines["b",]) == ({"a": 1, "b": "x"}, 2)
