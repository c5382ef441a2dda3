"""The decode chart: time per output token by backend and batch size, as SVG. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from orchestrator.results.markup import Markup, tag
from orchestrator.results.report_axis import HEIGHT, Axis
from orchestrator.results.report_data import Bar, BatchBars, Mark

COLOURS = 6
"""How many colours of backends there are in report.css; a seventh backend has the first one's."""
_HEADING, _LABEL, _TEXT, _LINE, _MARGIN, _GAP = 30, 22, 16, 14, 3, 14
"""Heights, pixels."""
_NAME_LINE = 34
"""Letters that have room on the narrowest phone."""
_LONG_NAME = 24
"""Letters of a name beside which a value has no room on a phone."""


def decode_chart(batches: Sequence[BatchBars], backends: Sequence[str], identifier: str) -> Markup:
    """All batch sizes on one axis from zero: a bar to the median, and each timing with its interval on it.

    Args:
        backends: in the order of their colours.
        identifier: unique in the page.
    """
    marks = [mark for batch in batches for bar in batch.bars for mark in bar.marks]
    axis = Axis(max((mark.high * 1000 for mark in marks), default=1.0), "ms")
    top = 0.0
    parts: list[Markup] = []
    for batch in batches:
        parts.append(tag("text", f"batch {batch.batch_size}", x=0, y=top + 20, class_="heading"))
        top += _HEADING
        for bar in batch.bars:
            drawn, height = _bar(bar, backends.index(bar.backend) % COLOURS, axis, top, identifier)
            parts.append(drawn)
            top += height + _GAP
    described = tag("desc", _description(batches), id=f"{identifier}-desc")
    name = tag("title", "Time per output token by backend and batch size", id=f"{identifier}-title")
    return tag(
        "svg",
        name,
        described,
        tag("defs", *[_hatch(number, identifier) for number in range(COLOURS)]),
        axis.drawn(top),
        *parts,
        role="img",
        aria_labelledby=f"{identifier}-title {identifier}-desc",
        class_="decode",
        width="100%",
        height=top + HEIGHT,
    )


def _bar(bar: Bar, colour: int, axis: Axis, top: float, identifier: str) -> tuple[Markup, float]:
    """One backend, and how high it is. A value has its own line below a name that leaves it no room on a phone."""
    names = _name_lines(bar.backend)
    below = len(bar.backend) > _LONG_NAME
    value = f"{bar.median * 1000:.2f} ms, {1 / bar.median:.1f} tok/s" + ("" if bar.believed else ", not to be believed")
    beside = {"x": "0", "text_anchor": "start"} if below else {"x": "100%", "text_anchor": "end"}
    lines = [tag("text", name, x=0, y=top + 13 + _TEXT * number, class_="name") for number, name in enumerate(names)]
    told = tag("text", value, y=top + 13 + (_TEXT * len(names) if below else 0), class_="value", **beside)
    start = top + _LABEL + _TEXT * (len(names) - 1 + below)
    thick = _LINE * len(bar.marks) + 2 * _MARGIN
    drawn = tag(
        "rect",
        x=0,
        y=start,
        width=axis.across(bar.median * 1000),
        height=thick,
        rx=3,
        class_=f"bar s{colour}" if bar.believed else f"bar doubted s{colour}",
        style=None if bar.believed else f"fill:url(#{identifier}-hatch{colour})",
    )
    marks = [_mark(mark, axis, start + _MARGIN + _LINE * (index + 0.5)) for index, mark in enumerate(bar.marks)]
    return tag("g", *lines, told, drawn, *marks), start + thick - top


def _name_lines(backend: str) -> list[str]:
    """A profile's name, with its overlays on further lines where one is too short on a phone."""
    if len(backend) <= _NAME_LINE:
        return [backend]
    return [line.replace(" ", "") for line in textwrap.wrap(backend.replace("+", "+ "), _NAME_LINE, break_on_hyphens=False)]


def _mark(mark: Mark, axis: Axis, middle: float) -> Markup:
    """A dot at the median and a line over the interval, under both a wider one of the background, so that they show on any colour."""
    low, at, high = (axis.across(value * 1000) for value in (mark.low, mark.median, mark.high))
    ends = [tag("line", x1=end, x2=end, y1=middle - 4, y2=middle + 4, class_="whisker") for end in (low, high)]
    return tag(
        "g",
        tag("title", mark_words(mark)),
        tag("line", x1=low, x2=high, y1=middle, y2=middle, class_="halo"),
        tag("circle", cx=at, cy=middle, r=5.5, class_="halo-dot"),
        tag("line", x1=low, x2=high, y1=middle, y2=middle, class_="whisker"),
        *ends,
        tag("circle", cx=at, cy=middle, r=3.5, class_="dot"),
        class_="mark" if mark.believed else "mark doubted",
    )


def mark_words(mark: Mark) -> str:
    """``timing 3: 10.02 ms a token (9.98 to 10.11)``."""
    doubted = "" if mark.believed else ", not to be believed"
    return f"timing {mark.number}: {mark.median * 1000:.2f} ms a token ({mark.low * 1000:.2f} to {mark.high * 1000:.2f}){doubted}"


def _hatch(colour: int, identifier: str) -> Markup:
    """Stripes instead of a full bar: what is not to be believed is not told by its colour alone."""
    stripe = tag("line", x1=0, x2=0, y1=0, y2=7, class_=f"stripe s{colour}")
    return tag(
        "pattern", stripe, id=f"{identifier}-hatch{colour}", width=7, height=7, patternUnits="userSpaceOnUse", patternTransform="rotate(45)"
    )


def _description(batches: Sequence[BatchBars]) -> str:
    """The chart in words; the table beside it has every figure."""
    parts = []
    for batch in batches:
        bars = ", ".join(f"{bar.backend} {bar.median * 1000:.2f} ms{'' if bar.believed else ' (not to be believed)'}" for bar in batch.bars)
        parts.append(f"batch {batch.batch_size}: {bars}")
    return "; ".join(parts) + "."
