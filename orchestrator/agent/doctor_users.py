"""Who uses the GPUs: the service's own processes, others by name, and memory that nobody here owns up to.

A leftover on a GPU doesn't make a launch fail: it makes its KV cache small, silently. In a container nvidia-smi may list nobody, or numbers
of the host's PID namespace, so a process counts as seen only where it also has a GPU's device file open.
"""

import os
import re
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.gpu import SECONDS, ComputeApp, parse_apps
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.smi_state import GpuState, ask_states
from orchestrator.agent.wire import Outcome, Verdict

if TYPE_CHECKING:
    from orchestrator.agent.processes import Server

IDLE_MEMORY = 1024
"""MiB. What the driver itself keeps on an idle GPU stays well below (0 on an H200, some hundreds on others)."""

_SOURCE = "nvidia-smi --query-compute-apps"
_QUESTION = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
_DEVICE = re.compile(r"/dev/nvidia\d+$")
_LXC = re.compile(r"/(?:lxc\.payload\.|lxc/)([^/\n]+)")
"""Incus and LXC since 4.0 put a container into lxc.payload.NAME, Proxmox into lxc/ID."""
_DOCKER = re.compile(r"/(docker|libpod)[-/]([0-9a-f]{12})")
_SHOWN = 8


class User(NamedTuple):
    """One process on GPUs. `memory` in MiB over all of them, None where the driver doesn't tell; `container` its name on the host.

    `seen` False: no process of this number that uses a GPU is visible here. `ours` None: nobody can say.
    """

    pid: int
    name: str
    memory: Optional[int]
    gpus: Sequence[str]
    container: Optional[str] = None
    seen: bool = True
    ours: Optional[bool] = None

    def __str__(self) -> str:
        where = f" in container {self.container}" if self.container else ""
        memory = "an unknown amount" if self.memory is None else f"{self.memory} MiB"
        what = f"{self.name}{where}" if self.seen else "not visible here"
        return f"process {self.pid} ({what}): {memory} of {', '.join(self.gpus)}"


def check_users(context: Context) -> List[Verdict]:
    """Foreign processes on the GPUs, and memory in use that no listed process holds."""
    reading = ask_states(context.commands.run)
    if not reading.gpus:
        return []
    output = context.commands.run(_QUESTION, SECONDS)
    if not output.good:
        why = output.errors.strip() or output.text.strip() or f"status {output.status}"
        return [Verdict("gpu_users", Outcome.UNKNOWN, f"who uses the GPUs can't be told: {why}", [], " ".join(_QUESTION), _SOURCE)]
    server, _ = service_server(context)
    users = _users(context, parse_apps(output.text), reading.gpus, server)
    unseen = _unlisted(reading.gpus, users)
    return judge(context, users, unseen, server is not None)


def judge(context: Context, users: Sequence[User], unlisted: Sequence[GpuState], serving: bool) -> List[Verdict]:
    """Verdicts from what was seen. `unlisted` are GPUs with memory in use that no listed process holds; `serving`: our server runs here."""
    foreign = [user for user in users if user.seen and user.ours is False]
    hidden = [user for user in users if not user.seen]
    verdicts = []
    if foreign:
        detail = f"{len(foreign)} process(es) on the GPUs are not the service's{_sum(foreign)}: what they hold is missing from the KV cache"
        pids = ",".join(str(user.pid) for user in foreign)
        step = f"ps -o pid,user,lstart,args -p {pids}; end what is not needed"
        verdicts.append(Verdict("gpu_users", Outcome.WARN, detail, _shown(foreign), step, _SOURCE))
    if hidden or (unlisted and context.in_container and not serving):
        verdicts.append(_hidden(context, hidden, unlisted, serving))
    elif unlisted and not context.in_container:
        detail = "GPU memory is in use, and nvidia-smi lists nobody who holds it"
        evidence = [f"{gpu.label}: {gpu.memory_used} MiB" for gpu in unlisted]
        step = "fuser -v /dev/nvidia*; if nobody has it open: nvidia-smi -r -i " + unlisted[0].address
        verdicts.append(Verdict("gpu_users", Outcome.WARN, detail, evidence, step, f"nvidia-smi --query-gpu=memory.used; {_SOURCE}"))
    return verdicts or [_well(users)]


