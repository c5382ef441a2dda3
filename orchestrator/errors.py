"""Everything that can be foreseen to go wrong, as one tree.

::

    OrchestratorError
    ├── UsageError           2   wrong flags or values
    ├── ConfigError          2   inventory or playbook: file:line: path: what is wrong, what is allowed
    ├── RefusedError         3   preflight said no; nothing was touched
    │   └── TooFewServingError       another replica behind the router would be missed meanwhile
    ├── UnreachableError     4   a place could not be reached, trusted or used
    │   ├── ConnectError         network, banner, authentication, deadline
    │   ├── HostKeyError         unknown or changed host key
    │   ├── ContainerError       the container is not running or can't be entered
    │   ├── RightsError          not allowed to do what the job needs
    │   │   └── NotRootError     it takes root, and the agent is not
    │   ├── PythonError          no python3, too old, or a package of it is missing
    │   ├── KernelError          the kernel is too old for what the agent needs
    │   ├── DiskFullError        a disk there is full
    │   ├── AgentError           the agent was killed, failed or spoke nonsense
    │   ├── ConnectionLostError  the connection ended while the agent ran
    │   └── RouterError          a router does not answer, or does not do what it has accepted
    │       └── RouterRestartedError  it has forgotten workers: its list is in its memory alone
    ├── LockedError          5   somebody else changes this service, or has locked it
    │   ├── TurnedAwayError          somebody was faster: nothing kept the change away when it was planned
    │   └── UnfinishedOrderError     a change that was cut off half-way has to be brought to its end first
    ├── RolledBackError      6   the new launch failed; the previous one serves again
    ├── ServiceDownError     7   nothing serves, or nobody knows: a person is needed
    ├── InvalidTimingError   9   a decode timing is not to be believed
    └── InterruptedByOperatorError 130
"""

from __future__ import annotations

from collections.abc import Sequence


class OrchestratorError(Exception):
    """What happened, the evidence for it, the command to type next, and which pages of ``fab docs`` tell more (`see`)."""

    exit_code = 1
    category = "failed"
    """Its name for programs (``--json``), which stays when the class is called otherwise."""

    def __init__(self, message: str, *, evidence: Sequence[str] = (), next_step: str | None = None, see: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = list(evidence)
        self.next_step = next_step
        self.see = list(see)


class UsageError(OrchestratorError):
    """Wrong flags or values on the command line."""

    exit_code = 2
    category = "usage"


class ConfigError(OrchestratorError):
    """The YAML is wrong; one line of `evidence` a mistake, each ``file:line: path: what is wrong and what is allowed``."""

    exit_code = 2
    category = "config"


class RefusedError(OrchestratorError):
    """Refused before anything was touched."""

    exit_code = 3
    category = "refused"


class TooFewServingError(RefusedError):
    """Behind the router fewer replicas serve than are needed while one is taken out."""

    category = "too_few_serving"


class UnreachableError(OrchestratorError):
    """A place could not be reached, trusted or used."""

    exit_code = 4
    category = "unreachable"


class ConnectError(UnreachableError):
    """No SSH connection: network, banner, authentication or a deadline."""

    category = "connect"


class HostKeyError(UnreachableError):
    """The host key is unknown or differs from the known one."""

    category = "host_key"


class ContainerError(UnreachableError):
    """The container is not running, or can't be entered from the host."""

    category = "container"


class RightsError(UnreachableError):
    """The account lacks a right without which nothing can be proven or done."""

    category = "rights"


class NotRootError(RightsError):
    """The place was reached and asked, and what was asked takes root there."""

    category = "not_root"


class PythonError(UnreachableError):
    """The place has no Python that can run the agent."""

    category = "python"


class KernelError(UnreachableError):
    """The place's kernel is too old, or denies a call that the agent needs."""

    category = "kernel"


class DiskFullError(UnreachableError):
    """A disk in the place is full, so nothing can be recorded and nothing is begun."""

    category = "disk_full"


class AgentError(UnreachableError):
    """The agent was killed, raised, or answered with something that is not its protocol."""

    category = "agent"


class ConnectionLostError(UnreachableError):
    """The connection ended before the agent's answer; what runs on the box goes on there."""

    category = "connection_lost"


class RouterError(UnreachableError):
    """A router does not answer, wants another key, or does not do what it has accepted."""

    category = "router"


class RouterRestartedError(RouterError):
    """A router was restarted and has forgotten workers that nobody has removed."""

    category = "router_restarted"


class LockedError(OrchestratorError):
    """Somebody else is changing this service."""

    exit_code = 5
    category = "locked"


class TurnedAwayError(LockedError):
    """The box refused an order because of somebody who was not there yet when it was planned."""

    category = "turned_away"


class UnfinishedOrderError(LockedError):
    """A change that had touched something was cut off, and nobody has brought it to its end yet."""

    category = "unfinished_order"


class RolledBackError(OrchestratorError):
    """The new launch failed and the previous one serves again."""

    exit_code = 6
    category = "rolled_back"


class ServiceDownError(OrchestratorError):
    """Nothing serves any more, or it is not known whether anything does."""

    exit_code = 7
    category = "service_down"


class InvalidTimingError(OrchestratorError):
    """A decode timing is not to be believed; why is with it."""

    exit_code = 9
    category = "invalid_timing"


class InterruptedByOperatorError(OrchestratorError):
    """Ctrl-C at the operator's end; the box goes on by itself."""

    exit_code = 130
    category = "interrupted"


DRIFT = 8
"""The exit code of a host that differs from its tuning profile: an answer, not an error."""

WORST_FIRST = (InterruptedByOperatorError.exit_code, 1, 7, 6, 2, 4, 5, 3, 9, DRIFT, 0)
"""Exit codes in the order of badness: what keeps others from having been asked, a fault of this program, what was lost, what could not be
asked, what may not be done, what is not as wanted."""


def worst(codes: Sequence[int]) -> int:
    """The one exit code of several. A code that is not known is as bad as a fault of this program."""
    return min(codes, key=lambda code: WORST_FIRST.index(code) if code in WORST_FIRST else 1)
