"""The answer of docs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """One thing to read about.

    Attributes:
        kind: ``section`` (of the configuration), ``failure`` (a class of them) or ``page``.
        title: what it is about, in one line.
        text: YAML of a section, else Markdown; null in the list of all topics.
    """

    name: str
    kind: str
    title: str
    text: str | None


@dataclass(frozen=True)
class Topics:
    """What was asked for, or all there is."""

    topics: list[Topic]
