"""boot: what starts the server again after a crash or a reboot."""

from __future__ import annotations

from orchestrator.cli.blocks import Line
from orchestrator.cli.common import FLEET_TARGET_FLAGS, forks_of, load
from orchestrator.cli.edge import Call, verb
from orchestrator.cli.fleet import ask_many, several
from orchestrator.errors import UsageError


@verb(
    flags={
        "on": "Write the unit from the launch that serves.",
        "off": "Remove the unit: the next crash or reboot is the end of the server.",
        **FLEET_TARGET_FLAGS,
    },
    many_hosts=True,
)
def boot(
    call: Call,
    on: bool = False,
    off: bool = False,
    host: str | None = None,
    service: str | None = None,
    all: bool = False,  # noqa: A002  # the flag's name
    forks: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Show what starts the server again after a crash or a reboot; --on writes it, --off removes it."""
    from orchestrator.agent.wire_launches import BootAction
    from orchestrator.cli import fleet_views
    from orchestrator.cli.boot_text import comes_back_lines, verdict_lines
    from orchestrator.cli.documents.changes import Boot
    from orchestrator.flows.boot import boot as ask
    from orchestrator.flows.target import choose_target

    if on and off:
        raise UsageError("--on and --off at the same time", next_step="leave out one of the two")
    action = BootAction.ON if on else BootAction.OFF if off else BootAction.SHOW
    loaded = load(inventory)
    subjects = several(call, loaded, host, service, all=all, only_services=True)
    if subjects is not None:
        return ask_many(call, loaded, subjects, fleet_views.boot_view(action), forks_of(forks))
    target = choose_target(loaded, host, service)
    call.screen.note(f"inventory {target.inventory.label}")
    if on or off:
        call.interrupted = f"interrupted; whether anything was changed: {target.command('boot')}"
    report = ask(target, action)
    call.screen.show([Line(f"{target.service.name} in {target.place}", "strong")])
    call.screen.show([Line(line) for line in comes_back_lines(report.unit)])
    call.screen.show([Line(line, "warn") for line in verdict_lines(report.verdicts)])
    if off and target.service.boot is not False:
        call.screen.show([Line("the next launch that is verified writes it again, unless the service's file says boot: false")])
    code = 1 if on and report.verdicts else 0
    call.answer(Boot(target.host.name, target.service.name, report))
    return code
