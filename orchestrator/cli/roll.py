"""roll: relaunch the replicas behind a router one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.change import DRIFT_FLAG, SEQUENTIAL_FLAG, named_backend
from orchestrator.cli.common import GRACE_FLAG, SHARED_FLAGS, WAIT_FLAG, asked, interruption, load, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import RefusedError, ServiceDownError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.config import Inventory, Router
    from orchestrator.flows.roll import Roll
    from orchestrator.flows.roll_plan import Fleet, RollPlan
    from orchestrator.results.roll_journal import RollJournal
    from orchestrator.results.sweep_records import Allowed

SCHEMA = "orchestrator.roll/1"
RESULT = "roll.json"
_CHANGE = ("backend", "service", "accept_drift", "force", "sequential", "grace", "reason")
"""What a roll that is taken up again was begun with."""


@verb(
    flags={
        "backend": "Backend profile, with overlays if wanted, that every replica is to serve with (see: fab backends).",
        "router": "Router, by its inventory name; not needed when there is one, or with --service.",
        "service": "Only these replicas, by their services, with commas.",
        "resume": "Take up a roll again that was cut off: its run folder, or without a value the newest of the router.",
        "repair": "Have in again what the router's list lacks and serves, and nothing else.",
        "force": "Overrule refused checks, except those that protect somebody else's work. With --repair: give up the roll that stands.",
        "plan": "Show what would be done and stop.",
        "yes": "Do not ask.",
        "reason": "Why, for the journals and for whoever looks next.",
        **SEQUENTIAL_FLAG,
        **GRACE_FLAG,
        **DRIFT_FLAG,
        **WAIT_FLAG,
        **SHARED_FLAGS,
    },
    optional=("resume",),
)
def roll(
    call: Call,
    backend: str | None = None,
    router: str | None = None,
    service: str | None = None,
    resume: str | bool | None = None,
    repair: bool = False,
    accept_drift: bool = False,
    force: bool = False,
    sequential: bool = False,
    grace: str | None = None,
    plan: bool = False,
    yes: bool = False,
    reason: str = "",
    wait: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Relaunch the replicas behind a router one after the other, each out of the router meanwhile; stop at the first that fails."""
    from orchestrator.results.sweep_records import Allowed

    said = {name: value for name, value in locals().items() if value}
    given = [name for name in _CHANGE if name in said]
    allowed = Allowed(accept_drift, force, sequential, seconds("grace", grace), seconds("wait", wait) or 0.0, reason)
    loaded = load(inventory)
    services = None if service is None else [part.strip() for part in service.split(",") if part.strip()]
    call.interrupted = "interrupted; nothing was touched"
    call.screen.note(f"inventory {loaded.label}")
    fleet = fleet_of(call, loaded, choose_router(loaded, router, services))
    if repair:
        unfit = [name for name in given if name != "force"]
        _refuse("--repair has the router's list mended and changes no server", [*unfit, *(["resume"] if resume else [])])
        return _repair(call, fleet, give_up=force, plan_only=plan, yes=yes)
    if resume is not None:
        _refuse("--resume goes on with what the roll was begun with", given)
        return _resume(call, fleet, resume if isinstance(resume, str) else None, plan_only=plan, yes=yes)
    return _begin(call, fleet, named_backend(backend, loaded), services, allowed, plan_only=plan, yes=yes)


def choose_router(inventory: Inventory, name: str | None, services: Sequence[str] | None) -> Router:
    """The router that is meant.

    Raises:
        UsageError: there is none, or there are several.
    """
    if name is not None:
        return inventory.router(name)
    if services:
        found = inventory.router_of(inventory.service(services[0]).name)
        if found is None:
            step = f"write one: {inventory.directory}/routers/NAME.yml"
            raise UsageError(f"service {services[0]} is behind no router of the inventory", next_step=step)
        return found
    if len(inventory.routers) == 1:
        return next(iter(inventory.routers.values()))
    if not inventory.routers:
        step = f"write one: {inventory.directory}/routers/NAME.yml"
        raise UsageError("there is no router in the inventory", evidence=[f"inventory: {inventory.label}"], next_step=step)
    raise UsageError("which router? Say it with --router NAME", evidence=[f"routers: {', '.join(inventory.routers)}"])


def fleet_of(call: Call, inventory: Inventory, router: Router) -> Fleet:
    """The replicas behind the router, and the router with its key."""
    from orchestrator.flows.roll_plan import Fleet
    from orchestrator.flows.router import reach

    reached = reach(inventory, router)
    if reached.address.key is not None:
        call.redactor.add([reached.address.key])
    return Fleet(inventory, router, reached)


def _refuse(why: str, given: Sequence[str]) -> None:
    if given:
        flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in given)
        raise UsageError(f"{why}; {flags} can't be given with it", next_step="leave it out")


