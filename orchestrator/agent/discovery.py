"""What a machine is that nobody has described yet: its containers, its SGLang servers and installations, its GPUs. Reads only."""

import glob
import os
import re
import shutil
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from orchestrator.agent.command import Output, run_bounded
from orchestrator.agent.gpu import ask_gpus
from orchestrator.agent.installation import UNKNOWN_VERSION, find_sglang
from orchestrator.agent.processes import Server, find_servers, scan
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.survey import describe, user_name
from orchestrator.agent.wire_discovery import (
    DiscoverReport,
    DiscoverRequest,
    FoundContainer,
    FoundInstallation,
    FoundServer,
    Tool,
)

LIST_SECONDS = 20.0
"""`pct list` reads a file for each guest, from a cluster's file system."""

_SITES = (
    *(
        f"{base}/{environment}/lib/python3*/site-packages"
        for base in ("/opt", "/srv", "/root", "/workspace")
        for environment in ("*", ".*")
    ),
    *(f"{base}/{environment}/lib/python3*/site-packages" for base in ("/opt/*", "/home/*", "/srv/*") for environment in ("*", ".*")),
    "/*/envs/*/lib/python3*/site-packages",
    "/opt/*/envs/*/lib/python3*/site-packages",
    "/root/*/envs/*/lib/python3*/site-packages",
    "/home/*/*/envs/*/lib/python3*/site-packages",
    "/usr/local/lib/python3*/dist-packages",
    "/usr/local/lib/python3*/site-packages",
    "/usr/lib/python3/dist-packages",
)
"""Where virtual environments and conda's mostly are, and what pip installs without one (Debian's dist-packages)."""

_LXC = re.compile(r"/(?:lxc\.payload\.|lxc/)([^/\n]+)")
"""In a cgroup's path as a machine sees it, of what runs in a container below it (see :mod:`doctor_users`)."""


class Lister(NamedTuple):
    """How one tool tells its containers."""

    tool: str
    program: str
    list: Callable[[], Tuple[List[FoundContainer], Optional[str]]]


def discover(request: DiscoverRequest, emit: Callable[[str, Any], None]) -> DiscoverReport:
    """Look around in this place."""
    from orchestrator.agent.driver import module_version
    from orchestrator.agent.kernel_files import KernelFiles
    from orchestrator.agent.main import container_kind

    system = os.uname()
    containers, problems = list_containers()
    reading = ask_gpus()
    return DiscoverReport(
        host_name=system.nodename,
        kernel=system.release,
        user=user_name(os.geteuid()),
        user_id=os.geteuid(),
        container=container_kind(),
        containers=containers,
        servers=own_servers(request.state_root),
        installations=installations(),
        gpus=reading.gpus,
        gpu_problem=reading.problem,
        device_nodes=sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev")),
        driver=module_version(KernelFiles()).value,
        problems=problems,
    )


def list_containers() -> Tuple[List[FoundContainer], List[str]]:
    """All containers by the tool that knows them, and what kept a tool from telling.

    Proxmox keeps its containers where lxc-ls finds them too; pct, which knows their names, is asked first.
    """
    problems: List[str] = []
    found: List[FoundContainer] = []
    for lister in (Lister(Tool.PCT, "pct", _pct), Lister(Tool.INCUS, "incus", _incus), Lister(Tool.LXC, "lxc-ls", _lxc)):
        if shutil.which(lister.program) is None:
            continue
        listed, problem = lister.list()
        known = {item.name for item in found}
        found += [item for item in listed if item.name not in known]
        if problem is not None:
            problems.append(f"{lister.program}: {problem}")
    if shutil.which("lxc") is not None and shutil.which("incus") is None:
        problems.append("lxc: containers of LXD are not entered from their machine: give the address of the container itself")
    return found, problems


def _pct() -> Tuple[List[FoundContainer], Optional[str]]:
    output = run_bounded(["pct", "list"], LIST_SECONDS)
    return (parse_pct(output.text), None) if output.good else ([], _said(output))


def _incus() -> Tuple[List[FoundContainer], Optional[str]]:
    output = run_bounded(["incus", "list", "--format", "csv", "--columns", "nst"], LIST_SECONDS)
    return (parse_incus(output.text), None) if output.good else ([], _said(output))


