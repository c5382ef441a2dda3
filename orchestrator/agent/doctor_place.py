"""Where a server's processes may run and what they may take: CPUs and memory nodes against the GPUs', limits, shared memory.

Proxmox gives a container with `cores:` a random set of CPUs when it starts and moves it every 10 s, without regard to NUMA nodes, unless
its raw configuration names a cpuset (pve-container's LXC.pm, pve-manager's pvestatd.pm).
"""

import os
import re
from dataclasses import replace
from typing import AbstractSet, Dict, FrozenSet, List, NamedTuple, Optional, Set, Tuple

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.doctor_users import service_server
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.pci import DEVICES
from orchestrator.agent.wire import Outcome, Verdict

OPEN_FILES = 65535
"""What SGLang raises its own limit to (srt/utils, set_ulimit); weights of many shards and many clients need it."""

_PROXMOX = "/etc/pve/lxc"
_CPUSET_KEYS = ("lxc.cgroup2.cpuset.cpus", "lxc.cgroup.cpuset.cpus")
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_HIGHEST_CPU = 1 << 20
_CAP_SYS_RESOURCE = 24
"""include/uapi/linux/capability.h."""
_LIMIT = re.compile(r"(Max locked memory|Max open files)\s+(\d+|unlimited)\s+(\d+|unlimited)")


def check_place(context: Context) -> List[Verdict]:
    """What belongs to the host is looked at there, what belongs to the service where it runs."""
    verdicts = []
    if context.in_container or context.request.service is not None:
        server, _ = service_server(context)
        pid = str(server.main.pid) if server is not None else "self"
        verdicts += [*cpuset(context, pid), *_shared_memory(), *limits(context, pid)]
    if not context.in_container:
        verdicts += [*proxmox(context), *tuning_daemons(context)]
    return verdicts


class Placement(NamedTuple):
    """What one process may use, and the nodes with their CPUs that the GPUs sit on. Node -1: the machine has one, or doesn't tell."""

    cpus: FrozenSet[int]
    nodes: FrozenSet[int]
    gpus: Dict[str, Tuple[int, FrozenSet[int]]]


def cpuset(context: Context, pid: str) -> List[Verdict]:
    """Whether the place may use the CPUs and the memory of each GPU's NUMA node."""
    status = f"/proc/{pid}/status"
    fields = _status_fields(context.files.text(status) or "")
    cpus, nodes = parse_list(fields.get("Cpus_allowed_list", "")), parse_list(fields.get("Mems_allowed_list", ""))
    if not context.gpus:
        return []
    if not cpus:
        return [Verdict("cpuset", Outcome.UNKNOWN, f"{status} doesn't tell which CPUs may be used", [], f"cat {status}", status)]
    gpus = {
        gpu: (_node(context.files, gpu), parse_list(context.files.text(f"{DEVICES}/{gpu}/local_cpulist") or "")) for gpu in context.gpus
    }
    return [judge_placement(context, Placement(cpus, nodes, gpus), status)]


def judge_placement(context: Context, placement: Placement, status: str) -> Verdict:
    """Pure but for the words: one verdict on all GPUs."""
    source = f"{status}; {DEVICES}/*/{{numa_node,local_cpulist}}"
    far = {gpu: item for gpu, item in placement.gpus.items() if item[1] and not item[1] & placement.cpus}
    closed = sorted({node for node, _ in placement.gpus.values() if node >= 0 and placement.nodes and node not in placement.nodes})
    if far or closed:
        evidence = [f"allowed here: CPUs {show_list(placement.cpus)}, memory of nodes {show_list(placement.nodes)}"]
        evidence += [f"{gpu}: node {node}, CPUs {show_list(cpus)}" for gpu, (node, cpus) in placement.gpus.items() if gpu in far]
        evidence += [f"memory of node {node}, where GPUs sit, may not be used" for node in closed]
        detail = (
            f"the place's cpuset leaves out the NUMA node of {len(far) or 'some'} GPU(s): slow, and some SGLang versions end without a word"
        )
        wanted = frozenset().union(*(cpus for _, cpus in placement.gpus.values()))
        step = f"on the host, in the container's configuration: {_CPUSET_KEYS[0]} = {show_list(wanted)}; restart the container"
        if not context.in_container:
            step = (
                f"cat /proc/cmdline (isolcpus=, numa=), systemctl show -p AllowedCPUs,CPUAffinity of the service: allow {show_list(wanted)}"
            )
        return Verdict("cpuset", Outcome.WARN, detail, evidence, step, source)
    nodes = {node for node, _ in placement.gpus.values()}
    count = len(placement.cpus)
    if nodes == {-1}:
        return Verdict("cpuset", Outcome.PASS, f"{count} CPUs may be used; no NUMA node is told for the GPUs", source=source)
    partly = [gpu for gpu, (_, cpus) in placement.gpus.items() if cpus - placement.cpus]
    some = "some" if partly else "all"
    return Verdict("cpuset", Outcome.PASS, f"{count} CPUs, {some} of those near each GPU (nodes {show_list(nodes)})", source=source)


