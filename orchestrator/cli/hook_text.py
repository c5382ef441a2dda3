"""The words for what is done around an order: in its plan, and when it was done. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from orchestrator.agent.wire_notice import Fate, FateOutcome
from orchestrator.cli.blocks import Block, Line, Tone

if TYPE_CHECKING:
    from orchestrator.flows.plan import HookPlan, NoticePlan, Plan
    from orchestrator.results.hook_run import HookRun

_OUTCOMES: dict[str, tuple[str, Tone]] = {
    FateOutcome.BEGUN: ("begun, and nobody has said how it went", "warn"),
    FateOutcome.DONE: ("sent", "good"),
    FateOutcome.FAILED: ("failed", "warn"),
    FateOutcome.UNREACHED: ("not sent", "warn"),
    FateOutcome.UNKNOWN: ("may have arrived", "warn"),
}
_ENDINGS = {frozenset({"failure"}): " where it fails", frozenset({"success"}): " where it succeeds"}


def around_blocks(plan: Plan) -> list[Block]:
    """What is done before and after an order, by whom, and what becomes of it when this machine is closed."""
    if not plan.hooks and plan.notice is None:
        return []
    blocks: list[Block] = [Line(), Line("around it", "strong"), *(Line(f"  {_planned(hook)}") for hook in plan.hooks)]
    if any(hook.when == "after" for hook in plan.hooks):
        blocks.append(Line("  commands after it run here; if this machine is closed by then, when attach or resume sees its end", "quiet"))
    return [*blocks, *([] if plan.notice is None else [_notice_planned(plan.notice)])]


def _planned(hook: HookPlan) -> str:
    fails = {"refuse": "; refuses it when it fails", "warn": "; only told when it fails"}.get(hook.on_failure, "")
    return f"{hook.when:<7} {shlex.join(hook.command)}  ({hook.timeout:g} s at most{fails})"


def _notice_planned(notice: NoticePlan) -> Line:
    when = _ENDINGS.get(frozenset(notice.when), "")
    if notice.sender == "box":
        return Line(f"  notice  of its end{when} to {notice.to}, sent by the box itself, also when this machine is closed")
    if notice.sender == "operator":
        closed = "if this machine is closed by then, when attach or resume sees its end"
        return Line(f"  notice  of its end{when} to {notice.to}, sent from here ({notice.why}); {closed}", "warn")
    return Line(f"  notice  none: {notice.why}", "warn")


def hook_line(run: HookRun) -> tuple[str, Tone]:
    """What became of a command: one line, with the last that it said where it failed."""
    said = run.last_errors(1) if not run.good else []
    return f"hook {run.when} it, {run.line}: {run.ending}{f': {said[0].strip()}' if said else ''}", "" if run.good else "warn"


def notice_line(fate: Fate) -> tuple[str, Tone]:
    """What became of a notice."""
    words, tone = _OUTCOMES.get(fate.outcome, (fate.outcome, "warn"))
    return f"notice {words}, by {fate.by}{f': {fate.detail}' if fate.detail else ''}", tone
