"""compare: two sides of kept decode timings."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from orchestrator.cli.edge import Call, verb


@verb(
    flags={
        "first": "A run folder of measure, by path or by its name in RUNS; several launches with commas.",
        "second": "The same for what is compared with it.",
        "invalid": "Compare also what is not to be believed.",
        "json": "Print one JSON document on standard output.",
    },
    positional=("first", "second"),
)
def compare(call: Call, first: str, second: str, invalid: bool = False, json: bool = False) -> int:
    """Say whether the second is faster or slower than the first, by batch size, and what else differs. Exit 9: one can't be believed."""
    from orchestrator.cli.compare_text import comparison_blocks
    from orchestrator.flows.compare import compare as run
    from orchestrator.flows.compare import doubts
    from orchestrator.results.measurements import load_side

    sides = load_side(first), load_side(second)
    compared = run(*sides, invalid=invalid)
    doubted = doubts([*sides[0], *sides[1]])
    call.screen.show(comparison_blocks(*sides, compared, doubted))
    labels = [[item.label for item in side] for side in sides]
    call.document(first=labels[0], second=labels[1], not_believed=doubted, **finite(dataclasses.asdict(compared)), exit_code=0)
    return 0


def finite(value: Any) -> Any:
    """JSON has no infinity: what is unbounded is null."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value
