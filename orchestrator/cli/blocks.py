"""What is shown, apart from how: lines and tables, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "warn", "bad", "quiet", "strong"]


@dataclass(frozen=True)
class Line:
    """One line of text; an empty one separates."""

    text: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """Rows under headings. `right` names the columns of numbers; `tones` holds a tone for some rows, by index."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
    tones: tuple[tuple[int, Tone], ...] = ()

    def tone(self, row: int) -> Tone:
        return dict(self.tones).get(row, "")


Block = Line | Table


def indented(lines: Iterable[str], tone: Tone = "") -> list[Block]:
    """Each line moved in under the one before."""
    return [Line(f"    {line}", tone) for line in lines]


def table_lines(table: Table) -> list[str]:
    """A table as aligned text: what a pipe, a file or a log gets. The last column is never padded or cut."""
    cells = [list(table.columns), *[list(row) for row in table.rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    lines = []
    for row in cells:
        padded = [
            text.rjust(width) if heading in table.right else text.ljust(width)
            for text, width, heading in zip(row, widths, table.columns, strict=True)
        ]
        lines.append("  ".join(["", *padded]).rstrip())
    return lines
