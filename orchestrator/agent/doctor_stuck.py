"""Processes that a hung driver keeps in the kernel, where no signal reaches them.

State D alone is nothing: every read of a disk passes through it. A task counts as stuck when it stays in D without having run at all in
between. Nothing is read of such a process that needs its memory (cmdline, environ): that read would hang with it.
"""

import os
import re
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.doctor_users import uses_gpu
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.procfs import parse_stat
from orchestrator.agent.wire import Outcome, Verdict

WATCH_SECONDS = 10.0
"""How long a task must stay where it is; looked at only when there is one in state D. Waiting for a GPU that another program wakes takes
seconds in the same place."""
_SAMPLES = 20

_NVIDIA_FUNCTION = re.compile(r"_?nv_|_?nv\d|nvidia|rm_|uvm_|os_acquire_|os_wait")
"""Functions of the driver's modules in which a task waits (kernel-open/nvidia, nvidia-uvm), as /proc/PID/wchan names them."""
_LIKELY = re.compile(r"nvidia|python|sglang|pt_main_thread|ray::|vllm")
"""Names of processes whose other threads are looked at too."""


class Task(NamedTuple):
    """One thread in state D. `switches` counts how often it has run; `waits_in` is the kernel's function, empty where it isn't told."""

    pid: int
    thread: int
    name: str
    switches: str
    waits_in: str

    def __str__(self) -> str:
        thread = f", thread {self.thread}" if self.thread != self.pid else ""
        where = f" in {self.waits_in}" if self.waits_in else ""
        return f"process {self.pid} ({self.name}{thread}), state D{where}"


def check_stuck(context: Context, sleep: Callable[[float], None] = time.sleep) -> List[Verdict]:
    """Processes stuck in the NVIDIA driver; not those that this diagnosis itself has left behind, which are told elsewhere."""
    before = suspects(context.files)
    for _ in range(_SAMPLES):
        if not before:
            return []
        sleep(WATCH_SECONDS / _SAMPLES)
        now = suspects(context.files)
        before = {key: task for key, task in before.items() if now.get(key) == task}
    own = {stuck.pid for stuck in context.commands.stuck} | {os.getpid()}
    found = [task for task in before.values() if task.pid not in own and _parent(context.files, task.pid) not in own]
    if not found:
        return []
    detail = f"{len({task.pid for task in found})} process(es) hang in the NVIDIA driver and can't be killed; what they hold stays held"
    step = "reboot the host: nothing else ends them; before that, save dmesg (Xid, GSP, AER lines)"
    evidence = [str(task) for task in found[:8]]
    return [Verdict("stuck_processes", Outcome.REFUSE, detail, evidence, step, "/proc/PID/{stat,status,wchan,fd}")]


def suspects(files: KernelFiles) -> Dict[Tuple[int, int], Task]:
    """Threads in state D that wait in the NVIDIA driver, by process and thread."""
    found = {}
    for pid in _numbers(files.path("/proc")):
        name, state = _name_and_state(files, f"/proc/{pid}")
        threads = _numbers(files.path(f"/proc/{pid}/task")) if name is not None and _LIKELY.search(name) else []
        for thread in threads or [pid]:
            folder = f"/proc/{pid}/task/{thread}" if threads else f"/proc/{pid}"
            its_state = state if thread == pid else _name_and_state(files, folder)[1]
            task = _task(files, pid, thread, name or "", folder) if its_state == "D" else None
            if task is not None:
                found[pid, thread] = task
    return found


def _task(files: KernelFiles, pid: int, thread: int, name: str, folder: str) -> Optional[Task]:
    waits_in = files.text(f"{folder}/wchan") or ""
    waits_in = "" if waits_in == "0" else waits_in
    if not (_NVIDIA_FUNCTION.match(waits_in) or name.startswith("nvidia-") or uses_gpu(files, pid)):
        return None
    return Task(pid, thread, name, _switches(files, folder), waits_in)


def _switches(files: KernelFiles, folder: str) -> str:
    lines = (files.text(f"{folder}/status") or "").splitlines()
    return " ".join(line for line in lines if "ctxt_switches" in line)


def _name_and_state(files: KernelFiles, folder: str) -> Tuple[Optional[str], str]:
    try:
        stat = parse_stat(files.text(f"{folder}/stat") or "")
    except (ValueError, IndexError):
        return None, ""
    return stat.name, stat.state


def _parent(files: KernelFiles, pid: int) -> int:
    try:
        return parse_stat(files.text(f"/proc/{pid}/stat") or "").parent
    except (ValueError, IndexError):
        return 0


def _numbers(folder: str) -> List[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except OSError:
        return []
