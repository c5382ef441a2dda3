"""relaunch, launch, teardown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.common import CHANGE_FLAGS, GRACE_FLAG, choose, confirmation, interruption, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.config import Inventory
    from orchestrator.flows.observer import Observer, Observers
    from orchestrator.flows.order import Outcome
    from orchestrator.flows.target import Target

LAUNCH_FLAGS = {
    "backend": "Backend profile, with overlays if wanted, such as flashinfer_cutedsl, or flashinfer_cutedsl+ep8 (see: fab backends).",
    "force": "Overrule refused checks, except those that protect somebody else's work.",
    "measure": "Time decoding before and after.",
    **CHANGE_FLAGS,
}
_NEW_ONLY = {
    "backend": LAUNCH_FLAGS["backend"].replace(" (see:", "; else the service's own (see:"),
    "measure": "Time decoding once the server is ready.",
}
SEQUENTIAL_FLAG = {
    "sequential": "Stop the old server before the new one is started, also where there is room for both; nothing serves for longer."
}
DRIFT_FLAG = {
    "accept-drift": "Go on although the running server differs from its file in more than the backend; what only it had is gone then."
}


@verb(flags={**LAUNCH_FLAGS, **SEQUENTIAL_FLAG, **GRACE_FLAG, **DRIFT_FLAG})
def relaunch(
    call: Call,
    backend: str | None = None,
    host: str | None = None,
    service: str | None = None,
    plan: bool = False,
    yes: bool = False,
    accept_drift: bool = False,
    force: bool = False,
    sequential: bool = False,
    grace: str | None = None,
    measure: bool = True,
    reason: str = "",
    wait: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Replace the running server by one with only the backend changed; put the old one back if that fails."""
    from orchestrator.flows.order import Options
    from orchestrator.flows.relaunch import relaunch as run

    options = Options(plan, accept_drift, force, seconds("grace", grace), measure, reason, seconds("wait", wait) or 0.0, sequential)
    target = choose(inventory, host, service)
    profiles = target.inventory.backends_named(named_backend(backend, target.inventory))
    observer = observe(call, target, keep=not plan)
    return finish(call, run(target, profiles, options, observer, confirmation(call, yes=yes), interruption=interruption(call)))


@verb(flags={**LAUNCH_FLAGS, **_NEW_ONLY})
def launch(
    call: Call,
    backend: str | None = None,
    host: str | None = None,
    service: str | None = None,
    plan: bool = False,
    yes: bool = False,
    force: bool = False,
    measure: bool = False,
    reason: str = "",
    wait: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Start the service where nothing serves, and prove it ready."""
    from orchestrator.flows.order import Options
    from orchestrator.flows.relaunch import launch as run

    options = Options(plan, force=force, measure=measure, reason=reason, wait=seconds("wait", wait) or 0.0)
    target = choose(inventory, host, service)
    profiles = target.inventory.backends_named(backend or target.service.backend or "auto")
    observer = observe(call, target, keep=not plan)
    return finish(call, run(target, profiles, options, observer, confirmation(call, yes=yes), interruption=interruption(call)))


@verb(flags={**CHANGE_FLAGS, **GRACE_FLAG})
def teardown(
    call: Call,
    host: str | None = None,
    service: str | None = None,
    plan: bool = False,
    yes: bool = False,
    grace: str | None = None,
    reason: str = "",
    wait: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Stop the server and leave nothing behind: processes, port, shared memory, GPU memory."""
    from orchestrator.flows.order import Options
    from orchestrator.flows.teardown import teardown as run

    options = Options(plan, grace=seconds("grace", grace), reason=reason, wait=seconds("wait", wait) or 0.0)
    target = choose(inventory, host, service)
    observer = observe(call, target, keep=not plan)
    return finish(call, run(target, options, observer, confirmation(call, yes=yes), interruption=interruption(call)))


def named_backend(backend: str | None, inventory: Inventory) -> str:
    """The backend that was named.

    Raises:
        UsageError: none was.
    """
    if backend is None:
        kernels = ", ".join(name for name, item in inventory.backends.items() if item.kind == "backend")
        raise UsageError("which backend? Say it with --backend NAME", evidence=[f"backends: {kernels}"], next_step="fab backends")
    return backend


def observe(call: Call, target: Target, *, keep: bool) -> Observers:
    """Who hears of a change: the screen and, if it is to be kept, the run folder."""
    from orchestrator.flows.observer import Observers

    call.interrupted = "interrupted; nothing was touched"
    call.screen.outlives_reader = True
    call.screen.note(f"inventory {target.inventory.label}")
    observers: list[Observer] = [call.screen]
    if keep:
        observers.append(call.keep_run(target.host.name, target.service.name))
    return Observers(observers)


def finish(call: Call, outcome: Outcome) -> int:
    """The document and the exit code of a change."""
    from orchestrator.cli.documents.changes import Change
    from orchestrator.cli.requests_text import meanwhile_blocks
    from orchestrator.cli.text import commands, pages_on

    if call.flags.get("plan"):
        from orchestrator.cli.verdict_text import again, change_verdict

        call.screen.show(change_verdict(outcome, again(call.verb, _named(call, outcome))))
    see = commands(pages_on(outcome.result))
    plan, screen = outcome.plan, call.screen
    call.screen.show(meanwhile_blocks(plan, outcome.result, outcome.clients))
    call.answer(Change(plan.host, plan.service, plan, outcome.result, screen.hooks, screen.noticed, see, outcome.clients))
    return outcome.result.exit_code if outcome.result is not None else 0


def _named(call: Call, outcome: Outcome) -> dict[str, Any]:
    """What the verb was given, with its host and service."""
    named = {"host": outcome.plan.host, "service": outcome.plan.service}
    return {**named, **{name: value for name, value in call.flags.items() if name not in named}}
