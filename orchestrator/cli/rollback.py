"""rollback: back to what served before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.change import SEQUENTIAL_FLAG, finish, observe
from orchestrator.cli.common import CHANGE_FLAGS, GRACE_FLAG, choose, confirmation, interruption, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.flows.target import Target


@verb(
    flags={
        "to": "Id of a launch that the box remembers; else the one verified last before the one that serves.",
        "list": "Show the launches that the box remembers, and stop.",
        "force": "Overrule refused checks, except those that protect somebody else's work.",
        "measure": "Time decoding before and after.",
        **SEQUENTIAL_FLAG,
        **GRACE_FLAG,
        **CHANGE_FLAGS,
    }
)
def rollback(
    call: Call,
    to: str | None = None,
    list: bool = False,  # noqa: A002  # the flag's name
    host: str | None = None,
    service: str | None = None,
    plan: bool = False,
    yes: bool = False,
    force: bool = False,
    sequential: bool = False,
    grace: str | None = None,
    measure: bool = True,
    reason: str = "",
    wait: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Replace the running server by a launch that served before, as the box remembers it."""
    from orchestrator.flows.order import Options
    from orchestrator.flows.rollback import rollback as run

    if list and to is not None:
        raise UsageError("--list shows all of them; --to names one", next_step="leave out one of the two")
    options = Options(
        plan,
        force=force,
        grace=seconds("grace", grace),
        measure=measure,
        reason=reason,
        wait=seconds("wait", wait) or 0.0,
        sequential=sequential,
    )
    target = choose(inventory, host, service)
    if list:
        return _list(call, target)
    observer = observe(call, target, keep=not plan)
    return finish(call, run(target, to, options, observer, confirmation(call, yes=yes), interruption=interruption(call)))


def _list(call: Call, target: Target) -> int:
    from orchestrator.cli.documents.changes import Launches
    from orchestrator.cli.launches_text import launches_blocks
    from orchestrator.flows.rollback import launches

    call.screen.note(f"inventory {target.inventory.label}")
    report = launches(target)
    call.screen.show(launches_blocks(target, report))
    call.answer(Launches(target.host.name, target.service.name, report))
    return 0
