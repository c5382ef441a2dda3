"""The status screen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.agent import wire
from orchestrator.agent.wire_words import managed
from orchestrator.cli.blocks import Block, Line, Tone, indented
from orchestrator.cli.text import moment, server_command, server_lines, verdict_blocks

_HEALTH_TONES: dict[str, Tone] = {"serving": "good", "starting": "warn", "unhealthy": "bad", "silent": "bad", "down": "bad"}


def status_blocks(service: str, place: str, report: wire.SurveyReport, now: float | None = None) -> list[Block]:
    """One screen: the server, its health, the GPUs, the newest order, and who else is there."""
    version = f", SGLang {report.sglang_version}" if report.sglang_version else ""
    blocks: list[Block] = [
        Line(f"{service} in {place}{version}", "strong"),
        Line(f"health  {report.health}", _HEALTH_TONES.get(report.health, "warn")),
    ]
    blocks += _headed("server", server_lines(report.server, now) if report.server is not None else ["none"])
    if report.server is not None:
        blocks += indented([f"    {server_command(report.server)}"], whole=True)
    if report.order is not None:
        reason = [f"reason: {report.order.reason}"] if report.order.reason else []
        blocks += _headed("order", [order_line(report.order, now), *reason])
    if report.gpus:
        blocks += _headed("gpus", gpu_lines(report.gpus))
    others = [other_line(server) for server in report.others]
    if others:
        blocks += _headed("others", others)
    notable = [verdict for verdict in report.verdicts if verdict.outcome != wire.Outcome.PASS]
    return [*blocks, *verdict_blocks(notable)]


def other_line(server: wire.ServerInfo) -> str:
    """A server that is none of ours to touch, in one line."""
    return f"process {server.main.pid} on port {server.port}, as {server.user}, {managed(server.manager)}"


def order_line(order: wire.OrderStatus, now: float | None = None) -> str:
    """The newest order in one line."""
    at_work = "at work" if order.live else "ended"
    return f"{order.kind} {order.order_id} by {order.operator}: {order.state}, {at_work}, since {moment(order.since, now)}"


def gpu_lines(gpus: Sequence[wire.Gpu]) -> list[str]:
    """GPUs short: one line a kind, then the memory of each."""
    kinds = Counter((gpu.name, gpu.compute_capability) for gpu in gpus)
    lines = [f"{number} x {name}, compute capability {capability}" for (name, capability), number in kinds.items()]
    memory = "  ".join(f"{gpu.index}:{gpu.memory_used / 1024:.1f}/{gpu.memory_total / 1024:.1f}" for gpu in gpus)
    return [*lines, f"memory used, GiB  {memory}"]


def _headed(heading: str, lines: Sequence[str]) -> list[Block]:
    first, *rest = lines
    return [Line(f"{heading:<8}{first}"), *indented([f"    {line}" for line in rest])]
