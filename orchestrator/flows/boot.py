"""What starts a service's server again after a crash or a restart of the machine: show it, write it, remove it."""

from __future__ import annotations

from orchestrator.agent.wire_launches import BootAction, BootReport, BootRequest
from orchestrator.errors import RefusedError
from orchestrator.flows.target import Connect, Target, connect

BOOT_SECONDS = 60.0


def boot(target: Target, action: str = BootAction.SHOW, connect: Connect = connect) -> BootReport:
    """Ask the box for a :class:`BootAction`.

    Raises:
        LockedError: an order is at work on the service.
        RefusedError: what serves is not a launch of ours in a unit of its own, or one part of a server over several nodes.
        UnreachableError: the place can't be reached, trusted or used.
    """
    if target.service.nodes and action == BootAction.ON:
        raise RefusedError(
            f"{target.service.name} goes over {len(target.parts())} nodes: a part that came back alone would serve nothing",
            next_step=target.parts()[0].command("launch"),
        )
    request = BootRequest(target.service.name, target.state_root, target.service.port, action)
    with connect(target) as agent:
        return agent.ask("boot", request, BootReport, BOOT_SECONDS)
