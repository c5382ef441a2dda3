"""What brings a service's server back, as blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.agent import wire
from orchestrator.cli.blocks import Block, Line, Tone
from orchestrator.cli.text import moment


def comes_back_lines(unit: wire.BootUnit | None, now: float | None = None) -> list[str]:
    """What starts the server again, and how often that was needed since its launch was verified."""
    if unit is None:
        return ["nothing starts it again after a crash or a reboot"]
    if not unit.armed:
        return [f"{unit.unit} is off: nothing starts it again after a crash or a reboot"]
    return [f"after a crash and a reboot, by {unit.unit}", *_restarts(unit, now)]


def comes_back_blocks(unit: wire.BootUnit | None, now: float | None = None) -> list[Block]:
    """The same for the status screen."""
    first, *rest = comes_back_lines(unit, now)
    tone: Tone = "bad" if unit is not None and unit.problem else "warn" if unit is not None and unit.restarts else "quiet"
    blocks: list[Block] = [Line(f"{'back':<8}{first}", tone), *(Line(f"        {line}", tone) for line in rest)]
    if unit is not None and unit.problem is not None:
        blocks += [Line(f"        {unit.problem}", "bad"), Line("        -> fab logs says why; fab launch starts it anew", whole=True)]
    return blocks


def _restarts(unit: wire.BootUnit, now: float | None) -> list[str]:
    if not unit.restarts:
        return ["no restart since it was verified"]
    times = "1 restart" if unit.restarts == 1 else f"{unit.restarts} restarts"
    last = f", the last {moment(unit.last, now)}" if unit.last is not None else ""
    ended = unit.ended or "nobody could record how it had ended: the machine went down"
    return [f"{times} since it was verified{last}", f"before that: {ended}"]


def verdict_lines(verdicts: Sequence[wire.Verdict]) -> list[str]:
    """Warnings of what stands in its way."""
    return [verdict.detail + (f" -> {verdict.next_step}" if verdict.next_step else "") for verdict in verdicts]
