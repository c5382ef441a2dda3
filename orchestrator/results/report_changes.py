"""The part of a report about one change: how it ended, why, what it cost, and its timeline. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator

from orchestrator.agent import wire
from orchestrator.agent.wire import State
from orchestrator.results.course import Course, Span
from orchestrator.results.markup import Markup, joined, tag
from orchestrator.results.report_data import Change
from orchestrator.results.report_timeline import timeline

_TONES = {State.DONE: "good", State.RESTORED: "warn"}


def change_section(change: Change, identifier: str, *, is_open: bool) -> Markup:
    """A change that can be folded away; the newest one is open."""
    run = change.run
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.record.started))
    to = f" to {run.backend}" if run.backend else ""
    ending = tag("strong", run.ending.told, class_=_TONES.get(run.ending.word, "bad"))
    summary = tag("summary", tag("span", f"{run.record.verb}{to}", class_="what"), " ", ending, " ", tag("span", when, class_="quiet"))
    content = [tag("dl", *_facts(change)), *_failure(run.result)]
    if change.course is not None:
        drawn = timeline(change.course, f"{identifier}-timeline")
        content.append(tag("figure", drawn, tag("figcaption", _caption(change.course)), class_="timeline"))
        content.append(tag("details", tag("summary", "The same as a table"), _course_table(change.course), class_="inner"))
    return tag("details", summary, *content, class_="change", open="open" if is_open else None)


def _facts(change: Change) -> Iterator[Markup]:
    run, result = change.run, change.run.result
    yield _fact("by", run.record.operator)
    yield _fact("run", tag("code", run.name))
    if result is None:
        return
    yield _fact("in the end", result.service)
    if result.dark_seconds is not None:
        yield _fact("nothing answered", f"for {result.dark_seconds:.1f} s; {_lost(result.lost_requests)}")
    decode = [_timing(name, timing) for name, timing in (("before", result.baseline), ("after", result.measured)) if timing is not None]
    if decode:
        yield _fact("decode, batch 1", "; ".join(decode))


def _lost(requests: int | None) -> str:
    if requests is None:
        return "how many requests were lost is not known"
    return f"{requests or 'no'} request{'' if requests == 1 else 's'} lost"


def _fact(name: str, value: str) -> Markup:
    return joined([tag("dt", name), tag("dd", value)])


def _timing(name: str, timing: wire.DecodeTiming) -> str:
    if timing.skipped:
        return f"{name} not timed: {timing.skipped}"
    return f"{name} {timing.time_per_output_token * 1000:.2f} ms a token ({timing.tokens_per_second:.1f} tok/s)"


def _failure(result: wire.OrderResult | None) -> Iterator[Markup]:
    failure = result.failure if result is not None else None
    if failure is None:
        return
    yield tag("p", tag("strong", f"{failure.summary} [{failure.category}]", class_="bad"))
    if failure.evidence:
        yield tag("pre", "\n".join(failure.evidence))
    if failure.advice:
        yield tag("p", failure.advice)


def _caption(course: Course) -> str:
    dark = " The marked part is the time in which nothing answered." if course.dark is not None else ""
    return f"Seconds from {time.strftime('%H:%M:%S UTC', time.gmtime(course.began))}, by the box's clock.{dark}"


def _course_table(course: Course) -> Markup:
    rows = []
    for step in course.steps:
        rows.append(_course_row(step.span, step.reason))
        rows += [_course_row(phase, phase.detail, class_="phase") for phase in step.phases]
    heads = tag("tr", *[tag("th", name, scope="col") for name in ("state or phase", "at, s", "took, s", "why")])
    whole = tag("table", tag("thead", heads), tag("tbody", *rows), class_="figures")
    return tag("div", whole, class_="scrolls", tabindex=0, role="region", aria_label="States and phases")


def _course_row(span: Span, why: str, class_: str | None = None) -> Markup:
    name = tag("th", span.name.replace("_", " "), scope="row")
    return tag("tr", name, tag("td", f"{span.began:.1f}"), tag("td", f"{span.seconds:.1f}"), tag("td", why, class_="words"), class_=class_)
