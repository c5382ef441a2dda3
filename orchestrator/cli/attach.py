"""attach, resume: an order that was begun elsewhere, or earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.common import TARGET_FLAGS, choose, interruption
from orchestrator.cli.edge import Call, verb

if TYPE_CHECKING:
    from orchestrator.agent.wire import OrderResult, OrderStatus
    from orchestrator.flows.observer import Observers
    from orchestrator.flows.target import Target

_ORDER_FLAGS = {"order": "Which change, by its order's id (fab status); else the one under way, or the newest.", **TARGET_FLAGS}


@verb(flags=_ORDER_FLAGS)
def attach(
    call: Call,
    order: str | None = None,
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Watch a change that was begun elsewhere or earlier, from its beginning to its end; the exit code is the change's."""
    from orchestrator.flows.attach import attach as run

    target = choose(inventory, host, service)
    return _finish(call, target, run(target, order, _observe(call, target), lambda found: _begin(call, found), interruption(call)))


@verb(flags=_ORDER_FLAGS)
def resume(
    call: Call,
    order: str | None = None,
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Take up a change that fab status shows as INTERRUPTED: it finishes or rolls back, as its journal on the box says."""
    from orchestrator.flows.attach import resume as run

    target = choose(inventory, host, service)
    call.screen.outlives_reader = True
    return _finish(call, target, run(target, order, _observe(call, target), lambda found: _begin(call, found), interruption(call)))


def _observe(call: Call, target: Target) -> Observers:
    from orchestrator.flows.observer import Observers

    call.interrupted = "interrupted; nothing was touched"
    call.screen.note(f"inventory {target.inventory.label}")
    return Observers([call.screen, call.keep_run(target.host.name, target.service.name)])


def _begin(call: Call, order: OrderStatus) -> None:
    assert call.run is not None
    call.run.keep("order.json", order)
    call.run.begin()


def _finish(call: Call, target: Target, result: OrderResult) -> int:
    from orchestrator.cli.documents.changes import Watched
    from orchestrator.cli.text import commands, pages_on

    see = commands(pages_on(result))
    call.answer(Watched(target.host.name, target.service.name, result, call.screen.hooks, call.screen.noticed, see))
    return result.exit_code
