"""The sections of the configuration: which models each is about, and which one a mistake is in.

Each section has a commented example, ``fab docs SECTION``; a test holds the examples to these models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from orchestrator.config.mistakes import KeyPath, Mistake

File = Literal["host", "service", "backend", "tuning", "router", "sweep", "playbook"]
"""The kinds of files, each called by the section that it is about as a whole."""

SECTIONS: tuple[str, ...] = (
    "host",
    "container",
    "service",
    "nodes",
    "policy",
    "expectations",
    "floor",
    "secrets",
    "hooks",
    "webhook",
    "backend",
    "tuning",
    "router",
    "sweep",
    "playbook",
)
"""All of them, in the order in which a newcomer meets them."""

_INSIDE: Mapping[File, tuple[tuple[int, str], ...]] = {
    "host": ((2, "container"), (2, "hooks"), (2, "webhook")),
    "service": ((0, "nodes"), (0, "policy"), (0, "expectations"), (0, "floor"), (0, "secrets"), (0, "hooks"), (0, "webhook")),
}
"""Sections that are a part of a file: how deep the key lies that begins one, and that key, which is also the section's name."""


def section_at(file: File, path: KeyPath) -> str:
    """The section that `path` in such a file belongs to."""
    inside = (key for depth, key in _INSIDE.get(file, ()) if path[depth : depth + 1] == (key,))
    return next(inside, file)


def sections_of(file: File, mistakes: Iterable[Mistake]) -> list[str]:
    """The sections in which there are `mistakes`, each once."""
    return list(dict.fromkeys(section_at(file, mistake.path) for mistake in mistakes))
