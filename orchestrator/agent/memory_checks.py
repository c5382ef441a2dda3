"""Whether there will be memory for a server once the old one has gone: of the GPUs, and of the machine. Each check reads and answers.

SGLang takes ``mem_fraction_static`` of what is free on a GPU when it starts, for weights and KV cache together (0.5.9
model_runner.py, 0.5.23 kv_cache_configurator.py): what others hold shrinks the KV cache, until the weights themselves don't fit.
With several ranks it ends at once when one GPU has less than nine tenths of another's free memory (0.5.9 to 0.5.23, "memory capacity is
unbalanced").
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from orchestrator.agent import procfs, wire
from orchestrator.agent.checkpoint import Checkpoint
from orchestrator.agent.host_memory import GIB, meminfo, size
from orchestrator.agent.requirements import parallel_size, visible_gpus
from orchestrator.agent.wire import Outcome, Verdict

BALANCE = 0.9
BALANCE_SWITCH = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
FOREIGN_MIB = 256
"""What others' contexts may take of a GPU without a word: a desktop, a monitor, another server's idle rank."""
DRIVER_MIB = 1024
"""What the driver itself keeps of a GPU, at most; more than that is somebody's."""
DEFAULT_FRACTION = 0.9
"""The most that SGLang chooses by itself on a GPU of this size, where the arguments say nothing."""
PROCESS_BYTES = 2 * GIB
"""A rank's own memory while it loads, weights not counted: they are mapped from the disk."""


@dataclass(frozen=True)
class Holder:
    """A process that has memory of a GPU, in MiB (None: the driver does not tell)."""

    gpu_uuid: str
    pid: int
    memory: Optional[int]
    name: str = ""


@dataclass(frozen=True)
class GpuUse:
    """Who has the GPUs' memory: `own` are holders of the server that will be replaced, `others` visible processes, `unseen` numbers
    that mean no process here (another PID namespace's, which may even be the old server's).
    """

    own: List[Holder] = field(default_factory=list)
    others: List[Holder] = field(default_factory=list)
    unseen: List[Holder] = field(default_factory=list)

    def of(self, uuid: str) -> List[Holder]:
        return [holder for holder in self.others if holder.gpu_uuid == uuid]


def read_use(members: Sequence[int]) -> GpuUse:
    """Ask the driver who holds memory. `members` are the processes of the server that will be replaced."""
    from orchestrator.agent import gpu

    apps, opened = gpu.compute_apps(), gpu.device_holders()
    use = GpuUse()
    for app in apps:
        process = procfs.read_process(app.pid) if app.pid in opened else None
        holder = Holder(app.gpu_uuid, app.pid, app.memory_used, "" if process is None else str(process))
        kind = use.unseen if process is None else use.own if app.pid in members else use.others
        kind.append(holder)
    return use


def check_gpu_memory(
    gpus: Sequence[wire.Gpu],
    use: GpuUse,
    values: Mapping[str, Any],
    environment: Mapping[str, str],
    checkpoint: Optional[Checkpoint],
    *,
    replaces: bool,
) -> Optional[Verdict]:
    """Whether the weights will fit, and who takes room from the KV cache; None where there is no GPU.

    `replaces`: a server is stopped first, whose memory comes back.
    """
    ranks = parallel_size(values)
    chosen = chosen_gpus(visible_gpus(gpus, environment), values, ranks)
    if not chosen:
        return None
    free = {gpu.uuid: _free(gpu, use, replaces=replaces) for gpu in chosen}
    evidence = [line for gpu in chosen for line in _evidence(gpu, use, free[gpu.uuid])]
    step = "end what holds it, or leave these GPUs out: CUDA_VISIBLE_DEVICES, --base-gpu-id; nvidia-smi on the host names the holders"
    too_small = _too_small(chosen, free, values, ranks, checkpoint)
    if too_small is not None:
        return Verdict("gpu_memory", Outcome.REFUSE, too_small, evidence, step)
    least, most = min(free.values()), max(free.values())
    if len(chosen) > 1 and least < BALANCE * most and _checks_balance(environment):
        detail = f"free memory will differ from {gib(least)} to {gib(most)} between the GPUs: SGLang ends at once below nine tenths"
        return Verdict("gpu_memory", Outcome.REFUSE, detail, evidence, step)
    if evidence:
        detail = "others hold memory of these GPUs, which the KV cache will lack"
        return Verdict("gpu_memory", Outcome.WARN, detail, evidence, step)
    return Verdict(
        "gpu_memory",
        Outcome.PASS,
        f"at least {gib(least)} of each of {len(chosen)} GPU(s) will be free" + _fits(values, ranks, checkpoint),
    )


def chosen_gpus(gpus: Sequence[wire.Gpu], values: Mapping[str, Any], ranks: int) -> List[wire.Gpu]:
    """The GPUs that the ranks will take, in SGLang's own order."""
    first, step = _number(values, "base_gpu_id", 0), max(1, _number(values, "gpu_id_step", 1))
    return list(gpus)[first::step][:ranks]


def _free(gpu: wire.Gpu, use: GpuUse, *, replaces: bool) -> int:
    """MiB that will be free once the old server has gone. What nobody is named for counts as the old server's where there is one."""
    others = sum(holder.memory or 0 for holder in use.of(gpu.uuid))
    if not replaces:
        return gpu.memory_total - max(gpu.memory_used, others)
    own = [holder.memory for holder in use.own if holder.gpu_uuid == gpu.uuid]
    known = [memory for memory in own if memory is not None]
    if own and len(known) == len(own):
        return gpu.memory_total - max(0, gpu.memory_used - sum(known))
    return gpu.memory_total - others


