"""The words for what becomes of requests while a server is switched: expected in the plan, counted at the end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.blocks import Block, Line, Tone, indented

if TYPE_CHECKING:
    from orchestrator.agent import wire
    from orchestrator.flows.plan import Failing, Held, Plan
    from orchestrator.results.roll import Growth

_WAYS = {
    "removed": "taken out of the router's list before the stop and had in again once its successor is proven, by its supervisor",
    "kept": "left in the router's list",
}


def requests_blocks(plan: Plan) -> list[Block]:
    """What becomes of requests meanwhile, and what to set at the router so that none fails."""
    if plan.held is not None:
        return [Line(), Line("requests meanwhile", "strong"), *_held(plan.held)]
    if plan.failing is not None:
        return [Line(), Line("requests meanwhile", "strong"), Line(f"  no router holds them: {expected_failures(plan.failing)}", "warn")]
    return []


def _held(held: Held) -> list[Block]:
    blocks: list[Block] = [
        Line(f"  router {held.router} ({held.kind}) at {held.url}, and no other server behind it"),
        Line(f"  {_WAYS[held.way]}: {held.why}"),
    ]
    if held.settings is None:
        step = f"started_with: in the file of router {held.router} says what it was started with"
        return [*blocks, Line(f"  its retry settings are not known; {step}", "warn"), *_flags(held)]
    tries = f"{held.settings.attempts} attempts, from {held.settings.first:g} s to {held.settings.longest:g} s apart"
    blocks.append(Line(f"  its retries: {tries}, by {held.settings.source}"))
    found = held.coverage
    if found is None:
        return [*blocks, Line("  whether they hold requests for long enough is not known", "warn")]
    if found.covered:
        wait = "" if found.longest_wait is None else f"; the longest waits {found.longest_wait:.0f} s, which its client has to bear"
        return [
            *blocks,
            Line(f"  they hold requests for {found.holds:.0f} s, and {found.span:.0f} s are expected: none fails{wait}", "good"),
        ]
    blocks += [Line(f"  not covered: {why}", "warn") for why in found.against]
    blocks += [] if held.failing is None else [Line(f"  {expected_failures(held.failing)}", "warn")]
    return [*blocks, *_flags(held)]


def _flags(held: Held) -> list[Block]:
    if not held.flags:
        return []
    return [Line("  to hold them, start the router with"), *indented([" ".join(held.flags)], whole=True)]


def expected_failures(failing: Failing) -> str:
    """``about 12 to 16 requests will fail: 2.1 a second, for 6 to 8 s``."""
    seconds = _range(f"{failing.shortest:.0f}", f"{failing.longest:.0f}")
    if failing.request_rate is None:
        return f"those that come within {seconds} s fail; how many is not known, as the server has no counter (--enable-metrics)"
    count = _range(str(failing.least), str(failing.most))
    return f"about {count} requests will fail: {failing.request_rate:.1f} a second now, for {seconds} s"


def _range(low: str, high: str) -> str:
    return high if low == high else f"{low} to {high}"


def meanwhile_blocks(plan: Plan, result: wire.OrderResult | None, clients: Growth | None) -> list[Block]:
    """What was expected of requests and what came of them, where an order touched the server."""
    if result is None or result.dark_seconds is None:
        return []
    lines: list[Block] = []
    if result.held_seconds is not None:
        expected = plan.held.coverage if plan.held is not None else None
        told = "" if expected is None else f" (expected: {expected.span:.0f} s at most)"
        lines.append(Line(f"requests: the router had no server for {result.held_seconds:.1f} s{told}"))
    if clients is not None:
        counted = f"{clients.requests} came to the router, {clients.answered} were answered, {clients.failed} failed"
        tone: Tone = "bad" if clients.failed else "good"
        lines.append(Line(f"requests: {counted}, {clients.exhausted} were given up; {clients.retries} attempts were made again", tone))
    if plan.failing is not None:
        lines.append(Line(f"requests: {_failed(plan.failing, result)}"))
    return lines


def _failed(failing: Failing, result: wire.OrderResult) -> str:
    cut = "how many were cut is not known" if result.lost_requests is None else f"{result.lost_requests} were cut"
    refused = "those that came while nothing listened were counted by nobody"
    if failing.request_rate is None or result.dark_seconds is None:
        return f"{cut}; {refused}"
    count = round(failing.request_rate * result.dark_seconds)
    expected = f"expected {_range(str(failing.least), str(failing.most))} to fail"
    return f"{expected}; at that rate {count} came in the {result.dark_seconds:.1f} s that were dark; {cut}; {refused}"
