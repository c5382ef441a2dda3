"""YAML without its traps: what one reader takes for text and another for a number or a boolean is a mistake here.

Only mappings, lists, quoted and plain text, whole numbers, decimal numbers and true/false are read. What YAML 1.1 (PyYAML,
Ansible) and YAML 1.2 read differently (``off``, ``22:22``, ``0755``, ``1e-3``, ``2024-01-01``), anchors, aliases, merge keys,
tags and empty values are refused, with the line. Works on the parser's events, so that neither deep nesting nor an
alias bomb is ever built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config.mistakes import KeyPath, Mistake, quoted

MAX_BYTES = 1 << 20
MAX_DEPTH = 20

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,18}")
_AMBIGUOUS = [
    (
        re.compile(r"(true|false|yes|no|on|off|y|n)", re.IGNORECASE),
        "some YAML readers take it for true or false: write true or false; quote it only if text is meant",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-9]{1,2})+(\.[0-9_]*)?"),
        "some YAML readers take it for a number in base 60: quote it if text is meant, or write a plain number",
    ),
    (re.compile(r"[-+]?0[0-9_]+"), "some YAML readers take it for an octal number: drop the leading zero; quote it only if text is meant"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"), "some YAML readers take it for a date: quote it if text is meant"),
    (
        re.compile(r"[-+]?(0[xX][0-9A-Fa-f_]+|0[oO][0-7_]+|0[bB][01_]+)"),
        "some YAML readers take it for a number: write it in decimal; quote it only if text is meant",
    ),
    (
        re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"),
        "YAML readers differ on whether it is a number: write a plain number such as 12, -1 or 0.001; quote it only if text is meant",
    ),
    (
        re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE),
        "not a number that is allowed here: write a finite one; quote it only if text is meant",
    ),
    (re.compile(r"=|<<"), "has a meaning of its own in YAML: quote it"),
]
_EMPTY = ("", "~", "null", "Null", "NULL")
_INDENTATION_PROBLEMS = ("did not find expected key", "expected <block end>, but found '<block mapping start>'")
"""libyaml's words, and PyYAML's own, for a line that begins in a column where none was expected."""


@dataclass
class Document:
    """One file as read.

    Attributes:
        file: its path as it is shown.
        directory: the inventory's folder, from which relative paths count.
        data: what could be read, with None at the paths in `unread`, about which all has been said.
        lines: the line of each key and list item, and of the whole under the empty path. A key that can't be used stands in paths as ``?``.
    """

    file: str
    directory: Path = Path()
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    unread: set[KeyPath] = field(default_factory=set)

    def line(self, path: KeyPath) -> int:
        """The line of `path`, or of the nearest key above it that exists."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def report(self, path: KeyPath, message: str, line: int | None = None) -> None:
        self.mistakes.append(Mistake(self.file, self.line(path) if line is None else line, path, message))


def read_file(path: Path, directory: Path) -> Document:
    """Read a file of the inventory `directory`; a missing, unreadable or broken one is a mistake in the document, never an exception."""
    document = Document(str(path), directory)
    if path.exists() and not path.is_file():
        document.report((), "is not a file")
        return document
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        document.report((), "no such file")
        return document
    except OSError as error:
        document.report((), f"can't be read: {error.strerror}")
        return document
    return read_bytes(content, document)


def read_bytes(content: bytes, document: Document) -> Document:
    """Read `content` into `document`."""
    if len(content) > MAX_BYTES:
        document.report((), f"larger than {MAX_BYTES >> 20} MiB")
        return document
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        document.report((), "is not UTF-8 text", line=content.count(b"\n", 0, error.start) + 1)
        return document
    try:
        _Reader(text, document).read()
    except yaml.YAMLError as error:
        line = _problem_line(error, text)
        document.report((), f"is not YAML: {_problem(error, text.splitlines()[line - 1 : line])}", line=line)
        document.data = None
    except _TooDeepError as error:
        document.report((), f"nested deeper than {MAX_DEPTH} levels", line=error.line)
        document.data = None
    return document


