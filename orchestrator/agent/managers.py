"""Who manages a server: a unit, a session, or something that would start it again and that we don't speak to."""

import os
import re
import signal
from typing import List, Optional

from orchestrator.agent import procfs
from orchestrator.agent.procfs import Process, Table
from orchestrator.agent.wire import Manager, ManagerKind

UNIT_PREFIX = "orchestrator-"
"""Every unit of ours starts so: ``orchestrator-SERVICE-LAUNCH_ID.service``."""


def boot_unit_name(service: str) -> str:
    """The persistent unit that brings a service's server back, whichever launch that is."""
    return f"{UNIT_PREFIX}{service}.service"


_CONTAINER_ENGINES = (
    (r"/(?:docker/|docker-)[0-9a-f]{12,}", "docker"),
    (r"/(?:libpod-|libpod_parent)", "podman"),
    (r"/kubepods", "kubernetes"),
    (r"/(?:cri-containerd-|crio-)|/containerd", "containerd"),
    (r"/(?:lxc\.payload[./]|lxc/|machine-)", "a container"),
)

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})

_SUPERVISORS = {
    "supervisord": "supervisord",
    "runsv": "runit",
    "s6-supervise": "s6",
    "circusd": "circus",
    "conmon": "podman",
    "containerd-shim": "containerd",
    "docker-init": "docker",
    "PM2": "pm2",
    "daemontools": "daemontools",
    "supervise": "daemontools",
}

_SHARED_UNITS = (
    r"(?:ssh|sshd|dropbear|cron|crond|anacron|atd|getty|serial-getty|console-getty|container-getty|autovt|user|systemd-logind|login|"
    r"tmux|screen|dbus|rc-local|lxc|incus-agent|lxd-agent|cloud-final|emergency|rescue|telnetd?|ttyd|jupyter|code-server)(?:[@-].*)?\.service$"
)
"""Services in whose cgroup people's own sessions end up: stopping one of these would not stop a server, only somebody's login."""


def unit_of(cgroup: str) -> Optional[str]:
    """The innermost unit (``X.service`` or ``X.scope``) in a cgroup path, None for a process outside all of them."""
    units = [part for part in cgroup.split("/") if part.endswith((".service", ".scope"))]
    return units[-1] if units else None


def user_manager_of(cgroup: str) -> Optional[str]:
    """``user@UID.service`` when a cgroup lies below a user's own systemd."""
    return next((part for part in cgroup.split("/") if re.match(r"user@\d+\.service$", part)), None)


def unit_is_exclusive(cgroup: str) -> bool:
    """Whether a cgroup is that of one service alone, so that being in it ties a process to that service."""
    unit = unit_of(cgroup)
    return unit is not None and unit.endswith(".service") and not re.match(_SHARED_UNITS, unit)


def container_engine(cgroup: str, own_cgroup: str) -> Optional[str]:
    """The engine whose container a cgroup lies in, unless this process lies in the same container."""
    for pattern, engine in _CONTAINER_ENGINES:
        found = re.search(pattern, cgroup)
        if found is not None and found.group() not in own_cgroup:
            return engine
    return None


def manager_of(main: Process, table: Table, launch_id: Optional[str], node_count: Optional[str]) -> Manager:
    """Name the manager of a server's main process. `node_count` is the value of ``--nnodes``."""
    # What this program has started over several nodes it can also end: the order's other parts see to the other nodes.
    unsupported = _unsupported(main, table, node_count if launch_id is None else None)
    if unsupported is not None:
        return unsupported
    unit = unit_of(main.cgroup)
    if launch_id is not None:
        if unit is not None and unit.startswith(UNIT_PREFIX) and unit.endswith(".service"):
            return Manager(ManagerKind.OWN_UNIT, unit)
        return Manager(ManagerKind.OWN_SESSION, f"session {main.session}")
    if unit is not None and unit_is_exclusive(main.cgroup):
        return Manager(ManagerKind.SYSTEMD_UNIT, unit)
    return Manager(ManagerKind.SESSION, _session_name(main, table), unit or main.cgroup)


def is_script(process: Process) -> bool:
    """Whether a process is a shell that works through a script (``bash run.sh``, ``sh -c ...``), not one that a person types into."""
    words = process.arguments
    if not words or os.path.basename(words[0]) not in _SHELLS:
        return False
    return any(not word.startswith("-") for word in words[1:])


def _unsupported(main: Process, table: Table, node_count: Optional[str]) -> Optional[Manager]:
    engine = container_engine(main.cgroup, _own_cgroup(table))
    if _elsewhere(main, "pid"):
        return Manager(ManagerKind.UNSUPPORTED, engine or "another PID namespace", f"cgroup {main.cgroup}")
    if engine is not None:
        return Manager(ManagerKind.UNSUPPORTED, engine, f"cgroup {main.cgroup}")
    if _elsewhere(main, "net"):
        return Manager(ManagerKind.UNSUPPORTED, "another network namespace", f"process {main.pid}")
    if main.pid == 1:
        return Manager(ManagerKind.UNSUPPORTED, "PID 1 of its container", "ending it ends the container")
    if node_count is not None and node_count.isdigit() and int(node_count) > 1:
        return Manager(ManagerKind.UNSUPPORTED, "a server over several nodes", f"--nnodes {node_count}")
    for parent in procfs.ancestors(table, main.pid):
        supervisor = _supervisor(parent)
        if supervisor is not None:
            return Manager(ManagerKind.UNSUPPORTED, supervisor, f"its ancestor is process {parent}")
    user_manager = user_manager_of(main.cgroup)
    unit = unit_of(main.cgroup)
    if user_manager is not None and unit is not None and unit != user_manager and unit_is_exclusive(main.cgroup):
        return Manager(ManagerKind.UNSUPPORTED, f"systemd --user unit {unit}", f"cgroup {main.cgroup}")
    return None


def _supervisor(process: Process) -> Optional[str]:
    words: List[str] = [process.name, *(os.path.basename(word) for word in process.arguments[:2])]
    if process.title.startswith("PM2 "):
        return "pm2"
    return next((name for known, name in _SUPERVISORS.items() if any(word == known for word in words)), None)


def _own_cgroup(table: Table) -> str:
    own = table.get(os.getpid()) or procfs.read_process(os.getpid())
    return own.cgroup if own is not None else "/"


def _elsewhere(process: Process, kind: str) -> bool:
    theirs = procfs.namespace(process.pid, kind)
    return theirs is not None and theirs != procfs.namespace("self", kind)


def _session_name(main: Process, table: Table) -> str:
    """What a person would call the session that a server was started from."""
    for parent in procfs.ancestors(table, main.pid):
        for name in ("tmux", "screen"):
            if parent.name.lower().startswith(name):
                return name
    if _ignores_hangup(main.pid):
        return "nohup"
    unit = unit_of(main.cgroup) or ""
    for beginning, name in (("tmux-", "tmux"), ("tmux", "tmux"), ("ssh", "ssh"), ("cron", "cron")):
        if unit.startswith(beginning):
            return name
    if any(parent.name in ("sshd", "sshd-session") for parent in procfs.ancestors(table, main.pid)):
        return "ssh"
    if main.cgroup.endswith("/.lxc"):
        return "lxc-attach"
    return "shell"


def _ignores_hangup(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as stream:
            mask = next((line.split()[1] for line in stream if line.startswith("SigIgn:")), "0")
    except OSError:
        return False
    return bool(int(mask, 16) >> (signal.SIGHUP - 1) & 1)
