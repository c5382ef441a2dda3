"""compare: two sides of kept decode timings. Nothing is connected to."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import InvalidTimingError, UsageError
from orchestrator.flows.measure import reasons
from orchestrator.results.comparison import Comparison, compare_sides
from orchestrator.results.measurements import Measurement


def compare(first: Sequence[Measurement], second: Sequence[Measurement], *, invalid: bool = False) -> Comparison:
    """Compare them.

    Args:
        invalid: whether timings that are not to be believed are compared too.

    Raises:
        InvalidTimingError: there are such, and nobody said that they should be.
        UsageError: no batch size was timed on both sides.
    """
    doubted = doubts([*first, *second])
    if doubted and not invalid:
        raise InvalidTimingError(
            "some of these timings are not to be believed",
            evidence=doubted,
            next_step="measure again, or --invalid to compare them all the same",
        )
    try:
        return compare_sides(first, second)
    except ValueError as error:
        raise UsageError(str(error), next_step="fab measure --batch, with the sizes of the other side") from error


def doubts(timings: Sequence[Measurement]) -> list[str]:
    """What speaks against each, a line each."""
    return [f"{item.label}: {reason}" for item in timings for reason in reasons(item.report.invalid)]
