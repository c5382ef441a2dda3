"""The answer of completion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Completion:
    """What makes a shell complete command lines: `script` is what the shell has to read."""

    shell: str
    script: str
