"""The screen of a diagnosis. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.cli.blocks import Block, Line, Tone
from orchestrator.cli.text import verdict_blocks

if TYPE_CHECKING:
    from orchestrator.flows.doctor import Diagnosis

_TONES: dict[str, Tone] = {Outcome.REFUSE: "bad", Outcome.WARN: "warn", Outcome.UNKNOWN: "warn"}
"""The labels whose checks are named at the end, the gravest first."""


def diagnosis_blocks(found: Diagnosis) -> list[Block]:
    """A part for each place and what they tell together, then the checks by label, whether a relaunch would go, and what to type."""
    blocks: list[Block] = []
    for section in found.sections:
        blocks += [Line(section.heading, "strong"), *verdict_blocks(section.verdicts)]
    return [*blocks, Line(), *_summary(found)]


def _summary(found: Diagnosis) -> list[Block]:
    verdicts = [verdict for section in found.sections for verdict in section.verdicts]
    blocks: list[Block] = []
    for outcome, tone in _TONES.items():
        names = dict.fromkeys(verdict.check for verdict in verdicts if verdict.outcome == outcome)
        blocks += [Line(f"{outcome}: {', '.join(names)}", tone)] if names else []
    passed = sum(verdict.outcome == Outcome.PASS for verdict in verdicts)
    blocks.append(Line(f"{Outcome.PASS}: {passed} check{'' if passed == 1 else 's'}"))
    if found.unreached:
        blocks.append(Line("a place that matters could not be asked", "bad"))
    elif found.service is not None:
        blocks.append(Line("a relaunch would be refused", "bad") if found.refused else Line("a relaunch would not be refused", "good"))
    step = next_step(verdicts)
    return [*blocks, *([Line(f"next: {step}", whole=True)] if step else [])]


def next_step(verdicts: list[Verdict]) -> str | None:
    """What to type first: the answer to the first of the gravest."""
    steps = (verdict.next_step for outcome in _TONES for verdict in verdicts if verdict.outcome == outcome)
    return next((step for step in steps if step), None)
