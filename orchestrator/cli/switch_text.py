"""The words for how a new server takes the old one's place: in the plan, while it goes on, and at the end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire import State
from orchestrator.cli.blocks import Block, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MEANWHILE = {
    State.WARMING: "the old server answers",
    State.ACTIVATING: "nothing answers until its load is over",
}
"""What clients get meanwhile, where the state's name does not say it."""


def switch_blocks(staging: wire.StagingPlan | None, verdicts: Callable[[Sequence[wire.Verdict]], list[Block]]) -> list[Block]:
    """How it will be switched, why, and how long nothing will answer. `verdicts` shows checks."""
    if staging is None:
        return []
    if staging.staged:
        how = f"  staged: {staging.reason}"
        means = "  the new server starts beside the old one, which answers new requests until its successor waits at the gate"
    else:
        how = f"  sequential: {staging.reason}"
        means = "  the old server is stopped first; nothing answers until the new one has started"
    known = staging.estimate
    dark = "  how long it will be dark is not known: no earlier load here is like it" if known is None else f"  dark for {expected(known)}"
    return [
        Line(),
        Line("switch", "strong"),
        Line(how, "" if staging.staged else "warn"),
        Line(means),
        Line(dark),
        *verdicts(staging.verdicts),
    ]


def expected(estimate: wire.DarkEstimate) -> str:
    """``about 44 s (41 to 46 s), by 3 staged switches to triton, caches warm``."""
    spread = "" if estimate.shortest == estimate.longest else f" ({_seconds(estimate.shortest)} to {_seconds(estimate.longest)} s)"
    return f"about {_seconds(estimate.seconds)} s{spread}, by {estimate.basis}"


def outcome_lines(result: wire.OrderResult) -> list[Block]:
    """How it was switched, and what was expected of it; nothing where nothing answered in the end."""
    if result.dark_seconds is None or result.state == State.DOWN:
        return []
    how = "started beside the server before it" if result.staged else "started after the stop"
    saved = "" if result.saved_seconds is None else f", which answered for the {_seconds(result.saved_seconds)} s up to its gate"
    lines: list[Block] = [Line(f"switch: what serves now was {how}{saved}")]
    if result.dark_phases:
        parts = [f"{name.replace('_', ' ')} {_seconds(seconds)} s" for name, seconds in result.dark_phases.items()]
        lines.append(Line(f"dark in: {', '.join(parts)}"))
    if result.estimate is not None and result.state == State.DONE:
        lines.append(Line(f"expected: dark for {expected(result.estimate)}; measured: {result.dark_seconds:.1f} s"))
    return lines


def meanwhile(state: str) -> str:
    """What clients get while an order is in this state, to be added to a line on it; empty where the state's name says it."""
    words = _MEANWHILE.get(state)
    return f"; {words}" if words is not None else ""


def _seconds(seconds: float) -> str:
    """Tenths count below ten seconds."""
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
