"""What is said where our times and the server's own word differ, and of the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent.disagreement import disagreements
from orchestrator.agent.wire_measure import Gaps, OwnWord, RepeatTiming

CASES = yaml.safe_load((Path(__file__).parent / "data/disagreements.yml").read_text(encoding="utf-8"))
GAPS = Gaps(0.0, 0.0, 0.0, 0.0, 1)


def timing(window: float, late: float, waited: float | None) -> RepeatTiming:
    seconds = None if waited is None else waited / 1000
    return RepeatTiming(0.0, 9.0, [0.1], 0.01, window / 1000, 100, GAPS, 100.0, 100.0, 101, 101, 10, late / 1000, seconds)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["about"])
def test_a_difference_comes_with_its_likely_cause(case: dict[str, Any]) -> None:
    words = [OwnWord(source, own / 1000, 6, case["ours"] / own - 1) for source, own in case["own"].items()]

    said = disagreements(case["batch"], words, [timing(**repeat) for repeat in case["repeats"]])

    assert len(said) == case["sentences"]
    if case["cause"] is None:
        assert not [sentence for sentence in said if "likely" in sentence]
    else:
        assert case["cause"] in said[-1]


def test_the_difference_itself_is_told_by_source() -> None:
    first, second, _ = disagreements(64, [OwnWord("a", 0.002, 3, 0.5), OwnWord("decode batch lines", 0.004, 3, 0.04)], [timing(900, 0, 0)])

    assert first == "batch 64: the time per output token is 50.0% more than the server's own 2.000 ms (a)"
    assert second == "batch 64: the time per output token is 4.0% more than the server's own 4.000 ms (decode batch lines)"
