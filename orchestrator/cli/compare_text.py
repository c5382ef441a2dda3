"""The screen of a comparison. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli.blocks import Block, Line, Table, Tone, indented
from orchestrator.results.comparison import BatchComparison, Comparison, contrast_sentences, finding_words
from orchestrator.results.differing import Differing
from orchestrator.results.measurements import Measurement
from orchestrator.results.statistics import Contrast, Finding

_NUMBERS = frozenset({"batch", "A, ms a token", "B, ms a token", "B / A"})
_TONES: dict[Finding, Tone] = {Finding.FASTER: "good", Finding.SLOWER: "bad", Finding.NOT_SHOWN: ""}


def comparison_blocks(
    first: Sequence[Measurement], second: Sequence[Measurement], compared: Comparison, doubted: Sequence[str] = ()
) -> list[Block]:
    """What differs besides, then each batch size with its finding and what that rests on."""
    return [
        *_side("A", first),
        *_side("B", second),
        *([Line("not to be believed:", "bad"), *indented(doubted, "bad")] if doubted else []),
        Line(),
        *_differing(compared.differing),
        Line(),
        Table(
            ["batch", "A, ms a token", "B, ms a token", "B / A", "95 % interval", "B is"],
            [_row(batch) for batch in compared.batches],
            right=_NUMBERS,
            tones=tuple((index, tone) for index, batch in enumerate(compared.batches) if (tone := _TONES[batch.contrast.finding])),
            notes=["; ".join(contrast_sentences(batch.contrast)) for batch in compared.batches],
        ),
        *[Line(f"  {remark}", "quiet") for remark in compared.remarks],
    ]


def _side(letter: str, side: Sequence[Measurement]) -> list[Block]:
    count = len({item.launch for item in side})
    told = "1 launch" if count == 1 else f"{count} launches"
    return [Line(f"{letter}: {told}", "strong"), *indented([item.label for item in side], whole=True)]


def _differing(found: Sequence[Differing]) -> list[Block]:
    if not found:
        return [Line("nothing else is known to differ", "good")]
    rows = [[item.name, item.first or "set", item.second or "set"] for item in found]
    asked: tuple[tuple[int, Tone], ...] = tuple((index, "bad") for index, item in enumerate(found) if item.asked)
    warning = [Line("what was timed differs: the ratios below are not only about the servers", "bad")] if asked else []
    return [Line("differs", "strong"), Table(["", "A", "B"], rows, tones=asked), *warning]


def _row(batch: BatchComparison) -> list[str]:
    contrast = batch.contrast
    return [
        str(batch.batch_size),
        f"{batch.first * 1000:.2f}",
        f"{batch.second * 1000:.2f}",
        f"{contrast.ratio:.3f}",
        _interval(contrast),
        finding_words(contrast.finding, contrast.ratio),
    ]


def _interval(contrast: Contrast) -> str:
    if contrast.low <= 0:
        return "-"
    return f"{contrast.low:.3f}-{contrast.high:.3f}"
