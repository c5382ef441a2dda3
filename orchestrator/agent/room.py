"""Whether there is room beside the serving server for another one that waits at its gate.

It needs memory of the machine for its processes, on each GPU what a CUDA context and the communicators' buffers take, and shared memory.
Nothing of it may be what the old server lives on: it takes memory of its GPUs anew for activations, and SGLang's next allocation that
fails ends it. So a headroom is left on each GPU, and whoever is in doubt starts the next server after the stop.

What a staged server takes is measured at its gate (:mod:`footprints`). Until one was, defaults hold:

- memory: 2 GiB for each rank and 2 GiB for the front end (0.5.17 on an H200, ready: main 1.0, detokenizer 1.0, scheduler 1.9 GiB resident),
  half of it on CPU (0.5.23 at its gate: 0.5 GiB each, and 0.7 once ready);
- a GPU: 1 GiB for the context of a single rank (0.5.17 on an H200: 0.7 GiB before the weights), and 3 GiB more with several ranks
  (public logs of "Init torch distributed ends. mem usage=": 0.4 GB on four PCIe cards, 2.0 on eight H200, 2.5 on eight B200).
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, Mapping, NamedTuple, Optional, Sequence

from orchestrator.agent import host_memory, wire
from orchestrator.agent.arguments import read_textually
from orchestrator.agent.footprints import Footprint, newest_footprint
from orchestrator.agent.host_memory import GIB, HostMemory, size
from orchestrator.agent.memory_checks import PROCESS_BYTES, chosen_gpus, gib
from orchestrator.agent.place_checks import SHARED_MEMORY_BYTES
from orchestrator.agent.requirements import parallel_size, visible_gpus
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import Outcome, Verdict

if TYPE_CHECKING:
    from orchestrator.agent.gpu import GpuReading

CHECK = "staging"

CONTEXT_MIB = 1024
COMMUNICATORS_MIB = 3072
DRIVER_MIB = 640
"""What the driver keeps of a GPU and counts neither as used nor gives to anybody (615 MiB of an H200)."""
LEFT_BYTES = GIB
"""Of the machine's memory, that stays for everybody else."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount itself, no file in it


@dataclass(frozen=True)
class Need:
    """What a server takes at its gate: bytes of memory, MiB of each GPU by UUID. `basis` says in words how that is known."""

    resident: int
    gpus: Mapping[str, int]
    basis: str


@dataclass(frozen=True)
class Seen:
    """What there is. `gpus` are those that the ranks will use; `problem` says why nobody can tell of them; `shared` bytes of /dev/shm."""

    memory: HostMemory
    gpus: Sequence[wire.Gpu] = ()
    problem: Optional[str] = None
    shared: Optional[int] = None


def judge(
    launch: wire.Launch,
    folder: StateFolder,
    policy: wire.Policy,
    *,
    values: Optional[Mapping[str, Any]] = None,
    environment: Optional[Mapping[str, str]] = None,
    reading: "Optional[GpuReading]" = None,
) -> Verdict:
    """Whether the launch can be staged now. PASS, or why not; never raises.

    Args:
        folder: the service's, for what an earlier one took.
        values: the arguments as SGLang's parser reads them; by default as they are written.
        environment: the server's whole one, which says what GPUs it sees; by default the launch's own.
        reading: what nvidia-smi has said just now; by default it is asked.
    """
    from orchestrator.agent import systemd

    values = read_textually(launch.arguments).values if values is None else values
    environment = launch.environment if environment is None else environment
    try:
        memory = host_memory.read(systemd.is_available())
        seen = Seen(memory, *_gpus(values, environment, reading), _free_shared())
        return verdict(seen, needed(folder, values, seen.gpus), policy)
    except Exception as error:  # noqa: BLE001 - whoever can't tell stages nothing
        return Verdict(CHECK, Outcome.UNKNOWN, f"whether there is room can't be told: an unexpected error: {error!r}")


def needed(folder: StateFolder, values: Mapping[str, Any], gpus: Sequence[wire.Gpu]) -> Need:
    """What the launch will take at its gate: what the newest one with as many ranks took, else the defaults."""
    ranks = parallel_size(values)
    found = newest_footprint(folder, ranks)
    if found is None:
        return _default(ranks, gpus, on_cpu=_on_cpu(values), basis="by default, as none was staged here yet")
    launch_id, footprint = found
    default = _default(ranks, gpus, on_cpu=_on_cpu(values), basis=f"as {launch_id} took at its gate")
    return Need(footprint.resident or default.resident, {gpu.uuid: _measured(footprint, gpu, default) for gpu in gpus}, default.basis)