def _evidence(gpu: wire.Gpu, use: GpuUse, free: int) -> List[str]:
    """Who takes memory of the GPU from the new server."""
    named = [holder for holder in use.of(gpu.uuid) if holder.memory is None or holder.memory >= FOREIGN_MIB]
    lines = [f"GPU {gpu.index}: process {holder.name} holds {'?' if holder.memory is None else holder.memory} MiB" for holder in named]
    unknown = gpu.memory_total - free - sum(holder.memory or 0 for holder in use.of(gpu.uuid))
    if unknown > DRIVER_MIB:
        pids = ", ".join(str(holder.pid) for holder in use.unseen if holder.gpu_uuid == gpu.uuid)
        who = f"process {pids} of another PID namespace" if pids else "somebody who is not visible here"
        lines.append(f"GPU {gpu.index}: {who} holds {unknown} MiB")
    return lines


def _too_small(
    gpus: Sequence[wire.Gpu], free: Mapping[str, int], values: Mapping[str, Any], ranks: int, checkpoint: Optional[Checkpoint]
) -> Optional[str]:
    """Why the weights can't fit, where that is certain: each rank holds at least its part of what is on the disk."""
    share = _weights_mib(values, ranks, checkpoint)
    if share is None:
        return None
    fraction = _fraction(values)
    for gpu in gpus:
        room = int(free[gpu.uuid] * (fraction or 1.0))
        if share > room:
            part = f", of which {fraction:g} is SGLang's (--mem-fraction-static)" if fraction else ""
            return (
                f"the weights can't fit: at least {gib(share)} for each of {ranks} GPU(s), and GPU {gpu.index} will have "
                f"{gib(free[gpu.uuid])} of {gib(gpu.memory_total)} free{part}"
            )
    return None


def _weights_mib(values: Mapping[str, Any], ranks: int, checkpoint: Optional[Checkpoint]) -> Optional[int]:
    """None where the disk does not tell what a rank will hold: quantized while loading, offloaded, or made up."""
    changed = str(values.get("load_format") or "auto") not in ("auto", "safetensors", "pt") or _number(values, "cpu_offload_gb", 0) > 0
    shrinks = str(values.get("quantization") or "") in ("fp8", "nvfp4_online", "mxfp4", "mxfp8", "bitsandbytes", "w8a8_int8", "w8a8_fp8")
    shrinks = shrinks and (checkpoint is None or not checkpoint.quantization)
    if checkpoint is None or not checkpoint.weights or changed or shrinks or values.get("torchao_config"):
        return None
    return checkpoint.weights // ranks >> 20


def _fits(values: Mapping[str, Any], ranks: int, checkpoint: Optional[Checkpoint]) -> str:
    share = _weights_mib(values, ranks, checkpoint)
    return "" if share is None else f", for {gib(share)} of weights each"


def _fraction(values: Mapping[str, Any]) -> Optional[float]:
    try:
        return float(values["mem_fraction_static"])
    except (KeyError, TypeError, ValueError):
        return None


def _checks_balance(environment: Mapping[str, str]) -> bool:
    """SGLang only logs it where one of its switches says so (0.5.9: SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK)."""
    return environment.get("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "").lower() not in ("1", "true") and environment.get(
        BALANCE_SWITCH, "true"
    ).lower() in ("1", "true")


def check_host_memory(values: Mapping[str, Any], members: Sequence[int]) -> Verdict:
    """Whether the machine has memory for the ranks, and for what the arguments pin; what the old server will give back counts as free."""
    available = meminfo("MemAvailable")
    if available is None:
        return Verdict("memory", Outcome.UNKNOWN, "/proc/meminfo has no MemAvailable", next_step="cat /proc/meminfo")
    back = sum(_anonymous(pid) for pid in members)
    needed, why = needed_memory(values)
    seen = f"{size(available)} of memory are available" + (f" and {size(back)} come back with the old server" if back else "")
    if available + back < needed:
        step = "free -h; a smaller --hicache-size or --cpu-offload-gb takes less" if len(why) > 1 else "free -h"
        return Verdict("memory", Outcome.WARN, f"{seen}; about {size(needed)} are needed", why, step)
    return Verdict("memory", Outcome.PASS, f"{seen}; about {size(needed)} are needed")


def needed_memory(values: Mapping[str, Any]) -> "tuple[int, List[str]]":
    """Bytes, and what they are for. ``--hicache-size`` and ``--cpu-offload-gb`` are gigabytes of pinned memory for each rank."""
    ranks = parallel_size(values)
    parts: Dict[str, int] = {f"{ranks} rank(s) and the front end": (ranks + 1) * PROCESS_BYTES}
    if values.get("enable_hierarchical_cache"):
        parts["--hicache-size"] = ranks * _number(values, "hicache_size", 0) * 10**9
    parts["--cpu-offload-gb"] = ranks * _number(values, "cpu_offload_gb", 0) * GIB
    said = [f"{name}: {size(count)}" for name, count in parts.items() if count]
    return sum(parts.values()), said


def _anonymous(pid: int) -> int:
    """Bytes that a process alone gives back when it ends: neither the files that it maps nor shared memory."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
            lines = [line for line in stream if line.startswith("RssAnon:")]
        return int(lines[0].split()[1]) << 10 if lines else 0
    except (OSError, ValueError, IndexError):
        return 0


def _number(values: Mapping[str, Any], name: str, otherwise: int) -> int:
    try:
        return int(float(values.get(name) or otherwise))
    except (TypeError, ValueError):
        return otherwise


def gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"
