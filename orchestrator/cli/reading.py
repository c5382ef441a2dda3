"""status, logs, doctor: reading without changing."""

from __future__ import annotations

from orchestrator.cli.blocks import Line
from orchestrator.cli.common import TARGET_FLAGS, choose, count
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError


@verb(flags=TARGET_FLAGS)
def status(
    call: Call,
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show what runs, how it is, and the newest order."""
    from orchestrator.cli.status_text import status_blocks
    from orchestrator.flows.status import status as ask

    target = choose(inventory, host, service)
    report = ask(target)
    inventory_line = Line(f"inventory  {target.inventory.label}", "quiet")
    call.screen.show([*status_blocks(target.service.name, target.place, report), inventory_line])
    call.document(
        inventory=str(target.inventory.directory), host=target.host.name, place=target.place, service=target.service.name, report=report
    )


@verb(
    flags={
        "follow": "Go on with what is added, and with the launches after it, until Ctrl-C; with --launch until that one has ended.",
        "lines": "How many lines from the end.",
        "launch": "The launch whose log it is, by its id; else the newest.",
        **TARGET_FLAGS,
    }
)
def logs(
    call: Call,
    follow: bool = False,
    lines: str = "200",
    launch: str | None = None,
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the server's log, secrets masked."""
    from orchestrator.flows.status import logs as read

    if follow and call.as_json:
        raise UsageError(
            "--follow shows lines as they come, and a JSON document is written at the end", next_step="leave out one of the two"
        )
    kept: list[str] = []
    number = count("lines", lines)
    target = choose(inventory, host, service)
    call.interrupted = ""
    say = kept.append if call.as_json else call.screen.log

    def note(text: str) -> None:
        call.screen.error([Line(text, "quiet")])

    end = read(target, say, lines=number, follow=follow, launch_id=launch, note=note)
    call.document(launch_id=end.launch_id, path=end.path, lines=kept)


@verb(flags={"backend": "Backend profile to check for; else the service's own.", **TARGET_FLAGS})
def doctor(
    call: Call,
    backend: str | None = None,
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Check everything that a relaunch checks, and change nothing; 3 when it would be refused."""
    from orchestrator.cli.text import verdict_blocks
    from orchestrator.errors import RefusedError
    from orchestrator.flows.status import check_up

    target = choose(inventory, host, service)
    found = check_up(target, target.inventory.backends_named(backend or target.service.backend or "auto"), call.screen)
    facts = found.facts
    kind = f"{facts.container} container" if facts.container else "no container"
    heading = f"{target.place}: {facts.host_name}, {kind}, kernel {facts.kernel}, Python {facts.python}, user {facts.user_id}"
    call.screen.show(
        [
            Line(heading, "strong"),
            Line(f"inventory {target.inventory.label}", "quiet"),
            *verdict_blocks(found.verdicts),
            *([Line(f"  refuse  {found.problem}", "bad")] if found.problem else []),
        ]
    )
    code = RefusedError.exit_code if found.refused else 0
    call.document(report=found, exit_code=code)
    return code