def _lxc() -> Tuple[List[FoundContainer], Optional[str]]:
    known = run_bounded(["lxc-ls", "-1"], LIST_SECONDS)
    running = run_bounded(["lxc-ls", "-1", "--running"], LIST_SECONDS)
    if not known.good or not running.good:
        return [], _said(running if known.good else known)
    return parse_lxc(known.text, running.text), None


def parse_pct(text: str) -> List[FoundContainer]:
    """``pct list``: a heading, then VMID, status, a lock if there is one, and the name (pve-container, PVE/CLI/pct.pm)."""
    rows = (line.split() for line in text.splitlines())
    return [
        FoundContainer(Tool.PCT, row[0], running=row[1] == "running", title=row[-1] if len(row) > 2 else "")
        for row in rows
        if len(row) > 1 and row[0].isdigit()
    ]


def parse_incus(text: str) -> List[FoundContainer]:
    """``incus list --format csv --columns nst``: name, state, type; virtual machines are none of ours."""
    rows = (line.split(",") for line in text.splitlines())
    return [
        FoundContainer(Tool.INCUS, row[0], running=row[1] == "RUNNING") for row in rows if len(row) == 3 and row[2].startswith("CONTAINER")
    ]


def parse_lxc(known: str, running: str) -> List[FoundContainer]:
    """``lxc-ls -1``, and with ``--running``; one that was started without a configuration of its own is in the second alone."""
    up = set(running.split())
    return [FoundContainer(Tool.LXC, name, running=name in up) for name in sorted(set(known.split()) | up)]


def _said(output: Output) -> str:
    lines = [line.strip() for line in (output.errors + "\n" + output.text).splitlines() if line.strip()]
    return lines[0] if lines else f"status {output.status}"


def own_servers(state_root: str) -> List[FoundServer]:
    """The servers of this very place: a machine sees those of its containers too, and those are asked for there."""
    table = scan()
    here = table.get(os.getpid())
    own = _LXC.findall(here.cgroup) if here is not None else []
    servers = [server for server in find_servers(table) if _LXC.findall(server.main.cgroup) == own]
    return [_found(server, state_root) for server in sorted(servers, key=lambda server: server.port)]


def _found(server: Server, state_root: str) -> FoundServer:
    service = None if server.launch_id is None else service_of(server.launch_id, state_root)
    return FoundServer(describe(server, StateFolder(state_root, service or "unknown")), service)


def service_of(launch_id: str, state_root: str) -> Optional[str]:
    """The service whose state folder has the record of this launch, None where none has or it may not be read."""
    try:
        names = sorted(name for name in os.listdir(state_root) if not name.startswith("."))
    except OSError:
        return None
    return next((name for name in names if StateFolder(state_root, name).read_launch(launch_id) is not None), None)


def installations(sites: Sequence[str] = _SITES) -> List[FoundInstallation]:
    """Pythons that have SGLang, where people mostly put them; one that is elsewhere has to be named."""
    found: List[FoundInstallation] = []
    for python in dict.fromkeys(interpreter for site in _with_sglang(sites) for interpreter in [interpreter_of(site)] if interpreter):
        installed = find_sglang(ServicePython(python))
        if installed.version is not None:
            found.append(FoundInstallation(python, "" if installed.version == UNKNOWN_VERSION else installed.version))
    return found


def _with_sglang(patterns: Sequence[str]) -> List[str]:
    folders = dict.fromkeys(folder for pattern in patterns for folder in sorted(glob.glob(pattern)))
    return [folder for folder in folders if os.path.isdir(f"{folder}/sglang") or glob.glob(f"{glob.escape(folder)}/sglang-*.dist-info")]


def interpreter_of(site: str) -> Optional[str]:
    """The Python whose site-packages this is, None where there is none to be seen."""
    prefix, _, _ = site.rpartition("/lib/")
    names = ("python", "python3") if os.path.exists(f"{prefix}/pyvenv.cfg") else ("python3", "python")
    candidates = [f"{prefix}/bin/{name}" for name in names] + (["/usr/bin/python3"] if prefix == "/usr/local" else [])
    return next((path for path in candidates if os.access(path, os.X_OK)), None)
