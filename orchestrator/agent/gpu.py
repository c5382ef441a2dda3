"""GPUs as nvidia-smi reports them, and who holds their memory. Every call is bounded: a hung driver hangs nvidia-smi too."""

import os
import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Set

from orchestrator.agent import procfs, wire
from orchestrator.agent.command import Output, run_bounded

SECONDS = 20.0
"""nvidia-smi on eight GPUs without persistence mode takes several seconds to wake them."""

_GPU_FIELDS = "index,uuid,name,compute_cap,memory.used,memory.total"
_APP_FIELDS = "gpu_uuid,pid,used_memory"
_SAID_LINES = 4
_DEVICE = r"/dev/nvidia\d+$"


class GpuReading(NamedTuple):
    """What nvidia-smi said. `problem` says why there may be no GPU in it, None when it ended well; `said` are its first lines then."""

    gpus: List[wire.Gpu]
    problem: Optional[str] = None
    said: Sequence[str] = ()


class ComputeApp(NamedTuple):
    """A process that holds memory of one GPU, in MiB (None: the driver does not tell).

    In a container `pid` may be a number of the host's PID namespace, and the list may be empty although there is such a process.
    """

    gpu_uuid: str
    pid: int
    memory_used: Optional[int]


def read_gpus(seconds: float = SECONDS) -> List[wire.Gpu]:
    """All GPUs; empty where nvidia-smi is missing, fails or does not answer in time."""
    return ask_gpus(seconds).gpus


def ask_gpus(seconds: float = SECONDS) -> GpuReading:
    """All GPUs, and why there are none where nvidia-smi is missing, fails or does not answer in time."""
    output = _ask("--query-gpu", _GPU_FIELDS, seconds)
    if output.good:
        return GpuReading(parse_gpus(output.text))
    if output.status is None:
        return GpuReading([], output.errors)
    said = [line.strip() for line in (output.text + "\n" + output.errors).splitlines() if line.strip()]
    return GpuReading([], f"nvidia-smi ended with status {output.status}", said[:_SAID_LINES])


def compute_apps(seconds: float = SECONDS) -> List[ComputeApp]:
    """The processes that the driver names as holders of GPU memory."""
    return parse_apps(_query("--query-compute-apps", _APP_FIELDS, seconds))


def parse_gpus(text: str) -> List[wire.Gpu]:
    """Parse ``--query-gpu`` output (csv, noheader, nounits); rows that are no rows (an error text) are left out."""
    gpus = []
    for row in _rows(text, 6):
        index = _number(row[0])
        if index is not None:
            known = [value if not value.startswith("[") else "" for value in row]
            gpus.append(wire.Gpu(index, known[1], known[2], known[3], _number(row[4]) or 0, _number(row[5]) or 0))
    return gpus


def parse_apps(text: str) -> List[ComputeApp]:
    """Parse ``--query-compute-apps`` output (csv, noheader, nounits)."""
    apps = []
    for row in _rows(text, 3):
        pid = _number(row[1])
        if pid is not None:
            apps.append(ComputeApp(row[0], pid, _number(row[2])))
    return apps


def device_holders() -> Dict[int, Set[str]]:
    """Visible processes that have a GPU's device file open, and which."""
    found: Dict[int, Set[str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            devices = {target for target in procfs.descriptor_targets(int(name)) if re.match(_DEVICE, target)}
            if devices:
                found[int(name)] = devices
    return found


def memory_holders(apps: Sequence[ComputeApp] = ()) -> List[str]:
    """Who may hold GPU memory, for a person to read: the driver's list, then holders of device files that it doesn't name."""
    named = {app.pid for app in apps}
    lines = [
        f"{_describe(app.pid)}: {'?' if app.memory_used is None else app.memory_used} MiB of {app.gpu_uuid} (nvidia-smi)" for app in apps
    ]
    lines += [f"{_describe(pid)}: has {', '.join(sorted(files))} open" for pid, files in device_holders().items() if pid not in named]
    return lines


def _describe(pid: int) -> str:
    process = procfs.read_process(pid)
    return f"process {process}" if process is not None else f"process {pid}, not visible here"


def _query(question: str, fields: str, seconds: float) -> str:
    output = _ask(question, fields, seconds)
    return output.text if output.good else ""


def _ask(question: str, fields: str, seconds: float) -> Output:
    return run_bounded(["nvidia-smi", f"{question}={fields}", "--format=csv,noheader,nounits"], seconds)


def _rows(text: str, columns: int) -> List[List[str]]:
    rows = ([value.strip() for value in line.split(",")] for line in text.splitlines())
    return [row for row in rows if len(row) == columns]


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None
