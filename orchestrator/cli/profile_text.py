"""The screen of a profile. Pure."""

from __future__ import annotations

from orchestrator.cli.blocks import Block, Line, Table, indented, verdict_blocks
from orchestrator.results.account_rows import CLASS_COLUMNS, about, class_rows, profile_remarks
from orchestrator.results.profile import Profiled, RankProfile


def profile_blocks(service: str, place: str, found: Profiled) -> list[Block]:
    """The middle step of the first rank in full, the other ranks in a line each, and what speaks against it."""
    blocks: list[Block] = [Line(f"a decode step of {service} in {place}", "strong")]
    for rank in found.ranks[:1]:
        blocks += [Line(f"  {about(rank, found.report.batch_size)}"), Line(), step_table(rank)]
    return [*blocks, *indented(profile_remarks(found), "quiet"), *verdict_blocks(found.doubts)]


def step_table(rank: RankProfile) -> Table:
    """Kernel time by class; the last row is the whole step."""
    rows = class_rows(rank)
    return Table(list(CLASS_COLUMNS), rows, right=frozenset(CLASS_COLUMNS[1:4]), tones=((len(rows) - 1, "strong"),))