def _hidden(context: Context, hidden: Sequence[User], unlisted: Sequence[GpuState], serving: bool) -> Verdict:
    evidence = [*_shown(hidden), *(f"{gpu.label}: {gpu.memory_used} MiB in use" for gpu in unlisted)]
    step = context.on_host("nvidia-smi; ps -o pid,cgroup,args -p PID names the container of each")
    if serving:
        detail = "processes on the GPUs can't be seen from here, so whether all are the service's is unknown"
        return Verdict("gpu_users", Outcome.UNKNOWN, detail, evidence, step, _SOURCE)
    detail = "the GPUs are used by what can't be seen from here, and no server of the service runs"
    return Verdict("gpu_users", Outcome.WARN, detail, evidence, step, _SOURCE)


def _well(users: Sequence[User]) -> Verdict:
    if not users:
        return Verdict("gpu_users", Outcome.PASS, "nobody uses the GPUs", source=_SOURCE)
    places = sorted({user.container or "" for user in users} - {""})
    where = f" in container {', '.join(places)}" if places else ""
    if any(user.ours is None for user in users):
        names = ", ".join(sorted({user.name for user in users}))
        return Verdict("gpu_users", Outcome.PASS, f"{len(users)} process(es){where} use the GPUs{_sum(users)}: {names}", source=_SOURCE)
    return Verdict(
        "gpu_users", Outcome.PASS, f"only the service's {len(users)} process(es){where} use the GPUs{_sum(users)}", source=_SOURCE
    )


def _users(context: Context, apps: Sequence[ComputeApp], states: Sequence[GpuState], server: "Optional[Server]") -> List[User]:
    labels = {state.uuid: f"GPU {state.index}" for state in states}
    grouped: Dict[int, List[ComputeApp]] = {}
    for app in apps:
        grouped.setdefault(app.pid, []).append(app)
    members = {member.pid for member in server.members} if server is not None else set()
    return [_user(context, pid, mine, labels, members) for pid, mine in grouped.items()]


def _user(context: Context, pid: int, apps: Sequence[ComputeApp], labels: Dict[str, str], members: Set[int]) -> User:
    known = [app.memory_used for app in apps if app.memory_used is not None]
    gpus = list(dict.fromkeys(labels.get(app.gpu_uuid, app.gpu_uuid) for app in apps))
    memory = sum(known) if known else None
    name = context.files.text(f"/proc/{pid}/comm")
    uses_one = pid in members or not context.in_container or uses_gpu(context.files, pid)
    if name is None or not uses_one:
        return User(pid, "", memory, gpus, seen=False)
    container = None if context.in_container else container_of(context.files.text(f"/proc/{pid}/cgroup") or "")
    return User(pid, name, memory, gpus, container, seen=True, ours=_is_ours(context, pid, container, members))


def _is_ours(context: Context, pid: int, container: Optional[str], members: Set[int]) -> Optional[bool]:
    if context.request.service is not None and context.request.port is not None:
        return pid in members
    ours = context.request.container
    if context.in_container or ours is None:
        return None
    return container is not None and (container == ours or container.endswith(f"_{ours}"))  # Incus: PROJECT_NAME


def _unlisted(states: Sequence[GpuState], users: Sequence[User]) -> List[GpuState]:
    listed = {label for user in users for label in user.gpus}
    return [state for state in states if (state.memory_used or 0) > IDLE_MEMORY and f"GPU {state.index}" not in listed]


def container_of(text: str) -> Optional[str]:
    """The container that the text of /proc/PID/cgroup names, as its host calls it; None outside of any. The outermost counts."""
    lxc = _LXC.search(text)
    if lxc is not None:
        return lxc[1]
    docker = _DOCKER.search(text)
    return f"{docker[1]} {docker[2]}" if docker is not None else None


def uses_gpu(files: KernelFiles, pid: int) -> bool:
    """Whether a process has the device file of a GPU open, as far as that may be seen."""
    folder = files.path(f"/proc/{pid}/fd")
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(_DEVICE.match(_target(f"{folder}/{name}")) for name in names)


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def service_server(context: Context) -> "Tuple[Optional[Server], Optional[str]]":
    """The service's server in this place, and why that can't be told where it can't."""
    if context.request.service is None or context.request.port is None:
        return None, None
    from orchestrator.agent.processes import find_server
    from orchestrator.agent.refusal import AgentRefusal

    try:
        return find_server(context.request.port), None
    except AgentRefusal as refusal:
        return None, refusal.failure.message
    except (OSError, ValueError) as error:
        return None, str(error)


def _shown(users: Sequence[User]) -> List[str]:
    more = [f"and {len(users) - _SHOWN} more"] if len(users) > _SHOWN else []
    return [*(str(user) for user in users[:_SHOWN]), *more]


def _sum(users: Sequence[User]) -> str:
    known = [user.memory for user in users if user.memory is not None]
    return f", {sum(known)} MiB" if known else ""