def _node(files: KernelFiles, gpu: str) -> int:
    try:
        return int(files.text(f"{DEVICES}/{gpu}/numa_node") or "-1")
    except ValueError:
        return -1


def _status_fields(text: str) -> Dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def parse_list(text: str) -> FrozenSet[int]:
    """The numbers in the kernel's list format (``0-3,8``); empty for what is none (Documentation/core-api/cpu_hotplug)."""
    found: Set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and len(end) < 8 for end in ends):
            return frozenset()
        low, high = int(ends[0]), int(ends[1])
        if high < low or high > _HIGHEST_CPU:
            return frozenset()
        found.update(range(low, high + 1))
    return frozenset(found)


def show_list(numbers: AbstractSet[int]) -> str:
    """Numbers in the kernel's list format, ``none`` for none."""
    parts: List[List[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts) or "none"


def proxmox(context: Context) -> List[Verdict]:
    """Whether Proxmox moves the container's CPUs around. Elsewhere, and where no container is named, nothing."""
    name = context.request.container
    path = f"{_PROXMOX}/{name}.conf"
    if name is None or not name.isdigit() or not context.files.exists("/etc/pve"):
        return []
    text = context.files.text(path)
    if text is None:
        step = f"pct config {name}; correct the container's name in hosts.yml"
        return [Verdict("rebalancing", Outcome.UNKNOWN, f"container {name} has no configuration that can be read", [], step, path)]
    settings = parse_proxmox(text)
    if any(key in settings for key in _CPUSET_KEYS):
        value = next(settings[key] for key in _CPUSET_KEYS if key in settings)
        return [Verdict("rebalancing", Outcome.PASS, f"container {name} keeps its CPUs ({value})", source=path)]
    if settings.get("cores", "0") in ("", "0"):
        return [Verdict("rebalancing", Outcome.PASS, f"container {name} has no `cores:`, so Proxmox doesn't move it", source=path)]
    cores = settings["cores"]
    detail = f"Proxmox moves container {name} every 10 s to any {cores} CPUs, without regard to NUMA nodes and to pinning inside it"
    step = f"in {path}: {_CPUSET_KEYS[0]}: {_near_cpus(context) or '0-N'}; then pct reboot {name}"
    return [Verdict("rebalancing", Outcome.WARN, detail, [f"cores: {cores}, no {_CPUSET_KEYS[0]}"], step, path)]


def parse_proxmox(text: str) -> Dict[str, str]:
    """The settings of the container itself; what follows a ``[section]`` are its snapshots."""
    settings = {}
    for line in text.splitlines():
        if line.startswith("["):
            break
        name, separator, value = line.partition(":")
        if separator and not line.startswith("#"):
            name, value = name.strip(), value.strip()
            if name.startswith("lxc.") or name not in settings:
                settings[name] = value
    return settings


def _near_cpus(context: Context) -> str:
    lists = [parse_list(context.files.text(f"{DEVICES}/{gpu}/local_cpulist") or "") for gpu in context.gpus]
    numbers = frozenset().union(*lists)
    return show_list(numbers) if numbers else ""


def _shared_memory() -> List[Verdict]:
    from orchestrator.agent.place_checks import check_shared_memory

    return [replace(check_shared_memory(), source="statvfs /dev/shm")]


class Limits(NamedTuple):
    """Hard limits in force: bytes that may be locked, and open files; None is unlimited."""

    locked_memory: Optional[int]
    open_files: Optional[int]


def parse_limits(text: str) -> Optional[Limits]:
    """The hard limits in the text of /proc/PID/limits, None where they aren't in it."""
    found = {match[1]: None if match[3] == "unlimited" else int(match[3]) for match in _LIMIT.finditer(text)}
    if len(found) != 2:
        return None
    return Limits(found["Max locked memory"], found["Max open files"])


def limits(context: Context, pid: str) -> List[Verdict]:
    """Limits as the kernel has them: what systemd shows of a unit may have been cut down silently in a container."""
    path = f"/proc/{pid}/limits"
    found = parse_limits(context.files.text(path) or "")
    whose = "the running server" if pid != "self" else "what is started here"
    if found is None:
        return [Verdict("limits", Outcome.UNKNOWN, f"the limits of {whose} can't be read", [], f"cat {path}", path)]
    if pid == "self" and _may_raise_limits(context):
        return [Verdict("limits", Outcome.PASS, "a launch may raise its own limits here (CAP_SYS_RESOURCE)", source="/proc/self/status")]
    low = []
    if found.locked_memory is not None:
        low.append(("memlock", f"locked memory {_size(found.locked_memory)}: too little for RDMA and for transfer engines that pin memory"))
    if found.open_files is not None and found.open_files < OPEN_FILES:
        low.append(("nofile", f"{found.open_files} open files: SGLang wants {OPEN_FILES}"))
    if not low:
        files = "unlimited" if found.open_files is None else found.open_files
        return [Verdict("limits", Outcome.PASS, f"{whose} may lock any amount of memory and open {files} files", source=path)]
    names = [name for name, _ in low]
    return [Verdict("limits", Outcome.WARN, f"hard limits of {whose} are low", [text for _, text in low], _raise(context, names), path)]


def _may_raise_limits(context: Context) -> bool:
    """Whether what we start gets the limits that it asks for; a container's root can't go beyond what its manager gave it."""
    effective = _status_fields(context.files.text("/proc/self/status") or "").get("CapEff", "0")
    try:
        capable = bool(int(effective, 16) >> _CAP_SYS_RESOURCE & 1)
    except ValueError:
        return False
    return capable and not context.unprivileged


def _raise(context: Context, names: List[str]) -> str:
    """The line that raises limits. A container's are those that its manager gave it; its own root can't raise them."""
    values = {"memlock": "unlimited", "nofile": "1048576"}
    if not context.in_container:
        return f"in /etc/security/limits.d/90-gpu.conf: {'; '.join(f'* - {name} {values[name]}' for name in names)}; then log in again"
    proxmox_lines = ", ".join(f"lxc.prlimit.{name}: {values[name]}" for name in names)
    incus = " ".join(f"limits.kernel.{name}={values[name]}" for name in names)
    return (
        f"on the host, Proxmox: in /etc/pve/lxc/ID.conf: {proxmox_lines}; plain LXC: the same with = in its config; "
        f"Incus: incus config set NAME {incus}; restart the container"
    )


def tuning_daemons(context: Context) -> List[Verdict]:
    """tuned and power-profiles-daemon can't both be: each ends the other (their units' Conflicts=)."""
    tuned, other = _unit(context.files, "tuned.service"), _unit(context.files, "power-profiles-daemon.service")
    if tuned is None or other is None:
        return []
    detail = "tuned and power-profiles-daemon are both installed: whichever starts last ends the other and sets its own governor"
    step = "systemctl mask --now power-profiles-daemon.service; systemctl enable --now tuned.service (or remove tuned)"
    return [Verdict("tuning_daemons", Outcome.WARN, detail, [tuned, other], step, "/usr/lib/systemd/system")]


def _unit(files: KernelFiles, name: str) -> Optional[str]:
    """Where a unit is installed; None where it is not, or is masked."""
    for folder in _UNITS:
        path = files.path(f"{folder}/{name}")
        if os.path.islink(path) and os.readlink(path) == "/dev/null":
            return None
        if os.path.exists(path):
            return f"{folder}/{name}"
    return None


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
