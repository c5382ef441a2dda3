"""The answer of compare."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.results.comparison import BatchComparison
from orchestrator.results.differing import Differing


@dataclass(frozen=True)
class Compared:
    """Two sides of kept timings.

    Attributes:
        first, second: the timings of each side, by their names.
        not_believed: what speaks against one of them.
        differing: what else differs between the sides.
    """

    first: list[str]
    second: list[str]
    not_believed: list[str]
    differing: list[Differing]
    batches: list[BatchComparison]
    remarks: list[str]
