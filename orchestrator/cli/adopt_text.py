"""What is written down of a server that somebody started by hand, as blocks. Pure."""

from __future__ import annotations

from orchestrator.agent.wire import Outcome
from orchestrator.agent.wire_launches import AdoptReport
from orchestrator.cli.blocks import Block, Line, indented
from orchestrator.cli.text import server_command, server_lines
from orchestrator.flows.adopt import Adoption


def file_blocks(adoption: Adoption) -> list[Block]:
    """The file alone."""
    return [Line(line, whole=True) for line in adoption.file.text.splitlines()]


def adoption_blocks(adoption: Adoption) -> list[Block]:
    """What would be done, before the question."""
    target, report = adoption.target, adoption.report
    blocks: list[Block] = [Line(f"adopt {target.service.name} in {target.place}", "strong"), *indented(server_lines(report.server))]
    blocks += [*indented([server_command(report.server)], whole=True), Line()]
    if adoption.exists:
        blocks += [Line(f"{adoption.path} or a service of this name exists and stays as it is; this would be in it", "warn")]
    else:
        blocks += [Line(f"{adoption.path}, new", "strong")]
    blocks += [*indented([line.text for line in file_blocks(adoption) if isinstance(line, Line)], whole=True), Line()]
    if adoption.unit is None:
        names = [*report.kept, *report.secret, *report.steering]
        blocks.append(Line(f"on the box, in one file of mode 600: its whole environment, {len(names)} variables"))
    blocks += [Line(f"note: {remark}") for remark in adoption.remarks]
    return [*blocks, _rollback(adoption), Line()]


def adopted_blocks(adoption: Adoption, report: AdoptReport | None) -> list[Block]:
    """What was done."""
    blocks: list[Block] = []
    if not adoption.exists:
        blocks.append(Line(f"written: {adoption.path}", "good", whole=True))
    if report is not None:
        blocks.append(Line(f"recorded on the box as launch {report.recorded}, proven to serve", "good"))
        blocks += _answers(report)
    blocks.append(_rollback(adoption))
    return [*blocks, Line(f"-> {adoption.target.command('relaunch', '--backend NAME', '--plan')}", whole=True)]


def _answers(report: AdoptReport) -> list[Block]:
    """Whether what it answers can be compared with later, and what of it looks wrong already."""
    wrong = [f"{item.check}: {item.detail}" for item in report.answers if item.outcome in (Outcome.WARN, Outcome.REFUSE)]
    if report.answers_kept:
        kept = Line("what it answered lies with it: later launches and timings are held against it")
    else:
        kept = Line("its answers could not be kept: no later timing is held against them", "warn")
    return [kept, *indented(wrong, "warn")]


def _rollback(adoption: Adoption) -> Line:
    if adoption.unit is not None:
        return Line(f"rollback: systemctl start {adoption.unit}")
    if adoption.rollback is not None:
        return Line(f"rollback: none: {adoption.rollback}", "warn")
    user = adoption.report.server.user
    return Line(f"rollback: to this server as it is, whose arguments its own Python accepts as {user}", "good")
