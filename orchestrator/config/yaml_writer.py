"""YAML for people, in the few forms that the inventory's files have, line by line: comments stand beside what they explain."""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:+@%=,-]*")
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
"""Four numbers are text for every reader of YAML."""
_WORDS = re.compile(r"(?i)true|false|yes|no|on|off|null|y|n|~|[-+.0-9][-+.0-9_:eExXoO]*")
_COMMENT_COLUMN = 36


def commented_line(key: str, value: object, comment: str, indentation: int = 0) -> str:
    """``key: value   # comment``."""
    return f"{' ' * indentation}{f'{key}: {yaml_value(value)}':<{_COMMENT_COLUMN}} {comment_line(comment)}"


def comment_line(text: str) -> str:
    """A comment that is one line for every reader of YAML, whatever a machine calls itself (U+0085 and U+2028 end a line too)."""
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in text)


def yaml_value(value: object) -> str:
    """A value on one line; text is quoted where some reader of YAML would take it for something else."""
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_in_list, value))}]"
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    if _ADDRESS.fullmatch(text):
        return True
    return _PLAIN.fullmatch(text) is not None and _WORDS.fullmatch(text) is None and not text.endswith(":")


def _in_list(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """Double-quoted YAML, whose escapes are not quite JSON's: a character beyond 16 bits is one escape."""
    return '"' + "".join(_escaped(letter) for letter in text) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"
