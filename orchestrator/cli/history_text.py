"""The screen of the list of runs. Pure."""

from __future__ import annotations

from orchestrator.cli.blocks import Block, Line, Table, Tone, indented
from orchestrator.flows.history import Listing
from orchestrator.results.history import Entry
from orchestrator.results.run_names import FIRST_RUN, MAKES_A_RUN

_COLUMNS = ("run", "ago", "verb", "of", "backend", "ended", "dark", "ms a token")
_NUMBERS = frozenset({"ago", "dark", "ms a token"})


def history_blocks(listing: Listing, now: float) -> list[Block]:
    """A line a run, newest first, then the folders that can't be read."""
    entries = listing.history.entries
    blocks: list[Block] = [Line(f"runs in {listing.root}", "quiet", whole=True)]
    if entries:
        rows = [_row(entry, listing.short.get(entry.name, entry.name), now) for entry in entries]
        tones = tuple((index, tone) for index, entry in enumerate(entries) if (tone := _tone(entry)))
        blocks.append(Table(list(_COLUMNS), rows, right=_NUMBERS, tones=tones))
        doubted = "; ?: not to be believed" if any(entry.believed is False for entry in entries) else ""
        blocks.append(Line(f"  fab show RUN has all of one; exit codes are in brackets{doubted}", "quiet"))
    else:
        blocks += _without_entries(listing)
    if listing.history.unreadable:
        problems = [f"{name}: {problem}" for name, problem in listing.history.unreadable]
        blocks += [Line("can't be read, or only in part:", "warn"), *indented(problems, "warn")]
    return blocks


def _without_entries(listing: Listing) -> list[Block]:
    if listing.short:
        return [Line("no such run"), Line("next: fab history, without the flags that choose", whole=True)]
    return [Line("there are none yet"), *indented([MAKES_A_RUN]), Line(f"next: {FIRST_RUN}", whole=True)]


def _row(entry: Entry, short: str, now: float) -> list[str]:
    place = f"{entry.service} in {entry.place}" if entry.service else entry.place or ""
    return [
        short,
        _short(max(0.0, now - entry.started)),
        entry.verb,
        place,
        entry.backend or "",
        entry.ended if entry.exit_code is None else f"{entry.ended} ({entry.exit_code})",
        "" if entry.dark_seconds is None else f"{entry.dark_seconds:.1f}s",
        _timing(entry),
    ]


def _short(seconds: float) -> str:
    """``55s``, ``3m``, ``5h``, ``12d``: without a gap, at which a narrow table would break it."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _timing(entry: Entry) -> str:
    """Of batch size 1, after that of the server before it where there was one."""
    parts = [f"{seconds * 1000:.2f}" for seconds in (entry.token_seconds_before, entry.token_seconds) if seconds is not None]
    text = "->".join(parts)
    return f"{text} ?" if text and entry.believed is False else text


def _tone(entry: Entry) -> Tone:
    if entry.exit_code is None or entry.exit_code in (6, 8, 9):
        return "warn"
    return "bad" if entry.exit_code else ""
