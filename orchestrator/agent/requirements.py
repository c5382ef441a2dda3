"""Whether this place has what a backend profile needs: pure functions from what was read to verdicts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent import kernel_probes, wire
from orchestrator.agent.kernel_probes import Probed
from orchestrator.agent.wire import Outcome, Verdict

if TYPE_CHECKING:
    from orchestrator.agent.gpu import GpuReading

_PROFILE = "the backend profile's own table"


def check(
    requirements: wire.Requirements,
    gpus: Sequence[wire.Gpu],
    values: Mapping[str, Any],
    modules: Mapping[str, bool],
    probed: Sequence[Probed] = (),
) -> List[Verdict]:
    """All verdicts on one profile's requirements.

    `values` are the parsed arguments, `modules` those that can be imported, `probed` the answers to this profile's probes.
    """
    found = [
        _compute_capability(requirements, gpus, kernel_probes.deciding(probed)),
        _quantization(requirements, values),
        _modules(requirements, modules),
        None if requirements.gpu_count is None else _gpu_count(f"the backend needs {requirements.gpu_count}", requirements.gpu_count, gpus),
    ]
    return [verdict for verdict in found if verdict is not None]


@dataclass(frozen=True)
class _Capabilities:
    """The compute capabilities that are here, parted by what the profile's table and the source of its kernels say of them."""

    seen: List[str]
    works: List[str]
    outside: List[str]
    """In neither list of the profile, where it has any."""
    excluded: List[str]
    """For which the source is not made."""
    named: List[str]
    """For which a line of the source says that it is made."""


def _compute_capability(requirements: wire.Requirements, gpus: Sequence[wire.Gpu], source: Optional[Probed]) -> Optional[Verdict]:
    """What the source of the kernels says of the GPUs here, and where it says nothing the profile's own table."""
    works, unproven = requirements.compute_capability, requirements.compute_capability_unproven
    if not works and not unproven and source is None:
        return None
    asked = ", ".join(works) or "none proven"
    place = _PROFILE if source is None else source.place()
    if not gpus:
        detail = f"no GPU is visible here; the backend works on compute capability {asked}"
        look = "nvidia-smi -L, on the host and in the container"
        return Verdict("compute_capability", Outcome.UNKNOWN, detail, next_step=look, source=place)
    first = {gpu.compute_capability: gpu for gpu in reversed(gpus)}
    seen = sorted(first)
    found = _Capabilities(
        seen,
        works=[capability for capability in seen if capability in works],
        outside=[capability for capability in seen if (works or unproven) and capability not in (*works, *unproven)],
        excluded=[capability for capability in seen if source is not None and not kernel_probes.allows(source, capability)],
        named=[capability for capability in seen if source is not None and kernel_probes.names(source, capability)],
    )
    outcome, detail = _judged(found, asked, "" if source is None else source.label)
    evidence = [f"GPU {gpu.index}: {gpu.name}, compute capability {gpu.compute_capability}" for gpu in first.values()]
    evidence += kernel_probes.said(source) if source is not None else []
    evidence += [requirements.note] if requirements.note else []
    step = {
        Outcome.REFUSE: "fab backends shows which backends fit",
        Outcome.WARN: "nothing if it is to be tried: the old server comes back when it fails; proven ones: fab backends",
    }.get(outcome)
    return Verdict("compute_capability", outcome, detail, evidence, step, place)


def _judged(found: _Capabilities, asked: str, label: str) -> Tuple[str, str]:
    """The source counts before the table: it is what is installed. What was shown to work counts before both."""
    refused = [capability for capability in found.excluded if capability not in found.works]
    if refused:
        return Outcome.REFUSE, f"{label}, which the backend runs, is not made for compute capability {', '.join(refused)}"
    if found.excluded:
        marked = ", ".join(found.excluded)
        return Outcome.WARN, f"{label} is not marked for compute capability {marked}, where the backend is known to work"
    strange = [capability for capability in found.outside if capability not in found.named]
    if strange:
        return Outcome.REFUSE, f"the backend does not run on compute capability {', '.join(strange)} (it needs {asked})"
    doubtful = [capability for capability in found.seen if capability not in found.works]
    if doubtful and all(capability in found.named for capability in doubtful):
        made = ", ".join(doubtful)
        return Outcome.WARN, f"{label} is made for compute capability {made}; nobody has shown the backend to work there"
    if doubtful:
        return Outcome.WARN, f"nobody has shown the backend to work on compute capability {', '.join(doubtful)}"
    return Outcome.PASS, f"compute capability {', '.join(found.seen)}"


