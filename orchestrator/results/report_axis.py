"""The axis across a chart of a report: round numbers from zero, as shares of the width. Pure.

Shares, not pixels: a chart fits any screen with its text as large as ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.results.markup import Markup, joined, percent, tag

HEIGHT = 28
"""Of the numbers below a chart, pixels."""
_PLOT = 0.97
"""Of the width, up to the highest number; the unit stands behind it."""


class Axis:
    """From zero to a round number that is not below `highest`."""

    def __init__(self, highest: float, unit: str) -> None:
        self.numbers = ticks(highest)
        self._unit = unit

    def across(self, value: float) -> str:
        """Where a value lies, or how long it is."""
        return percent(value / self.numbers[-1] * _PLOT)

    def drawn(self, height: float) -> Markup:
        """Lines over the chart's whole height, with the numbers below it."""
        *inner, last = self.numbers
        lines = [tag("line", x1=at, x2=at, y1=0, y2=height, class_="grid") for at in map(self.across, self.numbers)]
        first, *others = [self._number(f"{value:g}", value, height, "middle" if value else "start") for value in inner]
        end = tag("text", f"{last:g} {self._unit}", x="100%", y=height + 18, text_anchor="end", class_="tick")
        return joined([*lines, first, *others, end])

    def _number(self, text: str, value: float, height: float, anchor: str) -> Markup:
        return tag("text", text, x=self.across(value), y=height + 18, text_anchor=anchor, class_="tick")


def ticks(highest: float, most: int = 5) -> Sequence[float]:
    """Round numbers from zero, at most `most` steps, the last one not below `highest`."""
    if highest <= 0:
        return (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10(highest / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if highest / (power * factor) <= most)
    return tuple(step * index for index in range(math.ceil(highest / step) + 1))
