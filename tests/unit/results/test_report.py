"""The page of a report: what stands in it, that it needs nothing else, and that nothing in it is taken for markup."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from orchestrator.results.markup import Markup, joined, tag
from orchestrator.results.report_axis import ticks
from orchestrator.results.report_data import Report, batch_bars
from orchestrator.results.report_decode import COLOURS, mark_words
from orchestrator.results.report_page import STYLE, page
from tests.unit.results.kept_samples import HOSTILE, doubted, timed
from tests.unit.results.report_samples import LONG, chosen, hostile_report, sample_report, service_of

VOID = {"meta", "wbr"}
"""Elements of the page that have no end."""


class Reader(HTMLParser):
    """Reads a page as a browser does: its elements, their attributes, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements[name] += 1
        self.attributes += [(name, key, value or "") for key, value in attributes]
        if name not in VOID:
            self._open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == attribute]


def test_the_page_tells_of_timings_differences_doubts_and_changes() -> None:
    text = Reader(page(sample_report())).text
    for words in (
        "Decode timings and changes of glm5 in gpu1/101",
        "4 timings, 2 changes, 3 accounts; made 2026-12-01 04:40 UTC by version 0.1.0",
        "20.00 (19.00 to 21.00)",
        "11.00 ms, 90.9 tok/s",
        "15.00 ms, 66.7 tok/s, not to be believed",
        "SGLang 0.5.23 timings 1, 3, 4 0.5.22 timing 2",
        "others: 3 requests ran at once, 2 were ours",
        "there is no kernel for this GPU's architecture [kernel_missing]",
        "for 9.7 s; no requests lost",
        "nothing answered for 9.7 s",
        "graph capture",
        "notes : run.json: No such file",
    ):
        assert words in text, words


def test_the_page_tells_where_a_steps_time_goes() -> None:
    text = Reader(page(sample_report())).text
    for words in (
        "Where a step's time goes, the newest first",
        "parts timed alone on 2 x NVIDIA H200 with PyTorch 2.9.1",
        "batch 4: the measured step and what it is made of",
        "measured 5.000 100.0 % a token of each stream",
        "floor 1.600 32.0 % 2.8 GB at 1750 GB/s",
        "GEMM 1.200 24.0 % 60 multiplications, reading weights included",
        "all-reduce 0.400 8.0 % 40 of 8 KiB by NCCL",
        "residual 3.400 68.0 % attention, norms, routing, sampling, gaps; 0.171 ms of it for the KV cache at least",
        "batch 4, kernels; the middle one of 2 steps (1.000-1.200 ms) by SGLang's marks; rank nvjet_tst_128x8",
        "GEMM 0.400 40.0 % 3 nvjet_tst_128x8",
        "gaps 0.400 40.0 % nothing ran",
        "not known what it is for: nvjet_tst_128x8, mystery",
        "1-TP-1.json.gz: 1.000 ms a step, busy 0.600, communication 0.000, gaps 0.400",
        "steps of batch 9 are in the trace: others' requests ran",
        "budget.json is no JSON",
    ):
        assert words in text, words


def test_a_page_without_accounts_says_nothing_of_them() -> None:
    text = Reader(page(Report((service_of(chosen()),), 0.0, "0.1.0"))).text
    assert "4 timings, 2 changes; made" in text
    assert "step's time" not in text


def test_every_figure_of_the_chart_stands_in_the_table() -> None:
    report = sample_report()
    text = Reader(page(report)).text
    for batch in batch_bars(report.services[0]):
        for mark in (mark for bar in batch.bars for mark in bar.marks):
            assert f"{mark.median * 1000:.2f} ({mark.low * 1000:.2f} to {mark.high * 1000:.2f})" in text


def test_a_bar_is_the_median_of_what_is_believed() -> None:
    timings = [timed(str(step), "triton", [(1, step)]) for step in (10.0, 11.0, 15.0)]
    [batch] = batch_bars(service_of([*timings, doubted(timed("bad", "triton", [(1, 99.0)]))]))
    [bar] = batch.bars
    assert (bar.median, bar.believed, len(bar.marks)) == (0.011, True, 4)
    [batch] = batch_bars(service_of([doubted(timed("bad", "triton", [(1, 99.0)]))]))
    assert (batch.bars[0].median, batch.bars[0].believed) == (0.099, False)


def test_a_doubt_about_one_batch_size_speaks_against_that_one() -> None:
    item = doubted(timed("one", "triton", [(1, 10.0), (4, 12.0)]), batch_size=4)
    assert [batch.bars[0].believed for batch in batch_bars(service_of([item]))] == [True, False]
    assert "not to be believed" in mark_words(batch_bars(service_of([item]))[1].bars[0].marks[0])