def _begin(call: Call, fleet: Fleet, backend: str, services: Sequence[str] | None, allowed: Allowed, *, plan_only: bool, yes: bool) -> int:
    from orchestrator.flows.roll import begin
    from orchestrator.flows.roll_plan import chosen_replicas, plan_roll
    from orchestrator.results.roll_journal import FILE, RollJournal, unfinished

    profiles = fleet.inventory.backends_named(backend)
    earlier = unfinished(fleet.router.name)
    if earlier is not None:
        call.screen.warn(f"the roll {earlier.name} has not finished: {fleet.command(f'--resume {earlier.name}')} goes on with it")
    replicas = chosen_replicas(fleet.router, services)
    planned = plan_roll(fleet, backend, profiles, replicas, allowed, call.screen, note=call.screen.note)
    if not _settled(call, planned, plan_only=plan_only, yes=yes):
        return 0
    folder = call.keep_run(fleet.router.name)
    folder.begin()
    with RollJournal(folder.path / FILE, call.redactor) as journal:
        begin(journal, planned, allowed)
        return _carry_on(call, _hands(call, fleet, journal, yes=yes), fleet)


def _resume(call: Call, fleet: Fleet, name: str | None, *, plan_only: bool, yes: bool) -> int:
    from orchestrator.flows.roll import begin
    from orchestrator.flows.roll_plan import plan_roll
    from orchestrator.results.roll_journal import FILE, RollJournal, find_roll
    from orchestrator.results.runs import RunFolder

    path = find_roll(name, fleet.router.name)
    call.screen.note(f"taking up {path.name}")
    with RollJournal(path / FILE, call.redactor) as journal:
        call.run = RunFolder.reopen(path, call.redactor, call.screen.warn)
        hands = _hands(call, fleet, journal, yes=yes)
        if not plan_only:
            hands.finish_turn()
        standing = journal.standing
        backend = standing.begun.backend
        planned = plan_roll(
            fleet,
            backend,
            fleet.inventory.backends_named(backend),
            standing.to_take,
            standing.begun.allowed,
            call.screen,
            standing,
            call.screen.note,
        )
        if not _settled(call, planned, plan_only=plan_only, yes=yes):
            return 0
        begin(journal, planned, standing.begun.allowed)
        return _carry_on(call, hands, fleet)


def _hands(call: Call, fleet: Fleet, journal: RollJournal, *, yes: bool) -> Roll:
    from orchestrator.cli.sweep_view import SweepView
    from orchestrator.flows.roll import Roll
    from orchestrator.results.runs import RunFolders

    def folders(service: str) -> RunFolders:
        return RunFolders([fleet.target(service).host.name, service], call.redactor, call.screen.warn)

    profiles = fleet.inventory.backends_named(journal.standing.begun.backend)
    view = SweepView(call.screen)
    take_up = lambda what: asked(call, f"{what}; bring it to its end first?", yes=yes)  # noqa: E731
    return Roll(fleet, profiles, journal, view, folders, interruption(call), take_up)


def _settled(call: Call, planned: RollPlan, *, plan_only: bool, yes: bool) -> bool:
    """Show the plan; whether it is to be done.

    Raises:
        RefusedError: something speaks against it, or whoever was asked said no.
    """
    from orchestrator.cli.roll_text import plan_blocks, plan_document

    call.screen.show(plan_blocks(planned))
    if planned.refusals:
        raise RefusedError("refused, nothing was touched", evidence=list(planned.refusals), next_step=planned.next_step)
    if plan_only:
        call.answer(plan_document(planned))
        return False
    if planned.to_change and not asked(call, f"roll {len(planned.to_change)} replicas behind router {planned.router} now?", yes=yes):
        raise RefusedError("not confirmed, nothing was touched")
    return True


def _carry_on(call: Call, hands: Roll, fleet: Fleet) -> int:
    from orchestrator.cli.documents.envelope import plain
    from orchestrator.cli.roll_text import roll_blocks, roll_document

    call.screen.outlives_reader = True
    call.interrupted = "interrupted"
    standing = hands.carry_on()
    answer = roll_document(standing)
    assert call.run is not None
    call.run.keep(RESULT, {"schema": SCHEMA, **plain(answer), "exit_code": standing.exit_code})
    call.screen.close()
    call.screen.show(roll_blocks(standing, fleet.command("--backend", standing.begun.backend)))
    call.answer(answer)
    return standing.exit_code


def _repair(call: Call, fleet: Fleet, *, give_up: bool, plan_only: bool, yes: bool) -> int:
    from orchestrator.cli.documents.rolls import Repaired
    from orchestrator.cli.roll_text import question, repair_blocks
    from orchestrator.flows.roll_repair import Finding, plan_repair, repair

    planned = plan_repair(fleet, call.screen.note)
    call.screen.show(repair_blocks(planned))
    code = ServiceDownError.exit_code if planned.left else 0
    ends = give_up and planned.rolling is not None
    if plan_only or not (planned.to_mend or ends):
        call.answer(Repaired(planned, []))
        return code
    if not asked(call, question(planned, ends=ends), yes=yes):
        raise RefusedError("not confirmed, nothing was touched")
    mended: list[str] = []

    def done(finding: Finding) -> None:
        mended.append(finding.service)
        call.screen.event(f"{finding.service} is in the router again", "good")

    repair(fleet, planned, call.screen, done, give_up=give_up)
    call.answer(Repaired(planned, mended))
    return code