def _quantization(requirements: wire.Requirements, values: Mapping[str, Any]) -> Optional[Verdict]:
    accepted = requirements.quantization
    if not accepted:
        return None
    given = str(values.get("quantization"))
    if given in accepted:
        return Verdict("quantization", Outcome.PASS, f"--quantization is {'unset' if given == 'None' else given}")
    named = [name for name in accepted if name != "None"]
    if given == "None":
        step = f"add `--quantization {named[0]}` to the service if its checkpoint is that; else choose another backend: fab backends"
    else:
        step = f"choose a backend for {given}, which the checkpoint decides: fab backends"
    return Verdict(
        "quantization",
        Outcome.REFUSE,
        f"--quantization is {'unset' if given == 'None' else given}; the backend accepts {', '.join(named) or 'only unset'}",
        next_step=step,
    )


def _modules(requirements: wire.Requirements, modules: Mapping[str, bool]) -> Optional[Verdict]:
    if not requirements.python_modules:
        return None
    missing = [name for name in requirements.python_modules if modules.get(name) is False]
    unknown = [name for name in requirements.python_modules if name not in modules]
    if missing:
        step = "install what SGLang's own extras ask for into the service's Python, or choose another backend"
        return Verdict("python_modules", Outcome.REFUSE, f"the service's Python can't import {', '.join(missing)}", next_step=step)
    if unknown:
        step = f"with the service's Python: python -c 'import {unknown[0]}'"
        return Verdict(
            "python_modules", Outcome.UNKNOWN, f"whether {', '.join(unknown)} can be imported could not be asked", next_step=step
        )
    return Verdict("python_modules", Outcome.PASS, f"{', '.join(requirements.python_modules)} can be imported")


def parallel_size(values: Mapping[str, Any]) -> int:
    """GPUs that the server takes, on all of its nodes: tensor times pipeline parallel size (SGLang up to 0.5.6 uses the long names)."""
    tensor = _positive(values, "tp_size", "tensor_parallel_size")
    return tensor * _positive(values, "pp_size", "pipeline_parallel_size")


def node_count(values: Mapping[str, Any]) -> int:
    """Over how many machines the server goes."""
    count = str(values.get("nnodes") or 1)
    return int(count) if count.isdigit() else 1


def check_parallel_size(gpus: Sequence[wire.Gpu], values: Mapping[str, Any], environment: Mapping[str, str]) -> Optional[Verdict]:
    """Whether there are enough GPUs for the arguments; None where there is no GPU at all (a CPU engine, or a lab)."""
    if not gpus:
        return None
    nodes = node_count(values)
    needed = max(1, parallel_size(values) // nodes)
    over = f" on each of {nodes} nodes" if nodes > 1 else ""
    return _gpu_count(f"tensor times pipeline parallel size is {needed}{over}", needed, visible_gpus(gpus, environment))


def check_expected(expected: Optional[int], reading: "GpuReading") -> Optional[Verdict]:
    """Whether nvidia-smi lists as many GPUs as the inventory says; None where the inventory says nothing."""
    if expected is None:
        return None
    count = len(reading.gpus)
    if count == expected:
        return Verdict("expected_gpus", Outcome.PASS, f"{count} GPU(s), as `gpus:` of the host says")
    seen = f"nvidia-smi lists {count}" if reading.problem is None else reading.problem
    evidence = [*reading.said, *(f"GPU {gpu.index}: {gpu.name}" for gpu in reading.gpus)]
    step = "nvidia-smi -L, on the host and in the container; correct `gpus:` in hosts.yml if the host has changed"
    return Verdict("expected_gpus", Outcome.REFUSE, f"`gpus:` of the host says {expected}; {seen}", evidence, step)


def visible_gpus(gpus: Sequence[wire.Gpu], environment: Mapping[str, str]) -> List[wire.Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; CUDA stops at the first entry that names none."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(gpus)
    visible: List[wire.Gpu] = []
    for entry in (item.strip() for item in chosen.split(",")):
        found = [gpu for gpu in gpus if (entry and gpu.uuid.startswith(entry)) or str(gpu.index) == entry]
        if not found:
            break
        visible += found[:1]
    return visible


def _gpu_count(why: str, needed: int, gpus: Sequence[wire.Gpu]) -> Verdict:
    if len(gpus) >= needed:
        return Verdict("gpu_count", Outcome.PASS, f"{len(gpus)} GPU(s); {why}")
    evidence = [f"GPU {gpu.index}: {gpu.name}" for gpu in gpus]
    step = "nvidia-smi -L, on the host and in the container; look at CUDA_VISIBLE_DEVICES"
    return Verdict("gpu_count", Outcome.REFUSE, f"{len(gpus)} GPU(s) are visible, and {why}", evidence, step)


def _positive(values: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value: Any = values.get(name)
        if value is not None and str(value).isdigit():
            return max(1, int(value))
    return 1


def merged_modules(requirements: Sequence[wire.Requirements]) -> List[str]:
    """Every module that any of the requirements names, once."""
    names: Dict[str, None] = {name: None for item in requirements for name in item.python_modules}
    return list(names)
