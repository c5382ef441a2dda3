"""What a notice says of an order's end: who, what, how it ended, what it cost, and what to type next. Pure.

Plain text that Slack, Mattermost and Discord's Slack endpoint show alike. Of the order's evidence nothing is in it: those are lines of
a server's log, which no chat should keep.
"""

from typing import List, Optional

from orchestrator.agent import wire
from orchestrator.agent.next_steps import command, named
from orchestrator.agent.wire_notice import Afterwards, Told

_LONGEST = 260
"""Characters of one line, of which there are seven at most: Discord takes 2000 in all."""


def ending(result: wire.OrderResult) -> str:
    """Which of :class:`Told` an ending is."""
    return Told.SUCCESS if result.exit_code == 0 else Told.FAILURE


def notice_text(order: wire.Order, afterwards: Afterwards, result: wire.OrderResult) -> str:
    """The whole text, a line a matter; what is not known is left out."""
    lines = [
        f"{afterwards.verb} of {order.service} on {afterwards.host}: {result.state}, {result.summary}",
        _who(order, afterwards),
        *_cost(result),
        *_decode(result.baseline, result.measured),
        *_failure(result),
        *_next(order, afterwards, result),
    ]
    return "\n".join(_escaped(_short(line)) for line in lines)


def _who(order: wire.Order, afterwards: Afterwards) -> str:
    old, new = afterwards.old_backend, afterwards.new_backend
    change = f", {old or 'nothing known'} -> {new}" if new else f", was {old}" if old else ""
    why = f" ({order.reason})" if order.reason else ""
    return f"by {order.operator}{why}{change}, order {order.order_id}"


def _cost(result: wire.OrderResult) -> List[str]:
    parts = [f"now: {result.service}"]
    if result.dark_seconds is not None:
        parts.append(f"dark for {result.dark_seconds:.1f} s{' so far' if result.state == wire.State.DOWN else ''}")
    if result.lost_requests is not None:
        parts.append(f"{result.lost_requests or 'no'} request{'' if result.lost_requests == 1 else 's'} lost")
    return ["; ".join(parts)]


def _decode(before: Optional[wire.DecodeTiming], after: Optional[wire.DecodeTiming]) -> List[str]:
    speeds = [timing.tokens_per_second if timing is not None and not timing.skipped else 0.0 for timing in (before, after)]
    if not any(speeds):
        return []
    told = [f"{speed:.1f}" if speed else "not timed" for speed in speeds]
    ratio = f" ({speeds[1] / speeds[0]:.2f} times)" if all(speeds) else ""
    return [f"decode, batch 1, tokens per second: {told[0]} -> {told[1]}{ratio}"]


def _failure(result: wire.OrderResult) -> List[str]:
    failure = result.failure
    if failure is None:
        return []
    return [f"failure: {failure.category}{'' if failure.summary in result.summary else f', {failure.summary}'}"]


def _next(order: wire.Order, afterwards: Afterwards, result: wire.OrderResult) -> List[str]:
    if result.next_step:
        return [f"next: {named(result.next_step, afterwards.host, order.service)}"]
    if ending(result) == Told.SUCCESS:
        return []
    return [f"next: {command('attach', afterwards.host, order.service, f'--order {order.order_id}')}"]


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def _escaped(line: str) -> str:
    """As Slack wants it: else a reason such as ``<!channel>`` would wake a whole company."""
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
