"""status, logs, doctor: reading without changing."""

from __future__ import annotations

from orchestrator.cli.blocks import Line
from orchestrator.cli.common import TARGET_FLAGS, choose, count, load
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
    """Show what runs, how it is, the newest order, and what tunes the host at boot. Reports, and judges nothing."""
    from orchestrator.cli.status_text import boot_blocks, rank_blocks, status_blocks
    from orchestrator.flows.status import host_status
    from orchestrator.flows.status import status as ask
    from orchestrator.flows.target import choose_subject

    loaded = load(inventory)
    subject, target = choose_subject(loaded, host, service)
    inventory_line = Line(f"inventory  {loaded.label}", "quiet")
    if target is None:
        boot = host_status(loaded, subject)
        call.screen.show([Line(f"{subject.name}: no service in the inventory", "strong"), *boot_blocks(boot), inventory_line])
        call.document(inventory=str(loaded.directory), host=subject.name, place=None, service=None, report=None, boot=boot)
        return
    found = ask(target)
    ranks = rank_blocks(target.service.name, target.rank, found.ranks)
    call.screen.show([*status_blocks(target.service.name, target.place, found.survey, found.boot), *ranks, inventory_line])
    call.document(
        inventory=str(target.inventory.directory),
        host=target.host.name,
        place=target.place,
        service=target.service.name,
        report=found.survey,
        boot=found.boot,
        **({"rank": target.rank, "ranks": found.ranks} if found.ranks else {}),
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
    """Diagnose host, container and service, and change nothing; 3 when a relaunch would be refused."""
    from orchestrator.cli.doctor_text import diagnosis_blocks
    from orchestrator.flows.doctor import doctor as diagnose
    from orchestrator.flows.target import choose_subject

    loaded = load(inventory)
    subject, target = choose_subject(loaded, host, service)
    named = backend or (target.service.backend if target is not None else None) or "auto"
    profiles = loaded.backends_named(named) if target is not None or backend is not None else []
    found = diagnose(loaded, subject, target, profiles, call.screen)
    call.screen.show([Line(f"inventory {loaded.label}", "quiet"), *diagnosis_blocks(found)])
    call.document(host=subject.name, service=target.service.name if target is not None else None, report=found, exit_code=found.exit_code)
    return found.exit_code
