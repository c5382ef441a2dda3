"""The status screen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.command_lines import gate_port
from orchestrator.agent.wire_words import at_work, gpu_held_by, held_by, locked_by, managed
from orchestrator.cli.blocks import Block, Line, Tone, indented
from orchestrator.cli.boot_text import comes_back_blocks
from orchestrator.cli.hook_text import notice_line
from orchestrator.cli.text import moment, server_command, server_lines, verdict_blocks

if TYPE_CHECKING:
    from orchestrator.flows.status import BootTuning, RankStatus

_HEALTH_TONES: dict[str, Tone] = {"serving": "good", "starting": "warn", "unhealthy": "bad", "silent": "bad", "down": "bad"}


_BOOT_WORDS = {"active": "applied at this boot", "failed": "FAILED at this boot", "inactive": "not run in this boot"}
_BOOT_LINES = 5


def status_blocks(service: str, place: str, report: wire.SurveyReport, boot: BootTuning, now: float | None = None) -> list[Block]:
    """One screen: the server, its health, the GPUs, the newest order, who else is there, and what tunes the host at boot."""
    version = f", SGLang {report.sglang_version}" if report.sglang_version else ""
    blocks: list[Block] = [
        Line(f"{service} in {place}{version}", "strong"),
        Line(f"health  {report.health}", _HEALTH_TONES.get(report.health, "warn")),
    ]
    blocks += _headed("server", server_lines(report.server, now) if report.server is not None else ["none"])
    if report.server is not None:
        blocks += indented([f"    {server_command(report.server)}"], whole=True)
    if report.boot is not None or (report.server is not None and report.server.manager.kind != wire.ManagerKind.SYSTEMD_UNIT):
        blocks += comes_back_blocks(report.boot, now)
    if report.lock is not None:
        blocks += [Line(f"lock    {locked_by(service, report.lock)}", "warn")]
    if report.order is not None:
        blocks += _headed("order", order_lines(report.order, now))
    blocks += [Line(f"gpus    {gpu_held_by(lock)}", "warn") for lock in report.gpu_locks]
    if report.gpus:
        blocks += _headed("gpus", gpu_lines(report.gpus))
    others = [other_line(server) for server in report.others]
    if others:
        blocks += _headed("others", others)
    notable = [verdict for verdict in report.verdicts if verdict.outcome != wire.Outcome.PASS]
    return [*blocks, *boot_blocks(boot), *verdict_blocks(notable)]


def boot_blocks(boot: BootTuning) -> list[Block]:
    """What brings the host to a tuning profile at boot, and how that went; quiet where nothing does or nobody can say."""
    found = boot.persistence
    if boot.problem is not None:
        return [Line(f"{'boot':<8}what tunes {boot.host} is not known: {boot.problem}", "quiet")]
    if found is None:
        return [Line(f"{'boot':<8}nothing is applied on {boot.host}", "quiet")]
    at_boot = "" if found.enabled else ", not enabled: the next boot will not apply it"
    failed = found.state == "failed" or found.problem is not None
    tone: Tone = "bad" if failed else "" if found.state == "active" and found.enabled else "warn"
    words = _BOOT_WORDS.get(found.state, f"state {found.state}")
    blocks: list[Block] = [Line(f"{'boot':<8}{found.profile} on {boot.host}: {words} by {found.unit}{at_boot}", tone)]
    if found.problem is not None:
        blocks.append(Line(f"        {found.problem}", "bad"))
    blocks += indented([f"    {line}" for line in found.said[-_BOOT_LINES:]], "quiet")
    blocks += indented([f"    {note}" for note in found.notes], "quiet")
    at = f"--host {boot.host}" if found.profile == "unknown" else f"--profile {found.profile} --host {boot.host}"
    if found.problem is not None or not found.enabled:
        blocks.append(Line(f"        -> fab prep --unpersist --host {boot.host} && fab prep --persist {at}", whole=True))
    elif tone:
        blocks.append(Line(f"        -> fab prep --check {at}", whole=True))
    return blocks


def rank_blocks(service: str, rank: int, others: Sequence[RankStatus]) -> list[Block]:
    """Which node of a service over several was shown, and one line for each other one."""
    if not others:
        return []
    blocks: list[Block] = [Line(f"ranks   this is rank {rank}; rank 0 takes the requests")]
    for other in others:
        found = other.survey
        if found is None:
            blocks.append(Line(f"        rank {other.rank} in {other.place}: not known: {other.problem}", "bad"))
            continue
        server = "no server" if found.server is None else f"process {found.server.main.pid} on port {found.server.port}"
        launch = "" if found.server is None or found.server.launch_id is None else f", launch {found.server.launch_id}"
        text = f"        rank {other.rank} in {other.place}: {found.health}, {server}{launch}"
        blocks.append(Line(text, _HEALTH_TONES.get(found.health, "warn")))
        if found.order is not None and (found.order.live or found.order.half_done):
            blocks.append(Line(f"        -> fab attach --host {other.host} --service {service}", whole=True))
    return blocks


def other_line(server: wire.ServerInfo) -> str:
    """A server that is none of ours to touch, or that is staged beside ours, in one line."""
    gate = None if server.listening else gate_port(server.arguments)
    where = f"on port {server.port}" if gate is None else f"for port {server.port}, staged at port {gate} or loading since"
    return f"process {server.main.pid} {where}, as {server.user}, {managed(server.manager)}"


def order_lines(order: wire.OrderStatus, now: float | None = None) -> list[str]:
    """The order at work, or the newest: whose, since when, in which state and since when in that, how often it was taken up again."""
    lines = [f"{order.kind} {order.order_id} by {order.operator}: {order.state}, {_standing(order)}, since {moment(order.since, now)}"]
    if order.live and order.began:
        lines.append(f"begun {moment(order.began, now)}")
    if order.resumed:
        times = "once" if order.resumed == 1 else f"{order.resumed} times"
        lines.append(f"taken up again {times}, after its supervisor was ended")
    if order.reason:
        lines.append(f"reason: {order.reason}")
    if order.notice is not None:
        lines.append(notice_line(order.notice)[0])
    if order.live or order.half_done:
        lines.append(f"-> fab {'attach' if order.live else 'resume'} --service {order.service}")
    return lines


def _standing(order: wire.OrderStatus) -> str:
    if order.live:
        return "at work"
    if order.half_done:
        return "half-done, and nobody works on it"
    return "cut off before it touched anything" if order.state.startswith("INTERRUPTED") else "ended"


def lock_blocks(service: str, found: wire.LockStatus) -> list[Block]:
    """Who keeps changes of a service away, one line each."""
    lines: list[Block] = []
    if found.person is not None:
        lines.append(Line(locked_by(service, found.person), "warn"))
    if found.order is not None and found.order.live:
        lines.append(Line(at_work(found.order), "warn"))
    if found.order is not None and found.order.half_done:
        lines.append(Line(f"{found.order.kind} {found.order.order_id} reads {found.order.state}: it comes to its end first", "bad"))
    lines += [Line(gpu_held_by(lock), "warn") for lock in found.gpus]
    if found.preparing is not None:
        lines.append(Line(f"the knobs of this machine are being changed {held_by(found.preparing)}", "warn"))
    return lines or [Line(f"{service} is free", "good")]


def released_blocks(service: str, released: wire.PersonLock | None, operator: str) -> list[Block]:
    """What a release has ended."""
    if released is None:
        return [Line(f"nobody had locked {service}", "quiet")]
    if released.operator == operator:
        return [Line(f"{service} is free again", "good")]
    return [Line(f"{service} is free again. The lock was not yours: {held_by(released)}", "warn")]


def gpu_lines(gpus: Sequence[wire.Gpu]) -> list[str]:
    """GPUs short: one line a kind, then the memory of each."""
    kinds = Counter((gpu.name, gpu.compute_capability) for gpu in gpus)
    lines = [f"{number} x {name}, compute capability {capability}" for (name, capability), number in kinds.items()]
    memory = "  ".join(f"{gpu.index}:{gpu.memory_used / 1024:.1f}/{gpu.memory_total / 1024:.1f}" for gpu in gpus)
    return [*lines, f"memory used, GiB  {memory}"]


def _headed(heading: str, lines: Sequence[str]) -> list[Block]:
    first, *rest = lines
    return [Line(f"{heading:<8}{first}"), *indented([f"    {line}" for line in rest])]
