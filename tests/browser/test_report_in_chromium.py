"""The page of a report in a real headless Chromium: what is drawn, where, in which colours, on a desk and on a phone.

The figures behind it are chosen, so that it is known where each bar must end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.results.report_data import Report, batch_bars
from orchestrator.results.report_page import page
from tests.rig.chromium import Box, Chromium, Window, places_of
from tests.unit.results.kept_samples import HOSTILE, timed
from tests.unit.results.report_samples import hostile_report, sample_report, service_of
from tests.unit.results.test_report import colours

WINDOWS = (Window(1100, 4600), Window(390, 7600, phone=True), Window(320, 8600, phone=True))
LOOKS = [
    pytest.param(dataclasses.replace(window, dark=dark), id=f"{window.width}-{'dark' if dark else 'light'}")
    for window in WINDOWS
    for dark in (False, True)
]
DECODE, TIMELINE = "svg.decode", "svg.timeline"
BAR = ".decode .bar"
PLOT_SHARE = 0.97
"""Of a chart's width, to the last number of its axis: 30 ms, and 30 s."""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return written(tmp_path, sample_report())


def written(folder: Path, report: Report) -> Path:
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path


def named_colours(look: Window) -> dict[str, tuple[int, int, int]]:
    return colours("dark" if look.dark else "light")


@pytest.mark.parametrize("look", LOOKS)
def test_chromium_draws_each_bar_as_long_as_its_median(chromium: Chromium, sample: Path, look: Window) -> None:
    chromium.open(sample, look)
    [bars, [plot]] = chromium.boxes(BAR, DECODE)
    image, named = chromium.drawn(), named_colours(look)
    expected = [(bar, number) for batch in batch_bars(sample_report().services[0]) for number, bar in enumerate(batch.bars)]
    assert len(bars) == len(expected) == 6
    for box, (bar, number) in zip(bars, expected, strict=True):
        drawn = places_of(named[f"s{number}"], image, int(box.top) + 3)  # above the marks, which lie over the bar's middle
        assert drawn, f"no {bar.backend} in row {int(box.top) + 3}"
        if bar.believed:
            length = drawn[-1] + 1 - plot.left
            assert drawn[0] == pytest.approx(plot.left, abs=2)
            assert length == pytest.approx(plot.width * PLOT_SHARE * bar.median * 1000 / 30, abs=2)


@pytest.mark.parametrize("look", LOOKS)
def test_chromium_draws_what_is_not_believed_in_stripes(chromium: Chromium, sample: Path, look: Window) -> None:
    chromium.open(sample, look)
    [bars] = chromium.boxes(BAR)
    image, named = chromium.drawn(), named_colours(look)
    for index, box in enumerate(bars):
        row = int(box.top) + 3
        inside = [image.getpixel((x, row)) for x in range(int(box.left) + 4, int(box.left + box.width * 0.9))]
        full, empty = (inside.count(named[name]) / len(inside) for name in (f"s{index % 3}", "card"))
        if index % 3 == 2:
            assert 0.1 < full < 0.8
            assert 0.1 < empty < 0.8
        else:
            assert full == 1.0


def test_chromium_draws_each_interval_with_its_dot(chromium: Chromium, sample: Path) -> None:
    chromium.open(sample, WINDOWS[0])
    [[plot], dots, lines] = chromium.boxes(DECODE, ".decode circle.dot", ".decode .mark > line.whisker:nth-of-type(2)")
    image, ink = chromium.drawn(), colours("light")["ink"]
    marks = [mark for batch in batch_bars(sample_report().services[0]) for bar in batch.bars for mark in bar.marks]
    assert len(dots) == len(marks) == len(lines) == 8
    full = plot.width * PLOT_SHARE / 0.030
    for dot, line, mark in zip(dots, lines, marks, strict=True):
        centre = (dot.left + dot.right) / 2 - plot.left
        reach = line.left - plot.left, line.right - plot.left
        assert centre == pytest.approx(mark.median * full, abs=1.5)
        assert reach == pytest.approx((mark.low * full, mark.high * full), abs=2.5)
        if mark.believed:
            assert image.getpixel(dot.middle) == ink
            assert image.getpixel((int(line.right) - 4, dot.middle[1])) == ink
        else:
            assert image.getpixel(dot.middle) == colours("light")["card"]


