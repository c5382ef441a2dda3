"""lock.acquire, lock.status, lock.release: a person's lock on a service."""

from __future__ import annotations

from orchestrator.cli.blocks import Line
from orchestrator.cli.common import FLEET_TARGET_FLAGS, TARGET_FLAGS, WAIT_FLAG, choose, forks_of, load, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.cli.fleet import ask_many, several
from orchestrator.errors import UsageError


@verb(
    title="lock.acquire",
    flags={"message": "Why, for whoever finds it locked.", **WAIT_FLAG, **TARGET_FLAGS},
    letters={"message": "m"},
)
def acquire(
    call: Call,
    message: str | None = None,
    wait: str | None = None,
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Keep changes of a service away, everybody's, until lock.release."""
    from orchestrator.cli.documents.changes import Lock
    from orchestrator.flows.locks import Patience
    from orchestrator.flows.locks import acquire as take

    if not message:
        raise UsageError("say why: whoever finds it locked will want to know", next_step="fab lock.acquire -m REASON")
    target = choose(inventory, host, service)
    call.interrupted = f"interrupted; whether {target.service.name} was locked: {target.command('lock.status')}"
    found = take(target, message, call.screen, Patience(seconds("wait", wait) or 0.0))
    call.screen.show([Line(f"{target.service.name} in {target.place} is locked", "good"), Line(f"next: {target.command('lock.release')}")])
    call.answer(Lock(target.host.name, target.service.name, found))


@verb(title="lock.status", flags=FLEET_TARGET_FLAGS, many_hosts=True)
def status(
    call: Call,
    host: str | None = None,
    service: str | None = None,
    all: bool = False,  # noqa: A002  # the flag's name
    forks: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Show who keeps changes of a service away: a person, a change under way, or a change of another service on its GPUs."""
    from orchestrator.cli import fleet_views
    from orchestrator.cli.documents.changes import Lock
    from orchestrator.cli.status_text import lock_blocks
    from orchestrator.flows.locks import status as look
    from orchestrator.flows.target import choose_target

    loaded = load(inventory)
    subjects = several(call, loaded, host, service, all=all, only_services=True)
    if subjects is not None:
        return ask_many(call, loaded, subjects, fleet_views.lock_view(), forks_of(forks))
    target = choose_target(loaded, host, service)
    found = look(target)
    call.screen.show(lock_blocks(target.service.name, found))
    call.answer(Lock(target.host.name, target.service.name, found))
    return 0


@verb(title="lock.release", flags=TARGET_FLAGS)
def release(call: Call, host: str | None = None, service: str | None = None, inventory: str | None = None, json: bool = False) -> None:
    """End the lock on a service, whoever's it is, and say whose it was."""
    from orchestrator.cli.documents.changes import Lock
    from orchestrator.cli.status_text import released_blocks
    from orchestrator.flows.locks import release as end
    from orchestrator.results.runs import operator_name

    target = choose(inventory, host, service)
    call.interrupted = f"interrupted; whether the lock on {target.service.name} was ended: {target.command('lock.status')}"
    found = end(target)
    call.screen.show(released_blocks(target.service.name, found.released, operator_name()))
    call.answer(Lock(target.host.name, target.service.name, found))
