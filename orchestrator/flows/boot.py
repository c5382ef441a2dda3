"""What starts a service's server again after a crash or a restart of the machine: show it, write it, remove it."""

from __future__ import annotations

from orchestrator.agent.wire_launches import BootAction, BootReport, BootRequest
from orchestrator.flows.target import Connect, Target, connect

BOOT_SECONDS = 60.0


def boot(target: Target, action: str = BootAction.SHOW, connect: Connect = connect) -> BootReport:
    """Ask the box for a :class:`BootAction`.

    Raises:
        LockedError: an order is at work on the service.
        RefusedError: what serves is not a launch of ours in a unit of its own.
        UnreachableError: the place can't be reached, trusted or used.
    """
    request = BootRequest(target.service.name, target.state_root, target.service.port, action)
    with connect(target) as agent:
        return agent.ask("boot", request, BootReport, BOOT_SECONDS)
