"""A report as one HTML page that needs nothing else: no network, no script, its style inside. Pure.

Each chart has its figures in a table beside it. The page may not load or run anything (its Content-Security-Policy says so), whatever
stood in what was kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.agent.wire_measure import BatchTiming, Interval
from orchestrator.results.differing import Varying
from orchestrator.results.markup import Markup, joined, tag
from orchestrator.results.report_accounts import account_section
from orchestrator.results.report_changes import change_section
from orchestrator.results.report_data import Report, ServiceReport, Timing, batch_bars, believed
from orchestrator.results.report_decode import COLOURS, decode_chart
from orchestrator.results.report_table import table

STYLE = Path(__file__).with_name("report.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NOTE = (
    "Milliseconds a token of one stream; shorter is faster. A bar is the median of a backend's timings, a dot one timing, the line through "
    "it the interval that holds its median in 95 % of cases. Striped: not to be believed. Whether one is faster, launches counted, says "
)


def page(report: Report) -> str:
    """The whole document."""
    title = _title(report)
    head = [
        tag("title", title),
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        tag("style", Markup(STYLE.read_text(encoding="utf-8"))),
    ]
    services = [_service(service, f"s{number}") for number, service in enumerate(report.services, 1)]
    main = tag("main", *services, *_unreadable(report.unreadable))
    body = tag("body", _header(title, report), main)
    return f'<!DOCTYPE html>\n<html lang="en">{tag("head", *head)}{body}</html>\n'


def _title(report: Report) -> str:
    if len(report.services) == 1:
        [service] = report.services
        return f"Decode timings and changes of {service.service} in {service.place}"
    return f"Decode timings and changes of {len(report.services)} services"


def _header(title: str, report: Report) -> Markup:
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.made))
    found = {
        "timing": sum(len(item.timings) for item in report.services),
        "change": sum(len(item.changes) for item in report.services),
        "account": sum(len(item.accounts) for item in report.services),
    }
    counts = ", ".join(_counted(number, what) for what, number in found.items() if number or what != "account")
    return tag("header", tag("h1", title), tag("p", f"{counts}; made {made} by version {report.version}", class_="quiet"))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _service(report: ServiceReport, identifier: str) -> Markup:
    parts = [tag("h2", f"{report.service} in {report.place}", id=identifier)]
    if report.timings:
        parts += [_decode(report, identifier), *_differing(report, identifier), *_doubts(report.timings, identifier)]
    if report.accounts:
        accounts = [account_section(item, is_open=number == 1) for number, item in enumerate(report.accounts, 1)]
        parts.append(_section("Where a step's time goes, the newest first", f"{identifier}-accounts", *accounts))
    if report.changes:
        numbered = enumerate(report.changes, 1)
        changes = [change_section(change, f"{identifier}-c{number}", is_open=number == 1) for number, change in numbered]
        parts.append(_section("Changes, the newest first", f"{identifier}-changes", *changes))
    return tag("article", *parts, aria_labelledby=identifier)


def _section(heading: str, identifier: str, *content: str) -> Markup:
    return tag("section", tag("h3", heading, id=identifier), *content, aria_labelledby=identifier)


def _decode(report: ServiceReport, identifier: str) -> Markup:
    bars = batch_bars(report)
    if not bars:
        return _section("Decoding", f"{identifier}-decoding", _timings_table(report))
    caption = tag("figcaption", _NOTE, tag("code", "fab compare RUN RUN"), ".")
    chart = tag("figure", decode_chart(bars, report.backends, f"{identifier}-decode"), caption)
    return _section("Decoding", f"{identifier}-decoding", chart, _timings_table(report))


def _timings_table(report: ServiceReport) -> Markup:
    columns = ("timing", "backend", "batch", "ms a token", "tok/s a stream", "tok/s in all", "first token, ms", "believed")
    colours = {backend: number % COLOURS for number, backend in enumerate(report.backends)}
    rows = [_timing_row(timing, batch, colours) for timing in report.timings for batch in timing.measurement.report.batches]
    return table("Every timing, batch size by batch size", columns, rows, class_="figures timings")


def _timing_row(timing: Timing, batch: BatchTiming, colours: dict[str, int]) -> list[str]:
    swatch = tag("span", "", class_=f"swatch s{colours[timing.backend]}", aria_hidden="true")
    holds = believed(timing, batch) and batch.skipped is None
    return [
        f"{timing.number}",
        joined([swatch, *_breakable(timing.backend)]),
        str(batch.batch_size),
        _interval(batch.time_per_output_token, 1000.0, 2),
        _interval(batch.tokens_per_second_per_stream, 1.0, 1),
        _interval(batch.tokens_per_second, 1.0, 1),
        _interval(batch.time_to_first_token, 1000.0, 0),
        "yes" if holds else tag("strong", "no" if batch.skipped is None else f"no: {batch.skipped}", class_="bad"),
    ]


def _breakable(backend: str) -> Iterator[str]:
    """A profile's name, which a narrow column may part where its overlays begin."""
    for part in re.findall(r"[^+]+\+?|\+", backend):
        yield part
        yield Markup("<wbr>")


