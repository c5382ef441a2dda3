"""How pages look: YAML as it is, so that it can be kept as a file; a page of Markdown without its marks, for a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from orchestrator.cli.blocks import Block, Line, Table, wrapped
from orchestrator.reference.pages import Kind, Topic

_HEADINGS: dict[Kind, str] = {
    "section": "sections of the configuration",
    "failure": "classes of failure",
    "page": "pages",
}
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def list_blocks(topics: Sequence[Topic]) -> list[Block]:
    """Every topic with what it is about."""
    blocks: list[Block] = []
    for kind, heading in _HEADINGS.items():
        rows = [(topic.name, topic.title) for topic in topics if topic.kind == kind]
        if rows:
            blocks += [Table([f"{heading}", ""], rows), Line()]
    return [*blocks, Line("fab docs NAME shows one; it also knows the keys of the sections", "quiet")]


def topic_blocks(topics: Iterable[Topic], width: int) -> list[Block]:
    """The topics one below the other, text in lines of at most `width`."""
    blocks: list[Block] = []
    for topic in topics:
        blocks += [Line()] if blocks else []
        blocks += _example(topic.text) if topic.kind == "section" else page_blocks(topic.text, width)
    return blocks


def _example(text: str) -> list[Block]:
    return [Line(line, "" if line.lstrip().startswith("#") else "strong", whole=True) for line in text.splitlines()]


def page_blocks(text: str, width: int) -> list[Block]:
    """Headings by their tone, paragraphs and items in lines of at most `width`, code as it is."""
    blocks: list[Block] = []
    in_code = False
    for line in text.splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif in_code:
            blocks.append(Line(f"    {line}", whole=True))
        elif line.startswith("#"):
            blocks.append(Line(line.lstrip("# "), "strong"))
        else:
            hang = 2 if line.startswith("- ") else 0
            blocks += [Line(part, whole=True) for part in wrapped(_LINK.sub(r"\1", line), width, hang)]
    return blocks