@pytest.mark.parametrize("look", LOOKS)
def test_chromium_draws_the_dark_time_where_nothing_answered(chromium: Chromium, sample: Path, look: Window) -> None:
    chromium.open(sample, look)
    [bands, plots, unanswered, states] = chromium.boxes(".timeline .band", TIMELINE, ".timeline .bar.unanswered", ".timeline .bar.state")
    image, named = chromium.drawn(), named_colours(look)
    band, plot = bands[0], plots[0]
    course = sample_report().services[0].changes[0].course
    assert course is not None
    assert course.dark is not None
    full = plot.width * PLOT_SHARE / 30
    reach = (plot.left + course.dark.began * full, plot.left + course.dark.ended * full)
    drawn = places_of(named["band"], image, int(band.bottom) - 3)
    assert (drawn[0], drawn[-1] + 1) == pytest.approx(reach, abs=2)

    def wide(boxes: Sequence[Box], kind: str) -> list[Box]:
        return [box for box in boxes if box.kind == kind and box.width > 6 and plot.top < box.top < plot.bottom]

    dark_states = wide(unanswered, "bar state unanswered")
    assert dark_states
    for box in dark_states:
        assert image.getpixel(box.middle) == named["unanswered"]
        assert reach[0] - 1 <= box.left
        assert box.right <= reach[1] + 2
    lit = [box for box in wide(states, "bar state") if box.right < reach[0] or box.left > reach[1]]
    assert lit
    assert {image.getpixel(box.middle) for box in lit} == {named["answered"]}


@pytest.mark.parametrize("look", LOOKS)
def test_chromium_draws_light_and_dark_pages(chromium: Chromium, sample: Path, look: Window) -> None:
    chromium.open(sample, look)
    [sections] = chromium.boxes("section")
    image, named = chromium.drawn(), named_colours(look)
    assert image.getpixel((3, 3)) == named["page"]
    assert image.getpixel((int(sections[0].left) + 8, int(sections[0].top) + 8)) == named["card"]
    assert (sum(named["page"]) < 128) == look.dark


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: str(window.width))
def test_chromium_never_scrolls_the_page_sideways_and_cuts_no_word(chromium: Chromium, tmp_path: Path, window: Window) -> None:
    wordy = service_of([timed("one", "x" * 60, [(1, 20.0)]), timed("two", "auto", [(1, 10.0)], sglang="0" * 300)])
    for report in (sample_report(), Report((wordy,), 0.0, "0.1.0")):
        chromium.open(written(tmp_path, report), window)
        chromium.value("document.querySelectorAll('details').forEach(details => details.open = true)")
        assert chromium.value("innerWidth") == window.width
        assert chromium.value("document.documentElement.scrollWidth") <= window.width
        for plot in (DECODE, TIMELINE):
            plots, texts = chromium.boxes(plot, f"{plot} text")
            assert texts
            for box in texts:
                assert [found for found in plots if holds(found, box)], box
            assert [(one.text, other.text) for one, other in itertools.combinations(texts, 2) if one.overlaps(other)] == []


def holds(plot: Box, text: Box) -> bool:
    across = plot.left - 1 <= text.left and text.right <= plot.right + 1
    return across and plot.top - 1 <= text.top and text.bottom <= plot.bottom + 1


def test_chromium_loads_and_runs_nothing_of_what_was_kept(chromium: Chromium, tmp_path: Path) -> None:
    path = written(tmp_path, hostile_report(HOSTILE))
    chromium.open(path, WINDOWS[0])
    assert chromium.requests() == [path.as_uri()]
    assert chromium.value("document.documentElement.dataset.ran") is None
    assert chromium.value("document.scripts.length") == 0
    [[heading]] = chromium.boxes("h1")
    assert HOSTILE in heading.text


def test_chromium_would_have_run_a_script(chromium: Chromium, tmp_path: Path) -> None:
    """That the test above could fail: the same words, as markup, in a page that forbids nothing."""
    path = tmp_path / "open.html"
    path.write_text(f"<!DOCTYPE html><html><body>{HOSTILE}</body></html>", encoding="utf-8")
    chromium.open(path, WINDOWS[0])
    assert chromium.value("document.documentElement.dataset.ran") == "1"