def _interval(value: Interval | None, scale: float, digits: int) -> str:
    if value is None:
        return "-"
    median, low, high = (f"{part * scale:.{digits}f}" for part in (value.median, value.low, value.high))
    return f"{median} ({low} to {high})"


def _differing(report: ServiceReport, identifier: str) -> Iterator[Markup]:
    """What the timings differ in, each value with the timings that have it; then which run each timing is."""
    runs = tag("ol", *map(_run_item, report.timings), class_="runs")
    identifier = f"{identifier}-differing"
    if len(report.timings) < 2:
        yield _section("The timing", identifier, runs)
        return
    rows = [[_covariate(item), _values(item, report.timings)] for item in report.differing]
    if rows:
        caption = "What each timing depends on, where it is not the same for all"
        found = table(caption, ("what", "value, and the timings that have it"), rows, class_="differing")
    else:
        found = tag("p", "Nothing is known to differ.")
    yield _section("What differs between the timings", identifier, found, runs)


def _run_item(timing: Timing) -> Markup:
    return tag("li", tag("code", timing.measurement.label), f": {timing.backend}, {_launch(timing)}", value=timing.number)


def _launch(timing: Timing) -> str:
    found = timing.measurement.report.covariates
    return f"launch {found.launch_id}" if found.launch_id else f"process {found.main_pid}, not ours"


def _covariate(item: Varying) -> str:
    return joined([item.name, " ", tag("strong", "what was timed itself", class_="bad")]) if item.asked else item.name


def _values(item: Varying, timings: Sequence[Timing]) -> Markup:
    """Each value once."""
    having: dict[str, list[int]] = {}
    for value, timing in zip(item.values, timings, strict=True):
        having.setdefault(value, []).append(timing.number)
    lines = [
        tag(
            "li",
            tag("span", value or "set", class_="value"),
            " ",
            tag("span", f"timing{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}", class_="quiet"),
        )
        for value, numbers in having.items()
    ]
    return tag("ul", *lines, class_="values")


def _doubts(timings: Sequence[Timing], identifier: str) -> Iterator[Markup]:
    """Why timings are not to be believed."""
    doubted = [timing for timing in timings if timing.doubts]
    if not doubted:
        return
    items = [
        tag("li", tag("strong", f"timing {timing.number}"), tag("ul", *[tag("li", doubt) for doubt in timing.doubts])) for timing in doubted
    ]
    yield _section("Not to be believed", f"{identifier}-doubts", tag("ul", *items, class_="doubts"))


def _unreadable(found: Sequence[tuple[str, str]]) -> Iterator[Markup]:
    if found:
        items = [tag("li", tag("code", name), f": {problem}") for name, problem in found]
        yield _section("Runs that could not be read, or only in part", "unreadable", tag("ul", *items))