class _TooDeepError(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Reader:
    """Builds plain values from the parser's events, noting lines and mistakes in the document."""

    def __init__(self, text: str, document: Document) -> None:
        self.document = document
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)

    def read(self) -> None:
        next(self.events)
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            self.document.report((), "is empty")
            return
        event = next(self.events)
        self.document.lines[()] = _line(event)
        self.document.data = self._value(event, (), 0)
        next(self.events)
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            self.document.report((), "holds a second document: one file, one document", line=_line(event))

    def _value(self, event: Any, path: KeyPath, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _TooDeepError(_line(event))
        if isinstance(event, yaml.AliasEvent):
            return self._unread(event, path, f"*{event.anchor}: aliases are not used here: write the value out")
        if event.anchor is not None:
            self._mistaken(event, path, f"&{event.anchor}: anchors are not used here: write the value out where it is needed")
        if event.tag is not None:
            self._mistaken(event, path, "tags (!...) are not used here: quote the value to have it read as text")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path, depth)
        return self._scalar(event, path)

    def _mapping(self, path: KeyPath, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._key(event, path, depth)
            if key is None:
                self._value(next(self.events), (*path, "?"), depth + 1)
                continue
            if key in mapping:
                self._mistaken(event, (*path, key), f"given twice; the first is on line {first_lines[key]}")
            first_lines.setdefault(key, _line(event))
            self.document.lines.setdefault((*path, key), _line(event))
            value = self._value(next(self.events), (*path, key), depth + 1)
            mapping.setdefault(key, value)
        return mapping

    def _key(self, event: Any, path: KeyPath, depth: int) -> str | None:
        """The key, or None for one that can't be used (its mistake noted)."""
        where = (*path, "?")
        if not isinstance(event, yaml.ScalarEvent):
            self._unread(event, where, "a key must be text")
            self._value(event, where, depth + 1)
            return None
        if event.implicit[0] and event.value == "<<":
            self._unread(event, where, "<<: merge keys are not used here: write the keys out")
            return None
        mistakes = len(self.document.mistakes)
        key = self._value(event, where, depth + 1)
        if len(self.document.mistakes) > mistakes:
            return None
        if not isinstance(key, str):
            self._unread(event, where, f"a key must be text: quote {event.value}")
            return None
        return key

    def _sequence(self, path: KeyPath, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            where = (*path, len(items))
            self.document.lines.setdefault(where, _line(event))
            items.append(self._value(event, where, depth + 1))
        return items

    def _scalar(self, event: Any, path: KeyPath) -> Any:
        text = event.value
        if not event.implicit[0]:
            return text
        if text in ("true", "false"):
            return text == "true"
        if _INTEGER.fullmatch(text):
            return int(text)
        if _DECIMAL.fullmatch(text):
            return float(text)
        if text in _EMPTY:
            return self._unread(event, path, 'no value: give one (an empty text is ""), or remove the key')
        for pattern, advice in _AMBIGUOUS:
            if pattern.fullmatch(text):
                return self._unread(event, path, f"{self._shown(text, path)}: {advice}")
        return text

    def _shown(self, text: str, path: KeyPath) -> str:
        return "the value" if "secrets" in path else quoted(text)

    def _mistaken(self, event: Any, path: KeyPath, message: str) -> None:
        self.document.report(path, message, line=_line(event))

    def _unread(self, event: Any, path: KeyPath, message: str) -> None:
        self._mistaken(event, path, message)
        self.document.unread.add(path)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _problem(error: yaml.YAMLError, line: Sequence[str] = ()) -> str:
    """What the parser says, in plain words where it is an old acquaintance; without the text around it, which may be a secret."""
    if isinstance(error, yaml.MarkedYAMLError):
        said = ", ".join(part for part in (error.context, error.problem) if part) or "syntax error"
        if any("\t" in text[: len(text) - len(text.lstrip())] for text in line) or "'\\t'" in said:
            return "a tab indents this line: use spaces"
        if error.problem in _INDENTATION_PROBLEMS:
            return f"this line is indented unlike its neighbours, or the one before is unfinished ({error.problem})"
        return said
    return str(getattr(error, "reason", "syntax error"))


def _problem_line(error: yaml.YAMLError, text: str) -> int:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return 1 if mark is None else int(mark.line) + 1
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position if isinstance(position, int) else 0) + 1
