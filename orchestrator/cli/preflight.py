"""preflight."""

from __future__ import annotations

from orchestrator.cli.change import DRIFT_FLAG, LAUNCH_FLAGS, finish, named_backend, observe
from orchestrator.cli.common import TARGET_FLAGS, choose
from orchestrator.cli.edge import Call, verb

_FLAGS = {
    "backend": LAUNCH_FLAGS["backend"],
    "force": "Show what --force of a relaunch would overrule, and whether anything is left then.",
    **DRIFT_FLAG,
    **TARGET_FLAGS,
}


@verb(flags=_FLAGS)
def preflight(
    call: Call,
    backend: str | None = None,
    host: str | None = None,
    service: str | None = None,
    accept_drift: bool = False,
    force: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Check whether a relaunch could go well, and change nothing. Exit code 3: something speaks against it."""
    from orchestrator.flows.order import Options
    from orchestrator.flows.preflight import preflight as run

    target = choose(inventory, host, service)
    name = named_backend(backend, target.inventory)
    profiles = target.inventory.backends_named(name)
    observer = observe(call, target, keep=False)
    return finish(call, run(target, profiles, name, Options(accept_drift=accept_drift, force=force), observer))
