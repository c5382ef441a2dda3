"""status, logs, doctor: reading without changing."""

from __future__ import annotations

from orchestrator.cli.blocks import Line
from orchestrator.cli.common import FLEET_TARGET_FLAGS, TARGET_FLAGS, count, forks_of, load
from orchestrator.cli.edge import Call, verb
from orchestrator.cli.fleet import ask_many, several
from orchestrator.errors import UsageError


@verb(flags=FLEET_TARGET_FLAGS, many_hosts=True)
def status(
    call: Call,
    host: str | None = None,
    service: str | None = None,
    all: bool = False,  # noqa: A002  # the flag's name
    forks: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Show what runs, how it is, the newest change, and what tunes the host at boot. Reports, and judges nothing.

    fab status                         the one service, in full
    fab status --host gpu1,gpu2        a line each; so for a group of hosts.yml
    fab status --all                   every service of the inventory
    """
    from orchestrator.cli import fleet_views
    from orchestrator.cli.documents.reading import Status
    from orchestrator.cli.status_text import boot_blocks, rank_blocks, status_blocks
    from orchestrator.flows.status import host_status
    from orchestrator.flows.status import status as ask
    from orchestrator.flows.target import choose_subject

    loaded = load(inventory)
    subjects = several(call, loaded, host, service, all=all)
    if subjects is not None:
        return ask_many(call, loaded, subjects, fleet_views.status_view(loaded), forks_of(forks))
    subject, target = choose_subject(loaded, host, service)
    inventory_line = Line(f"inventory  {loaded.label}", "quiet")
    if target is None:
        boot = host_status(loaded, subject)
        call.screen.show([Line(f"{subject.name}: no service in the inventory", "strong"), *boot_blocks(boot), inventory_line])
        call.answer(Status(str(loaded.directory), subject.name, None, None, None, boot))
        return 0
    found = ask(target)
    ranks = rank_blocks(target.service.name, target.rank, found.ranks)
    call.screen.show([*status_blocks(target.service.name, target.place, found.survey, found.boot), *ranks, inventory_line])
    rank = target.rank if found.ranks else None
    about = (str(loaded.directory), target.host.name, target.place, target.service.name)
    call.answer(Status(*about, found.survey, found.boot, rank, list(found.ranks)))
    return 0


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
    from orchestrator.cli.documents.reading import Log
    from orchestrator.flows.status import logs as read
    from orchestrator.flows.target import choose_target

    if follow and call.as_json:
        raise UsageError(
            "--follow shows lines as they come, and a JSON document is written at the end", next_step="leave out one of the two"
        )
    kept: list[str] = []
    number = count("lines", lines)
    loaded = load(inventory)
    if host is not None and loaded.names_several(host):
        raise UsageError(
            f"logs are read one server at a time, and {host!r} names several: lines of several would tell nothing in one stream",
            next_step="fab status --host " + host + "   # which of them to look at; then fab logs --host NAME",
        )
    target = choose_target(loaded, host, service)
    call.interrupted = ""
    say = kept.append if call.as_json else call.screen.log

    def note(text: str) -> None:
        call.screen.error([Line(text, "quiet")])

    end = read(target, say, lines=number, follow=follow, launch_id=launch, note=note)
    call.answer(Log(target.host.name, target.service.name, end.launch_id, end.path, kept))


@verb(flags={"backend": "Backend profile to check for; else the service's own.", **FLEET_TARGET_FLAGS}, many_hosts=True)
def doctor(
    call: Call,
    backend: str | None = None,
    host: str | None = None,
    service: str | None = None,
    all: bool = False,  # noqa: A002  # the flag's name
    forks: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Diagnose host, container and service, and change nothing. Exit code 3: a relaunch would be refused."""
    from orchestrator.cli import fleet_views
    from orchestrator.cli.doctor_text import diagnosis_blocks
    from orchestrator.cli.documents.diagnosis import Doctor
    from orchestrator.flows.doctor import doctor as diagnose
    from orchestrator.flows.target import choose_subject

    loaded = load(inventory)
    subjects = several(call, loaded, host, service, all=all)
    if subjects is not None:
        return ask_many(call, loaded, subjects, fleet_views.doctor_view(loaded, backend, call.screen.hide), forks_of(forks))
    subject, target = choose_subject(loaded, host, service)
    named = backend or (target.service.backend if target is not None else None) or "auto"
    profiles = loaded.backends_named(named) if target is not None or backend is not None else []
    found = diagnose(loaded, subject, target, profiles, call.screen)
    call.screen.show([Line(f"inventory {loaded.label}", "quiet"), *diagnosis_blocks(found)])
    call.answer(Doctor(subject.name, target.service.name if target is not None else None, found))
    return found.exit_code
