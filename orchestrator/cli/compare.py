"""compare: two sides of kept decode timings."""

from __future__ import annotations

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
    from orchestrator.cli.documents.comparing import Compared
    from orchestrator.flows.compare import compare as run
    from orchestrator.flows.compare import doubts
    from orchestrator.results.measurements import load_side

    sides = load_side(first), load_side(second)
    compared = run(*sides, invalid=invalid)
    doubted = doubts([*sides[0], *sides[1]])
    call.screen.show(comparison_blocks(*sides, compared, doubted))
    labels = [[item.label for item in side] for side in sides]
    differing, batches, remarks = list(compared.differing), list(compared.batches), list(compared.remarks)
    call.answer(Compared(labels[0], labels[1], doubted, differing, batches, remarks))
    return 0
