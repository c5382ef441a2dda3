"""The launches that a box remembers, as blocks. Pure."""

from __future__ import annotations

from orchestrator.agent.wire_launches import KnownLaunch, LaunchesReport
from orchestrator.agent.wire_words import managed
from orchestrator.cli.blocks import Block, Line, Table
from orchestrator.cli.text import moment
from orchestrator.flows.target import Target


def launches_blocks(target: Target, report: LaunchesReport, now: float | None = None) -> list[Block]:
    """One row a launch, and where a rollback would go."""
    blocks: list[Block] = [Line(f"launches of {target.service.name} in {target.place}", "strong")]
    if report.launches:
        rows = [_row(item, report.previous, now) for item in report.launches]
        blocks.append(Table(["launch", "backend", "verified", "tok/s", ""], rows, right=frozenset({"tok/s"})))
    else:
        blocks.append(Line("the box remembers none"))
    server = report.server
    if server is None:
        blocks.append(Line("nothing serves now"))
    elif not any(item.serves for item in report.launches):
        blocks.append(Line(f"process {server.main.pid} serves now, {managed(server.manager)}: none of these"))
    if report.previous is None:
        return [*blocks, Line(f"nothing to go back to: {report.why}")]
    return [*blocks, Line(f"a rollback goes to {report.previous}", whole=True), Line(f"-> {target.command('rollback')}", whole=True)]


def _row(item: KnownLaunch, previous: str | None, now: float | None) -> list[str]:
    launch = item.launch
    mark = "serves now" if item.serves else "a rollback's" if launch.launch_id == previous else ""
    verified = moment(item.verified, now) if item.verified is not None else "never"
    speed = f"{item.timing.tokens_per_second:.2f}" if item.timing is not None else "-"
    return [launch.launch_id, launch.backend, verified, speed, mark]
