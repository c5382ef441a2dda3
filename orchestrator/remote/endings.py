"""What it means when the agent failed, or ended without an answer. Pure: from what was seen to the error to raise."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator import errors
from orchestrator.agent import wire
from orchestrator.remote.place import PlaceDescription

FULL_DISK = "df -h; df -i; du -xsh /var/log /tmp"


@dataclass(frozen=True)
class Ending:
    """How the command ended: `status` is its exit status, None when a signal ended it (or the server did not say)."""

    status: int | None
    stray: Sequence[str] = ()
    """Lines on standard output that were no frames."""
    errors: Sequence[str] = ()
    """Lines on standard error."""

    @property
    def evidence(self) -> list[str]:
        return [*self.stray[-20:], *self.errors[-40:]]


def explain_failure(place: PlaceDescription, failure: wire.AgentFailure) -> errors.OrchestratorError:
    """The error for a failure that the agent itself reported."""
    kind = {
        "python": errors.PythonError,
        "kernel": errors.KernelError,
        "rights": errors.NotRootError,
        "disk_full": errors.DiskFullError,
        "refused": errors.RefusedError,
        "locked": errors.LockedError,
        "interrupted": errors.UnfinishedOrderError,
    }.get(failure.category, errors.AgentError)
    next_step = failure.next_step
    if kind is errors.AgentError:
        next_step = next_step or "this is a bug of the program: keep the run folder and report it with these lines"
    if kind is errors.PythonError and next_step and not next_step.startswith("name"):
        next_step = f"in {place.label}: {next_step}"
    if kind is errors.KernelError:
        next_step = next_step or f"boot a kernel >= 5.3 on {place.endpoint.host}"
    return kind(f"{place.label}: {failure.message}", evidence=failure.evidence, next_step=next_step)


def explain_ending(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    """The error for a command that ended without the agent's answer."""
    text = "\n".join([*ending.stray, *ending.errors])
    for rule in RULES:
        if rule.applies(place, ending) and re.search(rule.pattern, text, re.IGNORECASE | re.MULTILINE):
            return rule.build(place, ending)
    return _by_status(place, ending)


@dataclass(frozen=True)
class Rule:
    """One way in which a login, sudo or a container tool says no. `tools` limits it to places reached by them."""

    pattern: str
    build: Callable[[PlaceDescription, Ending], errors.UnreachableError]
    tools: tuple[str, ...] = ()
    sudo: bool = False

    def applies(self, place: PlaceDescription, ending: Ending) -> bool:
        return (not self.tools or place.reached_by in self.tools) and (not self.sudo or place.become == "sudo")


