"""HTML and SVG as text, escaped unless it was made here."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is markup already. Any other text is escaped where it becomes part of some."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: str | float | None) -> Markup:
    """An element.

    Args:
        content: markup, or text that will be escaped.
        attributes: ``class_`` stands for ``class``, ``text_anchor`` for ``text-anchor``; None leaves one out.
    """
    given = "".join(f' {_attribute(key)}="{html.escape(_value(value))}"' for key, value in attributes.items() if value is not None)
    return Markup(f"<{name}{given}>{joined(content)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Several parts as one."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part, quote=False) for part in parts))


def percent(share: float) -> str:
    """A length of the element around, for an attribute."""
    return f"{share * 100:.3f}%"


def _attribute(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
