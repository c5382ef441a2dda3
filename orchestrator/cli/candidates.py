"""What could be typed next: from the words of an unfinished command line to candidates. Pure, but for the names that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.cli.candidate_values import Answer, Asked, Candidate, Flag, Verb, values
from orchestrator.cli.names import Names


@dataclass(frozen=True)
class Grammar:
    """What the program takes: its own flags, its verbs each with a word on it, and the flags of a verb by its name."""

    flags: Sequence[Flag]
    verbs: Mapping[str, str]
    describe: Callable[[str], Verb]


@dataclass
class _Line:
    """What the finished words have said."""

    verb: Verb | None = None
    waiting: Flag | None = None
    """The flag whose value comes next."""
    given: dict[str, str] = field(default_factory=dict)
    """Flag -> its value so far, empty for a switch."""
    unfilled: list[Flag] = field(default_factory=list)
    """What the verb takes without a flag and has not got yet."""


def complete(words: Sequence[str], partial: str, grammar: Grammar, names: Names) -> Answer:
    """What could stand in place of `partial`, the word at the cursor.

    Args:
        words: those between the program's name and the cursor.
    """
    line = _read(words, grammar)
    if line.waiting is not None:
        found = _values(line, line.waiting, partial, grammar, names)
        if not (line.waiting.optional and (partial.startswith("-") or not partial)):
            return found
        return Answer([*_fitting(found.candidates, partial), *_flags(line, partial, grammar)], found.files)
    if partial.startswith("--") and "=" in partial:
        return _after_equals(line, partial, grammar, names)
    if partial.startswith("-"):
        return Answer(_flags(line, partial, grammar))
    if line.verb is None:
        return Answer(_fitting([Candidate(name, text) for name, text in grammar.verbs.items()], partial))
    bare = line.unfilled[0] if line.unfilled else _named(line.verb.flags, line.verb.gathers)
    if bare is not None:
        return _values(line, bare, partial, grammar, names)
    return Answer(_flags(line, partial, grammar))


def flag_at(words: Sequence[str], word: str, grammar: Grammar) -> Flag | None:
    """The flag that `word` is, after `words`; None where it is none, or the value of the one before it."""
    line = _read(words, grammar)
    return None if line.waiting is not None else _spelled(line, word, grammar)[0]


def _read(words: Sequence[str], grammar: Grammar) -> _Line:
    """Go through the finished words as the parser would, but take what it would refuse for nothing."""
    line = _Line()
    for word in words:
        flag, equals, value = _spelled(line, word, grammar)
        if line.waiting is not None and (flag is None or not line.waiting.optional):
            _take(line, line.waiting, word)
            line.waiting = None
        elif flag is not None:
            _take(line, flag, value)
            line.waiting = flag if flag.takes_value and not equals else None
        elif line.unfilled:
            _take(line, line.unfilled.pop(0), word)
        elif word in grammar.verbs and not (line.verb is not None and line.verb.gathers_verbs):
            line.verb = grammar.describe(word)
            line.unfilled = [item for item in line.verb.flags if item.positional]
    return line


def _take(line: _Line, flag: Flag, value: str) -> None:
    line.given[flag.name] = value
    line.unfilled = [item for item in line.unfilled if item.name != flag.name]


def _spelled(line: _Line, word: str, grammar: Grammar) -> tuple[Flag | None, bool, str]:
    """The flag that a word is, whether its value is in the word too, and that value."""
    text, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
    known = [*(line.verb.flags if line.verb is not None else ()), *grammar.flags]
    found = next((flag for flag in known if text in flag.spellings), None)
    return found, bool(equals), value


def _after_equals(line: _Line, partial: str, grammar: Grammar, names: Names) -> Answer:
    """Values in the word of their flag: ``--host=gp``."""
    flag, _, value = _spelled(line, partial, grammar)
    if flag is None or not flag.takes_value:
        return Answer()
    found = _values(line, flag, value, grammar, names)
    start = partial[: len(partial) - len(value)]
    return Answer([Candidate(start + item.value, item.help) for item in found.candidates], found.files)


def _values(line: _Line, flag: Flag, partial: str, grammar: Grammar, names: Names) -> Answer:
    answer = values(Asked(line.verb, flag, partial, line.given, grammar.verbs), names)
    return Answer(_fitting(answer.candidates, partial), answer.files)


def _flags(line: _Line, partial: str, grammar: Grammar) -> list[Candidate]:
    """The long flags that were not given yet; where one begins with a single dash, or has no other form, the letters too."""
    known = grammar.flags if line.verb is None else line.verb.flags
    open_flags = [flag for flag in known if flag.several or flag.name not in line.given]
    return _fitting([Candidate(text, flag.help) for flag in open_flags for text in flag.spellings if text.startswith("--")], partial)


def _fitting(candidates: Sequence[Candidate], partial: str) -> list[Candidate]:
    return [item for item in candidates if item.value.startswith(partial)]


def _named(flags: Sequence[Flag], name: str | None) -> Flag | None:
    return next((flag for flag in flags if flag.name == name), None)
