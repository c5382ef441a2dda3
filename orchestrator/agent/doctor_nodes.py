"""Device nodes of the NVIDIA driver: whether they are nodes at all, of the numbers that the kernel knows, and can be opened.

What each fault does to CUDA was measured on driver 580.159.04 (:mod:`cuda_matrix`). Major 195 is the driver's own; those of nvidia-uvm and
nvidia-caps are given out when the module loads (alloc_chrdev_region, uvm.c), so they change with kernels and between boots.
"""

import errno
import os
import re
import stat
from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

from orchestrator.agent.codec import record
from orchestrator.agent.doctor_context import Context, DeviceNode
from orchestrator.agent.driver import is_loaded
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.wire import Outcome, Verdict

CONTROL = "/dev/nvidiactl"
UNIFIED_MEMORY = "/dev/nvidia-uvm"
DEVICES = "/proc/devices"

OPEN_SECONDS = 20.0
"""Opening a node wakes its GPU where nothing keeps it awake."""

_GPU_NODE = re.compile(r"/dev/nvidia(\d+)$")
_DRIVER_NAMES = ("nvidia", "nvidia-frontend", "nvidiactl")
_DRIVER_MAJOR = 195
_MINORS = {CONTROL: 255, UNIFIED_MEMORY: 0}

_OPEN_PROGRAM = """
import os, signal, sys
signal.alarm(30)
for path in sys.argv[1:]:
    print(path, end=" ", flush=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Fault:
    """What is wrong with a node: the values of :attr:`NodeFault.kind`."""

    MISSING = "missing"
    EMPTY_FILE = "empty file"
    NO_DEVICE = "no device"
    OLD_NUMBER = "old number"
    DENIED = "denied"
    FAILS = "fails"
    HANGS = "hangs"


_TOGETHER = {
    Fault.MISSING: "are missing",
    Fault.EMPTY_FILE: "are empty files",
    Fault.NO_DEVICE: "are no character devices",
    Fault.OLD_NUMBER: "have another number than the kernel's",
    Fault.DENIED: "may not be opened",
    Fault.FAILS: "can't be opened",
    Fault.HANGS: "hang when they are opened",
}
"""What is said of several with one kind of fault."""


@record(frozen=True)
class NodeFault:
    """One node that is of no use, why, and what to type. `detail` is a sentence without the path."""

    path: str
    kind: str
    detail: str
    cure: str = ""


@record(frozen=True)
class Openings:
    """What opening the nodes as the server's user gave: errno by path, 0 for one that opened. `problem`: it could not be tried."""

    numbers: Dict[str, int]
    hangs: Optional[str] = None
    problem: Optional[str] = None


def check_nodes(context: Context) -> List[Verdict]:
    """All nodes that a server needs, as one verdict for each kind of fault."""
    if context.request.expected_gpus == 0 or not (is_loaded(context.files) or context.nodes):
        return []
    if not context.nodes and context.in_container and context.request.expected_gpus is None:
        detail = "this container was given no NVIDIA device, though the host's driver is loaded"
        step = f"nothing if its servers use no GPU; otherwise give it {CONTROL}, {UNIFIED_MEMORY} and its GPUs in its configuration"
        return [Verdict("device_nodes", Outcome.WARN, detail, next_step=step, source="/dev")]
    found, openings = faults(context), open_nodes(context)
    verdicts = [_verdict(context, kind, [fault for fault in found if fault.kind == kind]) for kind in _kinds(found)]
    if openings.problem is not None:
        step = "correct `python:` and `user:` of the service, so that the nodes can be opened as its server would"
        detail = f"whether the device nodes can be opened is not known: {openings.problem}"
        verdicts.append(Verdict("device_nodes", Outcome.UNKNOWN, detail, next_step=step, source=_open_source(context)))
    if verdicts:
        return verdicts
    fine = [path for path in needed(context) if path in context.nodes]
    detail = f"{len(fine)} device nodes have the kernel's numbers and open: {' '.join(map(os.path.basename, fine))}"
    return [Verdict("device_nodes", Outcome.PASS, detail, _younger(context, fine), source=f"/dev, {DEVICES}, {_open_source(context)}")]


def needed(context: Context) -> List[str]:
    """Paths of the nodes that a server here needs: on a host those of all its GPUs, in a container those that it was given."""
    gpus = [path for path in context.nodes if _GPU_NODE.match(path)]
    if not context.in_container:
        gpus += [f"/dev/nvidia{minor}" for minor in driver_minors(context.files) if f"/dev/nvidia{minor}" not in gpus]
    return [CONTROL, UNIFIED_MEMORY, *(gpus or ["/dev/nvidia0"])]


