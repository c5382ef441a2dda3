"""The printed table of a campaign, and the copy of it that docs/faults.md keeps: one part a marker, so that a part can be run by itself."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.cases import Row

_MARK = "<!-- part: {part} -->"
_END = "<!-- end -->"
_JOURNAL_WIDTH = 700


def lines_of(rows: Sequence[Row]) -> list[str]:
    """One line a case, for the terminal."""
    return [line_of(row) for row in rows]


def line_of(row: Row) -> str:
    """One case; of a wrong one its journal too, which the next case's box has no more."""
    ending = row.ending
    dark = f"{ending.dark:.1f} s dark" if ending.dark is not None else ""
    code = "" if ending.exit_code is None else f"exit {ending.exit_code}"
    text = (
        f"{'ok  ' if row.good else 'BAD '} {row.seconds:5.1f} s  {ending.state:10} {code:7} {ending.category:24} {dark:12} {row.case.name}"
    )
    journal = [] if row.good else [f"journal: {line[:_JOURNAL_WIDTH]}" for line in ending.journal]
    return "\n       ".join([text, *row.problems, *journal])


def grouped(rows: Sequence[Row], key: Callable[[Row], str], heading: str) -> list[str]:
    """A table of counts: one line a group."""
    lines = [f"| {heading} | cases | ended as | went on from the journal | longest dark time | wrong |", "|---|---|---|---|---|---|"]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    for name, members in groups.items():
        states = Counter(row.ending.state for row in members)
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        dark = max((row.ending.dark for row in members if row.ending.dark is not None), default=None)
        resumed = sum(row.ending.resumed > 0 for row in members)
        wrong = sum(not row.good for row in members)
        lines.append(f"| {name} | {len(members)} | {told} | {resumed} | {'-' if dark is None else f'{dark:.1f} s'} | {wrong} |")
    return lines


def listed(rows: Sequence[Row]) -> list[str]:
    """A table of cases: one line each."""
    lines = ["| fault | how it is produced | final state | class | exit code | dark time | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        ending = row.ending
        dark = "-" if ending.dark is None else f"{ending.dark:.1f} s"
        code = "-" if ending.exit_code is None else str(ending.exit_code)
        good = "" if row.good else "WRONG: " + "; ".join(problem.splitlines()[-1] for problem in row.problems).replace("|", "/")
        lines.append(f"| {row.case.name} | {row.case.how} | {ending.state} | {ending.category or '-'} | {code} | {dark} | {good} |")
    return lines


def merged(path: Path, part: str, rows: Sequence[Row]) -> list[str]:
    """The part's table as it is kept, with these cases run anew."""
    section = path.read_text(encoding="utf-8").partition(_MARK.format(part=part))[2].partition(_END)[0]
    kept = {_name(line): line for line in section.splitlines() if line.startswith("| ")}
    fresh = listed(rows)
    kept.update({_name(line): line for line in fresh if line.startswith("| ")})
    heading = kept.pop(_name(fresh[0]), fresh[0])
    wrong = sum("| WRONG: " in line for line in kept.values())
    told = f"{len(kept)} cases, {len(kept) - wrong} as expected, {wrong} not. Not all of them were run in one go."
    return [told, "", heading, fresh[1], *kept.values()]


def _name(line: str) -> str:
    return line.split(" | ")[0]


def summary(rows: Sequence[Row]) -> str:
    wrong = sum(not row.good for row in rows)
    dark = [row.ending.dark for row in rows if row.ending.dark is not None]
    told = f", dark time {statistics.median(dark):.1f} s in the median" if dark else ""
    return f"{len(rows)} cases, {len(rows) - wrong} as expected, {wrong} not{told}."


def put(path: Path, part: str, lines: Sequence[str]) -> None:
    """Replace what a file has between a part's marker and the next end.

    Raises:
        ValueError: the file has no such marker.
    """
    text = path.read_text(encoding="utf-8")
    mark = _MARK.format(part=part)
    head, found, rest = text.partition(mark)
    if not found:
        raise ValueError(f"{path} has no {mark}")
    tail = rest[rest.index(_END) :]
    path.write_text("\n".join([head + mark, "", *lines, "", tail]), encoding="utf-8")
