"""The timeline of a change: its states, the phases of a load, and when nothing answered, as SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.results.course import LEAST_SECONDS, Course, Span, load_phases
from orchestrator.results.markup import Markup, joined, tag
from orchestrator.results.report_axis import HEIGHT, Axis

_TOP, _STATE, _PHASE = 26, 32, 26
"""Heights, pixels."""
_LATE = 0.65
"""Of the axis: so far to the right, words have room to their left on the narrowest phone."""


def timeline(course: Course, identifier: str) -> Markup:
    """A row for each state and, below it, for each phase of its load; what fell into the dark time has its colour.

    Args:
        identifier: unique in the page.
    """
    axis = Axis(course.seconds, "s")
    top, rows = float(_TOP if course.dark else 6), []
    for span, is_phase in _rows(course):
        rows.append(_row(span, course.dark, axis, top, is_phase=is_phase))
        top += _PHASE if is_phase else _STATE
    return tag(
        "svg",
        tag("title", "How it went, second by second", id=f"{identifier}-title"),
        tag("desc", _description(course), id=f"{identifier}-desc"),
        _band(course.dark, axis, top),
        axis.drawn(top),
        *rows,
        role="img",
        aria_labelledby=f"{identifier}-title {identifier}-desc",
        class_="timeline",
        width="100%",
        height=top + HEIGHT,
    )


def _rows(course: Course) -> Iterator[tuple[Span, bool]]:
    """The spans with whether each is a phase."""
    for step in course.steps:
        yield step.span, False
        yield from ((phase, True) for phase in load_phases(step) if phase.seconds >= LEAST_SECONDS)


def _band(dark: Span | None, axis: Axis, height: float) -> Markup:
    """Behind all rows, with its length above them: from its beginning, up to its end or around its middle, wherever that has room."""
    if dark is None:
        return Markup()
    area = tag("rect", x=axis.across(dark.began), y=0, width=axis.across(dark.seconds), height=height, class_="band")
    at, anchor = (dark.began + dark.ended) / 2, "middle"
    if dark.ended > axis.numbers[-1] * _LATE:
        at, anchor = dark.ended, "end"
    elif dark.began < axis.numbers[-1] * (1 - _LATE):
        at, anchor = dark.began, "start"
    words = tag("text", dark_words(dark), x=axis.across(at), y=16, text_anchor=anchor, class_="dark")
    return joined([area, words])


def dark_words(dark: Span) -> str:
    """``nothing answered for 41.5 s``; tenths count below a hundred."""
    return f"nothing answered for {dark.seconds:.{1 if dark.seconds < 100 else 0}f} s"


def _row(span: Span, dark: Span | None, axis: Axis, top: float, *, is_phase: bool) -> Markup:
    """Its name and how long it took over its bar."""
    kind = "phase" if is_phase else "state"
    thick = 5 if is_phase else 9
    name = tag("text", span.name.replace("_", " "), x=0, dx=14 if is_phase else 0, y=top + 12, class_=f"name {kind}")
    took = tag("text", f"{span.seconds:.1f} s" if span.seconds else "", x="100%", y=top + 12, text_anchor="end", class_="value")
    bars = [_piece(span.began, span.ended, axis, top + 16, thick, f"bar {kind}")]
    if dark is not None and min(span.ended, dark.ended) > max(span.began, dark.began):
        bars.append(_piece(max(span.began, dark.began), min(span.ended, dark.ended), axis, top + 16, thick, f"bar {kind} unanswered"))
    return tag("g", tag("title", f"{span.name}: {span.began:.1f} s to {span.ended:.1f} s {span.detail}".rstrip()), name, took, *bars)


def _piece(began: float, ended: float, axis: Axis, top: float, thick: float, look: str) -> Markup:
    """What took no time is still there to be seen."""
    width = f"width:max(3px,{axis.across(ended - began)})"
    return tag("rect", x=axis.across(began), y=top, width=axis.across(ended - began), height=thick, rx=2, class_=look, style=width)


def _description(course: Course) -> str:
    states = ", ".join(f"{step.span.name} at {step.span.began:.1f} s for {step.span.seconds:.1f} s" for step in course.steps)
    dark = "" if course.dark is None else f" From {course.dark.began:.1f} s to {course.dark.ended:.1f} s {dark_words(course.dark)}."
    return f"{states}.{dark}"