def driver_minors(files: KernelFiles) -> List[int]:
    """The minor numbers of the GPUs that the driver holds (/proc/driver/nvidia/gpus/ADDRESS/information)."""
    texts = (files.text(path) or "" for path in files.glob("/proc/driver/nvidia/gpus/*/information"))
    found = (re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE) for text in texts)
    return sorted(int(match.group(1)) for match in found if match is not None)


def faults(context: Context) -> List[NodeFault]:
    """What is wrong with the needed nodes, as they were before anything was run, and when they were opened."""
    openings = open_nodes(context)
    found = list(_faults_seen(context).values())
    for path, number in openings.numbers.items():
        kind = Fault.DENIED if number in (errno.EPERM, errno.EACCES) else Fault.FAILS
        if number not in (0, errno.ENOENT):
            found.append(NodeFault(path, kind, _opening_detail(context, path, number)))
    if openings.hangs is not None:
        found.append(NodeFault(openings.hangs, Fault.HANGS, f"opening it did not end within {OPEN_SECONDS:g} s"))
    return [replace(fault, cure=cure(context, fault.kind, fault.path)) for fault in found]


def _faults_seen(context: Context) -> Dict[str, NodeFault]:
    majors = character_majors(context.files)
    seen = (_fault_seen(path, context.nodes.get(path), majors) for path in needed(context))
    return {fault.path: fault for fault in seen if fault is not None}


def _fault_seen(path: str, node: Optional[DeviceNode], majors: Optional[Dict[str, int]]) -> Optional[NodeFault]:
    if node is None:
        return NodeFault(path, Fault.MISSING, "it is missing")
    if node.empty_file:
        return NodeFault(path, Fault.EMPTY_FILE, "it is an empty file, as an `optional,create=file` mount leaves where there is no node")
    if node.device is None:
        return NodeFault(path, Fault.NO_DEVICE, f"it is no character device (mode {stat.filemode(node.mode)})")
    wanted = _wanted_number(path, majors)
    if wanted is None:
        if majors is None:
            return None
        return NodeFault(path, Fault.OLD_NUMBER, f"it has number {_number(node.device)}, and the kernel knows no such driver")
    if node.device != wanted:
        detail = f"it has number {_number(node.device)}, the kernel's is {_number(wanted)}: it is of an earlier boot or kernel"
        return NodeFault(path, Fault.OLD_NUMBER, detail)
    return None


def _wanted_number(path: str, majors: Optional[Dict[str, int]]) -> Optional[Tuple[int, int]]:
    """The number that a node should have; None where the kernel does not know its driver."""
    if majors is None:
        return None
    match = _GPU_NODE.match(path)
    minor = int(match.group(1)) if match else _MINORS[path]
    if path == UNIFIED_MEMORY:
        return (majors["nvidia-uvm"], minor) if "nvidia-uvm" in majors else None
    known = [majors[name] for name in _DRIVER_NAMES if name in majors]
    return (known[0], minor) if known else None


def character_majors(files: KernelFiles) -> Optional[Dict[str, int]]:
    """Name -> major of the character devices that the kernel knows; None where /proc/devices can't be read."""
    text = files.text(DEVICES)
    if text is None:
        return None
    section = text.partition("Block devices:")[0]
    rows = (line.split() for line in section.splitlines())
    return {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit()}


def open_nodes(context: Context) -> Openings:
    """Open the good nodes read-write, as the server's user, in a child that may never return: an old number may be another driver's."""
    bad = _faults_seen(context)
    paths = [path for path in needed(context) if path not in bad]
    if not paths:
        return Openings({})
    done = context.commands.run_python(["-I", "-S", "-c", _OPEN_PROGRAM, *map(context.files.path, paths)], OPEN_SECONDS)
    rows = [line.split(" ") for line in done.output.splitlines()]
    real = {context.files.path(path): path for path in paths}
    numbers = {real[row[0]]: int(row[1]) for row in rows if len(row) == 2 and row[0] in real and row[1].isdigit()}
    if done.problem is not None and "did not answer" in done.problem:
        return Openings(numbers, hangs=next((path for path in paths if path not in numbers), None))
    if done.problem is not None or done.status != 0:
        return Openings(numbers, problem=done.problem or "; ".join(done.last_errors(1)) or f"the child ended with status {done.status}")
    return Openings(numbers)