def verdict(seen: Seen, need: Need, policy: wire.Policy) -> Verdict:
    """Judge what there is by what is needed."""
    found = [_memory(seen.memory, need), *_gpu_memory(seen, need, policy), _shared(seen.shared)]
    against = [part for part in found if part.outcome == Outcome.WARN] or [part for part in found if part.outcome == Outcome.UNKNOWN]
    step = "free -h; nvidia-smi; `headroom` under `policy:` of the service; it is started after the stop instead" if against else None
    told = "; ".join(part.text for part in against or found)
    return Verdict(CHECK, against[0].outcome if against else Outcome.PASS, told, [f"needed {need.basis}"], step, "/proc, nvidia-smi")


class _Part(NamedTuple):
    outcome: str
    text: str


def _memory(memory: HostMemory, need: Need) -> _Part:
    wanted = f"{size(need.resident)} are needed {need.basis}, and {size(LEFT_BYTES)} for others"
    free = memory.free
    if free is None:
        return _Part(Outcome.UNKNOWN, f"{memory.told()}; {wanted}")
    return _Part(Outcome.PASS if free >= need.resident + LEFT_BYTES else Outcome.WARN, f"{memory.told()}; {wanted}")


def _gpu_memory(seen: Seen, need: Need, policy: wire.Policy) -> List[_Part]:
    if seen.problem is not None:
        return [_Part(Outcome.UNKNOWN, f"what is free on the GPUs can't be told: {seen.problem}")]
    if not seen.gpus:
        return []
    short = [gpu for gpu in seen.gpus if _free_of(gpu) < _wanted(gpu, need, policy)]
    named = short or [min(seen.gpus, key=lambda gpu: _free_of(gpu) - _wanted(gpu, need, policy))]
    told = ", ".join(
        f"GPU {gpu.index} has {gib(_free_of(gpu))} free, {gib(_wanted(gpu, need, policy))} are needed"
        f" ({gib(need.gpus[gpu.uuid])} and {policy.headroom:g} GiB of headroom)"
        for gpu in named
    )
    if short:
        return [_Part(Outcome.WARN, told)]
    return [_Part(Outcome.PASS, told if len(seen.gpus) == 1 else f"{told}, and that is the fullest of {len(seen.gpus)}")]


def _shared(free: Optional[int]) -> _Part:
    if free is None:
        return _Part(Outcome.UNKNOWN, f"{_SHARED_MEMORY} can't be looked at")
    outcome = Outcome.PASS if free >= SHARED_MEMORY_BYTES else Outcome.WARN
    return _Part(outcome, f"{size(free)} are free in {_SHARED_MEMORY}; {size(SHARED_MEMORY_BYTES)} are needed")


def _free_of(gpu: wire.Gpu) -> int:
    return max(0, gpu.memory_total - gpu.memory_used - DRIVER_MIB)


def _wanted(gpu: wire.Gpu, need: Need, policy: wire.Policy) -> int:
    return need.gpus[gpu.uuid] + int(policy.headroom * 1024)


def _default(ranks: int, gpus: Sequence[wire.Gpu], *, on_cpu: bool, basis: str) -> Need:
    memory = CONTEXT_MIB + (COMMUNICATORS_MIB if ranks > 1 else 0)
    return Need((ranks + 1) * PROCESS_BYTES // (2 if on_cpu else 1), {gpu.uuid: memory for gpu in gpus}, basis)


def _measured(footprint: Footprint, gpu: wire.Gpu, default: Need) -> int:
    memory = footprint.of(gpu.uuid)
    return default.gpus[gpu.uuid] if memory is None else memory


def _gpus(
    values: Mapping[str, Any], environment: Mapping[str, str], reading: "Optional[GpuReading]"
) -> "tuple[List[wire.Gpu], Optional[str]]":
    """The GPUs that the ranks will use, and why nobody can tell of them."""
    if _on_cpu(values):
        return [], None
    from orchestrator.agent import cuda
    from orchestrator.agent.gpu import ask_gpus

    reading = ask_gpus() if reading is None else reading
    if reading.gpus:
        ranks = parallel_size(values)
        chosen = chosen_gpus(visible_gpus(reading.gpus, environment), values, ranks)
        short = f"{ranks} are wanted, and nvidia-smi lists {len(chosen)} that the service may use" if len(chosen) < ranks else None
        return chosen, short
    return [], (reading.problem or "nvidia-smi lists none") if cuda.device_nodes() else None


def _on_cpu(values: Mapping[str, Any]) -> bool:
    return str(values.get("device")) == "cpu"


def _free_shared() -> Optional[int]:
    try:
        room = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize
