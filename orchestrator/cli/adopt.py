"""adopt: take over a server that somebody started by hand."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from orchestrator.cli.called import as_typed
from orchestrator.cli.common import CHANGE_FLAGS, confirmation, count, load
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory

_FLAGS = {name: text for name, text in CHANGE_FLAGS.items() if name not in ("wait", "reason")}


@verb(
    flags={
        "port": "The port that the server listens on; else the service's, else 30000.",
        "print": "Only print the service file: nothing is written anywhere.",
        **_FLAGS,
        "service": "The name of the service; else one made of the model's.",
    }
)
def adopt(
    call: Call,
    port: str | None = None,
    print: bool = False,  # noqa: A002  # the flag's name
    host: str | None = None,
    service: str | None = None,
    plan: bool = False,
    yes: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Write a service file from a server that was started by hand, and keep what it takes to bring it back."""
    from orchestrator.cli.adopt_text import adopted_blocks, adoption_blocks, file_blocks
    from orchestrator.cli.documents.changes import Adopted
    from orchestrator.flows.adopt import adopt as keep
    from orchestrator.flows.adopt import examine

    loaded = load(inventory)
    call.interrupted = "interrupted; nothing was written"
    call.screen.note(f"inventory {loaded.label}")
    adoption = examine(loaded, _host(loaded, host, service), service, None if port is None else count("port", port), call.screen)
    adoption = dataclasses.replace(adoption, file=dataclasses.replace(adoption.file, text=as_typed(adoption.file.text)))
    target = adoption.target
    answer = Adopted(
        host=target.host.name,
        service=target.service.name,
        report=adoption.report,
        path=str(adoption.path),
        text=adoption.file.text,
        remarks=list(adoption.remarks),
        rollback=adoption.rollback,
    )
    if print or plan:
        call.screen.show(file_blocks(adoption) if print else adoption_blocks(adoption))
        call.answer(answer)
        return 0
    call.screen.show(adoption_blocks(adoption))
    if not confirmation(call, yes=yes)(adoption.plan):
        raise RefusedError("not confirmed, nothing was written")
    call.interrupted = "interrupted; fab rollback --list shows whether the box has kept a record"
    report = keep(adoption, call.screen)
    call.screen.show(adopted_blocks(adoption, report))
    recorded = None if report is None else report.recorded
    answers_kept = report is not None and report.answers_kept
    call.answer(dataclasses.replace(answer, written=not adoption.exists, recorded=recorded, answers_kept=answers_kept))
    return 0


def _host(inventory: Inventory, host: str | None, service: str | None) -> Host:
    """The host that is meant; of a service that exists, its own."""
    if host is not None:
        return inventory.host(host)
    known = inventory.services.get(service) if service is not None else None
    if known is not None:
        return inventory.host(known.host)
    if len(inventory.hosts) == 1:
        return next(iter(inventory.hosts.values()))
    raise UsageError(
        "which host? Say it with --host NAME", evidence=[f"hosts: {', '.join(inventory.hosts) or 'none'}"], next_step="fab hosts"
    )
