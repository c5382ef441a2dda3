"""preflight."""

from __future__ import annotations

from orchestrator.cli.change import DRIFT_FLAG, LAUNCH_FLAGS, finish, named_backend, observe
from orchestrator.cli.common import FLEET_TARGET_FLAGS, forks_of, load
from orchestrator.cli.edge import Call, verb
from orchestrator.cli.fleet import ask_many, several

_FLAGS = {
    "backend": LAUNCH_FLAGS["backend"],
    "force": "Show what --force of a relaunch would overrule, and whether anything is left then.",
    **DRIFT_FLAG,
    **FLEET_TARGET_FLAGS,
}


@verb(flags=_FLAGS, many_hosts=True)
def preflight(
    call: Call,
    backend: str | None = None,
    host: str | None = None,
    service: str | None = None,
    accept_drift: bool = False,
    force: bool = False,
    all: bool = False,  # noqa: A002  # the flag's name
    forks: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Check whether a relaunch could go well, and change nothing. Exit code 3: something speaks against it."""
    from orchestrator.cli import fleet_views
    from orchestrator.flows.order import Options
    from orchestrator.flows.preflight import preflight as run
    from orchestrator.flows.target import choose_target

    loaded = load(inventory)
    subjects = several(call, loaded, host, service, all=all, only_services=True)
    target = choose_target(loaded, host, service) if subjects is None else None
    name, options = named_backend(backend, loaded), Options(accept_drift=accept_drift, force=force)
    profiles = loaded.backends_named(name)
    if target is None:
        view = fleet_views.preflight_view(profiles, name, options, call.screen.hide)
        return ask_many(call, loaded, subjects or [], view, forks_of(forks))
    return finish(call, run(target, profiles, name, options, observe(call, target, keep=False)))