def _opening_detail(context: Context, path: str, number: int) -> str:
    meaning = {
        errno.EPERM: "the container's device rules do not allow it",
        errno.EACCES: f"its mode {stat.filemode(context.nodes[path].mode)}, a nodev mount or the device rules do not allow it",
        errno.ENXIO: "no driver answers to its number",
        errno.ENODEV: "no driver answers to its number",
        errno.EIO: "the driver can't start this GPU",
    }.get(number)
    return f"it can't be opened read-write as {context.user}: {os.strerror(number)}" + (f" ({meaning})" if meaning else "")


def _kinds(found: List[NodeFault]) -> List[str]:
    return sorted({fault.kind for fault in found}, key=[fault.kind for fault in found].index)


def _verdict(context: Context, kind: str, found: List[NodeFault]) -> Verdict:
    outcome = Outcome.REFUSE if _hurts(context, kind) else Outcome.WARN
    if len(found) == 1:
        detail, evidence = f"{found[0].path}: {found[0].detail}", []
    else:
        detail = f"{len(found)} device nodes {_TOGETHER[kind]}: {', '.join(fault.path for fault in found)}"
        evidence = [] if kind == Fault.MISSING else [f"{fault.path}: {fault.detail}" for fault in found]
    if outcome == Outcome.WARN and context.request.cuda:
        evidence.append("CUDA initialises all the same: its library made the node good, and has to again after the next start")
    evidence += _younger(context, [fault.path for fault in found if fault.path in context.nodes])
    source = _open_source(context) if kind in (Fault.DENIED, Fault.FAILS, Fault.HANGS) else f"{found[0].path}, {DEVICES}"
    return Verdict("device_nodes", outcome, detail, evidence, cure(context, kind, *(fault.path for fault in found)), source)


def _hurts(context: Context, kind: str) -> bool:
    """Whether a server started here would fail. As root with CAP_MKNOD libcuda makes nodes good by itself, which cuInit has shown then."""
    from orchestrator.agent.doctor_cuda import cuda_works

    if kind == Fault.HANGS:
        return True
    served_here = context.in_container or context.request.service is not None
    return served_here and not cuda_works(context)


def cure(context: Context, kind: str, *paths: str) -> str:
    """What to type for faulty nodes. A bind mount of a node is not repaired by what happens on the host later: hence the restart."""
    path = " ".join(paths)
    make = _making(paths)
    restart = ", then restart the container" if context.in_container else ", then restart the containers that use it"
    if kind in (Fault.HANGS, Fault.FAILS):
        return context.on_host("dmesg -T | grep -e Xid -e NVRM; a GPU that does not come back needs a reboot")
    if kind == Fault.DENIED:
        allow = f"allow {path} in the container's configuration (Proxmox: {_proxmox(paths)}; plain LXC: lxc.cgroup2.devices.allow)"
        return f"on the host: {allow}, then restart the container" if context.in_container else f"ls -l {path}; {make}"
    if kind == Fault.MISSING and context.in_container:
        return f"on the host: {make}; give the container {path} (Proxmox: {_proxmox(paths)}; plain LXC: lxc.mount.entry){restart}"
    remove = f"rm {path}; " if kind != Fault.MISSING and not context.in_container else ""
    load = "modprobe nvidia-uvm; " if UNIFIED_MEMORY in paths and "nvidia-uvm" not in (character_majors(context.files) or {}) else ""
    return context.on_host(f"{load}{remove}{make}{restart}")


def _making(paths: Sequence[str]) -> str:
    """nvidia-modprobe makes nvidiactl beside any GPU's node (``-c MINOR``, as often as needed), and nvidia-uvm with ``-u``."""
    minors = [match.group(1) for match in map(_GPU_NODE.match, paths) if match is not None]
    unified = ["-u"] if UNIFIED_MEMORY in paths or not minors else []
    return " ".join(["nvidia-modprobe", *unified, *(f"-c{minor}" for minor in minors or ["0"])])


def _proxmox(paths: Sequence[str]) -> str:
    return ", ".join(f"dev{number}: {path}" for number, path in enumerate(paths))


def _younger(context: Context, paths: List[str]) -> List[str]:
    """Nodes that were made or changed after the container's start, so by something in it or given to it since."""
    began = context.started if context.in_container else None
    younger = [path for path in paths if began is not None and context.nodes[path].changed > began]
    return [f"changed after the container's start: {' '.join(younger)}"] if younger else []


def _open_source(context: Context) -> str:
    return f"open(2) as {context.user}"


def _number(device: Tuple[int, int]) -> str:
    return f"{device[0]}:{device[1]}"