def test_charts_have_a_name_and_a_description_and_tables_have_headings() -> None:
    read = Reader(page(sample_report()))
    identifiers = read.values("id")
    assert len(identifiers) == len(set(identifiers))
    assert read.elements["svg"] == 3
    assert read.elements["desc"] == 3
    for value in read.values("aria-labelledby"):
        assert set(value.split()) <= set(identifiers)
    assert set(read.values("scope")) == {"col", "row"}
    assert read.elements["h1"] == 1
    assert ("html", "lang", "en") in read.attributes
    assert "batch 1: flashinfer_trtllm 20.00 ms, flashinfer_cutedsl 11.00 ms" in read.text


def test_the_page_needs_nothing_else() -> None:
    text = page(sample_report())
    read = Reader(text)
    assert {"script", "link", "img", "iframe", "object", "image", "use"} & set(read.elements) == set()
    assert {"src", "srcset", "data", "action", "xlink:href", "href"} & {key for _, key, _ in read.attributes} == set()
    assert re.findall(r"url\((?!#)|@import|@font-face|https?:", text) == []
    assert "default-src 'none'; style-src 'unsafe-inline'" in read.values("content")


@pytest.mark.parametrize("text", [HOSTILE, "</title></style><script>x</script>", "--><svg onload=x>", "&lt;b&gt;"])
def test_nothing_that_was_kept_is_taken_for_markup(text: str) -> None:
    hostile, harmless = Reader(page(hostile_report(text))), Reader(page(hostile_report("x" * len(text))))
    assert hostile.elements == harmless.elements
    assert [key for _, key, _ in hostile.attributes] == [key for _, key, _ in harmless.attributes]
    assert " ".join(text.split()) in hostile.text


def test_services_have_sections_of_their_own() -> None:
    one = service_of(chosen())
    two = dataclasses.replace(service_of([], changes=()), service="other", place="gpu2")
    read = Reader(page(Report((one, two), 0.0, "0.1.0")))
    assert "Decode timings and changes of 2 services" in read.text
    assert read.elements["article"] == 2


def test_more_backends_than_colours_are_told_apart_by_their_names() -> None:
    timings = [timed(f"l{number}", f"backend{number}", [(1, 10.0 + number)]) for number in range(COLOURS + 2)]
    text = page(Report((service_of(timings, changes=()),), 0.0, "0.1.0"))
    assert all(f">backend{number}</text>" in text for number in range(COLOURS + 2))
    assert f"s{COLOURS}" not in {name for value in Reader(text).values("class") for name in value.split()}


def test_a_long_name_has_a_line_of_its_own() -> None:
    heights = [
        int(float(re.findall(r'class="decode" width="100%" height="(\d+)"', page(Report((service_of([item], ()),), 0.0, "")))[0]))
        for item in (timed("one", "short", [(1, 10.0)]), timed("one", LONG, [(1, 10.0)]))
    ]
    assert heights[1] == heights[0] + 3 * 16, "two more for the name, one for the value"


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(21.0, (0, 5, 10, 15, 20, 25)), (0.004, (0, 0.001, 0.002, 0.003, 0.004)), (100.0, (0, 20, 40, 60, 80, 100)), (0.0, (0, 1))],
)
def test_the_numbers_of_an_axis_are_round_and_reach_far_enough(highest: float, expected: tuple[float, ...]) -> None:
    assert ticks(highest) == pytest.approx(expected)


def test_markup_is_what_was_made_here_and_text_is_escaped() -> None:
    assert tag("p", "a < b", tag("b", "&"), title='"', class_="x", data_a=None) == '<p title="&quot;" class="x">a &lt; b<b>&amp;</b></p>'
    assert joined([Markup("<i>"), "<i>"]) == "<i>&lt;i&gt;"


def colours(scheme: str) -> dict[str, tuple[int, int, int]]:
    """What report.css calls its colours in a scheme."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE.read_text(encoding="utf-8"), re.DOTALL)
    block = blocks[0] if scheme == "light" else blocks[1]
    named = re.findall(r"--([a-z0-9]+): #([0-9a-f]{6});", block)
    return {name: (int(value[:2], 16), int(value[2:4], 16), int(value[4:], 16)) for name, value in named}


def luminance(colour: tuple[int, int, int]) -> float:
    """Relative luminance (WCAG 2.2)."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_bars_stand_out_from_what_is_behind_them(scheme: str) -> None:
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for what a chart draws (1.4.11)."""
    named = colours(scheme)
    assert set(named) == set(colours("light"))
    for text in ("ink", "quiet", "good", "warn", "bad", "accent"):
        for behind in ("card", "page"):
            assert contrast(named[text], named[behind]) >= 4.5, (text, behind)
    assert contrast(named["unanswered"], named["band"]) >= 4.5
    for drawn in ("answered", "unanswered", *(f"s{number}" for number in range(COLOURS))):
        assert contrast(named[drawn], named["card"]) >= 3.0, drawn