def _sudo_refuses(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    user = place.endpoint.user
    return errors.RightsError(
        f"{place.label}: sudo -n is refused to {user}: it needs a password, or {user} is not allowed to",
        evidence=ending.evidence,
        next_step=f"on {place.endpoint.host}, as root: echo '{user} ALL=(root) NOPASSWD: ALL' > /etc/sudoers.d/orchestrator",
    )


def _no_sudo(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.RightsError(
        f"{place.label}: there is no sudo on {place.endpoint.host}",
        evidence=ending.evidence,
        next_step=f"apt install sudo there, or connect as root with become: none for {place.endpoint.host} in hosts.yml",
    )


def _no_tool(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.ContainerError(
        f"{place.label}: {place.endpoint.host} has no {place.reached_by} on the PATH of {place.endpoint.user}",
        evidence=ending.evidence,
        next_step=f"check reached_by: of {place.endpoint.host}'s container (pct: Proxmox, lxc-attach: plain LXC, incus: Incus)",
    )


def _old_pct(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.ContainerError(
        f"{place.label}: pct there is too old for --keep-env",
        evidence=ending.evidence,
        next_step=f"reached_by: lxc-attach with name: '{place.container}' works there too",
    )


def _tool_refuses(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.RightsError(
        f"{place.label}: {place.endpoint.user} on {place.endpoint.host} may not run {place.reached_by}",
        evidence=ending.evidence,
        next_step=f"become: sudo, or user: root, for {place.endpoint.host} in hosts.yml",
    )


def _no_container(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.ContainerError(
        f"{place.label}: there is no container {place.container} on {place.endpoint.host}",
        evidence=ending.evidence,
        next_step=f"on {place.endpoint.host}: {_list_command(place)}; then correct container: in hosts.yml",
    )


def _container_stopped(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    start = {"pct": "pct start", "incus": "incus start"}.get(place.reached_by, "lxc-start -n")
    return errors.ContainerError(
        f"{place.label}: container {place.container} on {place.endpoint.host} is not running, or does not exist",
        evidence=ending.evidence,
        next_step=f"on {place.endpoint.host}: {_list_command(place)}; {start} {place.container}",
    )


def _not_entered(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.ContainerError(
        f"{place.label}: {place.reached_by} could not enter container {place.container} on {place.endpoint.host}",
        evidence=ending.evidence,
        next_step=f"on {place.endpoint.host}: {_list_command(place)}",
    )


def _list_command(place: PlaceDescription) -> str:
    return {"pct": "pct list", "incus": "incus list"}.get(place.reached_by, "lxc-ls -f")


def _no_login(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.RightsError(
        f"{place.label}: the account {place.endpoint.user} runs no commands",
        evidence=ending.evidence,
        next_step=f"give it a login shell (chsh -s /bin/bash {place.endpoint.user}) or name another user: in hosts.yml",
    )


def _disk_full(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.DiskFullError(f"{place.label}: a disk there is full", evidence=ending.evidence, next_step=FULL_DISK)


def _no_python(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.PythonError(
        f"{place.label}: there is no {place.python}",
        evidence=ending.evidence,
        next_step=f"in {place.label}: apt install python3; or name another one as python: in hosts.yml",
    )


def _broken_python(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    return errors.PythonError(
        f"{place.label}: {place.python} does not start: not a Python 3, or a damaged one",
        evidence=ending.evidence,
        next_step=f"in {place.label}: {place.python} -I -S -c 'import json' ; apt install --reinstall python3",
    )


LXC = ("pct", "lxc-attach")
TOOLS = ("pct", "lxc-attach", "incus")

RULES = (
    Rule(r"^sudo: .*(password is required|terminal is required|no tty|not allowed)|not in the sudoers file", _sudo_refuses, sudo=True),
    Rule(r"sudo: (command )?not found|^sudo: not found", _no_sudo, sudo=True),
    Rule(r"\b(pct|lxc-attach|incus): (command )?not found", _no_tool, tools=TOOLS),
    Rule(r"^sudo: \S+: command not found|Failed to exec", _no_python),
    Rule(r"Unknown option: keep-env", _old_pct, tools=("pct",)),
    Rule(
        r"please run as root|lxc-attach:.*(Permission denied|Operation not permitted|You lack access)|permissions? denied.*incus",
        _tool_refuses,
        tools=TOOLS,
    ),
    Rule(r"(lxc-attach: .* )?(Failed to get init pid|is not running|not running|Instance is stopped)", _container_stopped, tools=TOOLS),
    Rule(r"does not exist|Instance not found|No such container|Container is not defined", _no_container, tools=TOOLS),
    Rule(r"^(lxc-attach|lxc): ", _not_entered, tools=LXC),
    Rule(r"^Error: .*(instance|websocket|operation)", _not_entered, tools=("incus",)),
    Rule(r"account is currently not available|account is not available|login is disabled", _no_login),
    Rule(r"No space left on device|Disk quota exceeded", _disk_full),
    Rule(r"Unknown option: -I|Fatal Python error|SyntaxError: invalid syntax", _broken_python),
)
"""The first that fits counts. The words are those of sudo 1.9, LXC 5 and 6, pve-container 6.1, Incus 6 and Debian's nologin."""


def _by_status(place: PlaceDescription, ending: Ending) -> errors.UnreachableError:
    if ending.status == 127:
        return _no_python(place, ending)
    if ending.status == 126:
        return _broken_python(place, ending)
    killed = ending.status is None or ending.status > 128
    if killed:
        by = "a signal" if ending.status is None else f"signal {ending.status - 128}"
        return errors.AgentError(
            f"{place.label}: the agent was killed by {by} before it answered",
            evidence=ending.evidence,
            next_step=f"out of memory? on {place.endpoint.host}: dmesg -T | grep -i -e oom -e killed | tail",
        )
    return errors.AgentError(
        f"{place.label}: the agent ended with exit status {ending.status} and no answer",
        evidence=ending.evidence,
        next_step=f"does the login shell run commands undisturbed? ssh {place.endpoint.user}@{place.endpoint.address} true",
    )
