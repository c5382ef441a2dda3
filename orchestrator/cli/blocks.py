"""What is shown, apart from how: lines and tables, as data."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

Tone = Literal["", "good", "warn", "bad", "quiet", "strong"]


@dataclass(frozen=True)
class Line:
    """One line of text; an empty one separates. A `whole` one (a command, to be copied) is never wrapped.

    `aside` ends it, in a quiet tone: where something was read.
    """

    text: str = ""
    tone: Tone = ""
    whole: bool = False
    aside: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under headings. `right` names the columns of numbers; `tones` holds a tone for some rows, by index.

    `notes` are shown below the rows, one each, over the columns' whole width; an empty one is not shown.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
    tones: tuple[tuple[int, Tone], ...] = ()
    notes: Sequence[str] = ()

    def tone(self, row: int) -> Tone:
        return dict(self.tones).get(row, "")


Block = Line | Table


def indented(lines: Iterable[str], tone: Tone = "", *, whole: bool = False) -> list[Block]:
    """Each line moved in under the one before."""
    return [Line(f"    {line}", tone, whole) for line in lines]


def verdict_blocks(doubts: Sequence[str]) -> list[Block]:
    """Whether a result is to be believed: what speaks against it, or that nothing does."""
    if not doubts:
        return [Line(), Line("nothing speaks against it", "good")]
    return [Line(), Line("not to be believed:", "bad"), *indented(doubts, "bad")]


def wrapped(text: str, width: int, hang: int = 4) -> list[str]:
    """`text` in lines of at most `width`, later ones indented by `hang` more than it.

    A word that is longer than a line, such as a path, stays where it is: nothing would be won by moving it.
    """
    indentation = len(text) - len(text.lstrip()) + hang
    lines = [""]
    for word in re.findall(r"\s*\S+", text):
        fits = len(lines[-1]) + len(word) <= width
        if fits or not lines[-1] or indentation + len(word.lstrip()) > width:
            lines[-1] += word
        else:
            lines.append(" " * indentation + word.lstrip())
    return lines


def part_aside(lines: Sequence[str], aside: str) -> list[tuple[str, str]]:
    """Each of a text's lines in two: what is the text's own, and what belongs to the `aside` that ends it, however both were wrapped."""
    left = len("".join(aside.split()))
    parted: list[tuple[str, str]] = []
    for line in reversed(lines):
        cut = len(line)
        while left and cut:
            cut -= 1
            left -= not line[cut].isspace()
        parted.insert(0, (line[:cut], line[cut:]))
    return parted


def table_lines(table: Table, width: int | None = None) -> list[str]:
    """A table as aligned text: what a pipe, a file or a log gets. Nothing is cut; the last column is never padded."""
    heading, *rows = table_rows(table, width)
    return [*heading, *(line for row in rows for line in row)]


def table_rows(table: Table, width: int | None = None) -> list[list[str]]:
    """The lines of the headings and of each row. Where the table is wider than `width`, cells of wide columns are wrapped."""
    cells = [list(table.columns), *[list(row) for row in table.rows]]
    right = [heading in table.right for heading in table.columns]
    widths = _column_widths(cells, width, right)
    rows = [_row_lines(row, widths, right) for row in cells]
    for index, lines in enumerate(rows[1:]):
        lines += note_lines(table, index, width)
    return rows


def note_lines(table: Table, row: int, width: int | None = None) -> list[str]:
    """What stands below a row."""
    if not 0 <= row < len(table.notes) or not table.notes[row]:
        return []
    note = f"      {table.notes[row]}"
    return [note] if width is None else wrapped(note, width, hang=2)


def _column_widths(cells: Sequence[Sequence[str]], width: int | None, right: Sequence[bool]) -> list[int]:
    """As wide as each column needs; where that is too much, columns of text are narrowed, and of those of numbers the headings."""
    widths = [max(len(row[index]) for row in cells) for index in range(len(cells[0]))]
    words = [max((len(word) for row in cells for word in row[index].split()), default=0) for index in range(len(widths))]
    least = [
        longest if number else min(wide, max(longest, _LEAST_COLUMN), _LONGEST_WORD)
        for wide, longest, number in zip(widths, words, right, strict=True)
    ]
    while width is not None and sum(widths) + 2 * len(widths) > width:
        shrinkable = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda index: widths[index])] -= 1
    return widths


_LEAST_COLUMN = 10
_LONGEST_WORD = 32
"""What is never broken in a table's cell; of a longer word, such as a path, a table would get too wide."""


def _row_lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    columns = [
        [text] if len(text) <= wide else textwrap.wrap(text, wide, break_on_hyphens=False) for text, wide in zip(row, widths, strict=True)
    ]
    lines = []
    for parts in zip_longest(*columns, fillvalue=""):
        padded = [part.rjust(wide) if to_right else part.ljust(wide) for part, wide, to_right in zip(parts, widths, right, strict=True)]
        lines.append("  ".join(["", *padded]).rstrip())
    return lines
