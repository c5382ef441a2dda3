"""Mistakes in the inventory as lines for the screen: ``file:line: path: what is wrong and what is allowed``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]

MAX_SHOWN = 60


@dataclass(frozen=True)
class Mistake:
    """One mistake. `line` counts from 1; the empty `path` is the file as a whole."""

    file: str
    line: int
    path: KeyPath
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {rendered(self.path)}: {self.message}"


def rendered(path: KeyPath) -> str:
    """``hosts.gpu1.identity_files[0]``; the empty path is ``(file)``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part)}"
    return text.removeprefix(".") or "(file)"


def quoted(text: str) -> str:
    """`text` in quotes, short and on one line."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def printable(text: str) -> str:
    """`text` itself where it can stand on a line, else in quotes."""
    return text if text.isprintable() and text and len(text) <= MAX_SHOWN else quoted(text)


def did_you_mean(name: str, allowed: list[str]) -> str:
    """``did you mean 'port'?`` with the allowed names, or those alone."""
    close = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed) or 'nothing'}"
