"""Words for what crosses, the same on the box and on the operator's screen. Pure."""

from orchestrator.agent.wire import Manager, ManagerKind


def managed(manager: Manager) -> str:
    """Who keeps a server running, as the end of a sentence about it."""
    if manager.kind == ManagerKind.OWN_UNIT:
        return f"managed by this program in unit {manager.name}"
    if manager.kind == ManagerKind.OWN_SESSION:
        return f"managed by this program in {manager.name}"
    if manager.kind == ManagerKind.SYSTEMD_UNIT:
        return f"managed by systemd unit {manager.name}"
    if manager.kind == ManagerKind.SESSION:
        return f"started by hand ({manager.name})" if manager.name else "started by hand"
    return f"managed by {manager.name or manager.kind}"
