"""Whether this place has what a backend profile needs: pure functions from what was read to verdicts."""

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.wire import Outcome, Verdict

if TYPE_CHECKING:
    from orchestrator.agent.gpu import GpuReading


def check(
    requirements: wire.Requirements, gpus: Sequence[wire.Gpu], values: Mapping[str, Any], modules: Mapping[str, bool]
) -> List[Verdict]:
    """All verdicts on one profile's requirements. `values` are the parsed arguments, `modules` those that can be imported."""
    found = [
        _compute_capability(requirements, gpus),
        _quantization(requirements, values),
        _modules(requirements, modules),
        None if requirements.gpu_count is None else _gpu_count(f"the backend needs {requirements.gpu_count}", requirements.gpu_count, gpus),
    ]
    return [verdict for verdict in found if verdict is not None]


def _compute_capability(requirements: wire.Requirements, gpus: Sequence[wire.Gpu]) -> Optional[Verdict]:
    works, unproven = requirements.compute_capability, requirements.compute_capability_unproven
    if not works and not unproven:
        return None
    check_name = "compute_capability"
    asked = ", ".join(works) or "none proven"
    if not gpus:
        return Verdict(check_name, Outcome.UNKNOWN, f"no GPU is visible here; the backend works on compute capability {asked}")
    seen = {gpu.compute_capability: gpu for gpu in reversed(gpus)}
    evidence = [f"GPU {gpu.index}: {gpu.name}, compute capability {gpu.compute_capability}" for gpu in seen.values()]
    evidence += [requirements.note] if requirements.note else []
    if not set(seen) <= set(works) | set(unproven):
        wrong = ", ".join(sorted(set(seen) - set(works) - set(unproven)))
        step = "fab backends shows which backends fit"
        return Verdict(
            check_name, Outcome.REFUSE, f"the backend does not run on compute capability {wrong} (it needs {asked})", evidence, step
        )
    doubtful = ", ".join(sorted(set(seen) - set(works)))
    if doubtful:
        return Verdict(check_name, Outcome.WARN, f"nobody has shown the backend to work on compute capability {doubtful}", evidence)
    return Verdict(check_name, Outcome.PASS, f"compute capability {', '.join(sorted(seen))}", evidence)


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
        return Verdict("python_modules", Outcome.UNKNOWN, f"whether {', '.join(unknown)} can be imported could not be asked")
    return Verdict("python_modules", Outcome.PASS, f"{', '.join(requirements.python_modules)} can be imported")


def parallel_size(values: Mapping[str, Any]) -> int:
    """GPUs that one node of the server takes: tensor times pipeline parallel size (SGLang up to 0.5.6 uses the long names)."""
    tensor = _positive(values, "tp_size", "tensor_parallel_size")
    return tensor * _positive(values, "pp_size", "pipeline_parallel_size")


def check_parallel_size(gpus: Sequence[wire.Gpu], values: Mapping[str, Any], environment: Mapping[str, str]) -> Optional[Verdict]:
    """Whether there are enough GPUs for the arguments; None where there is no GPU at all (a CPU engine, or a lab)."""
    if not gpus:
        return None
    needed = parallel_size(values)
    return _gpu_count(f"tensor times pipeline parallel size is {needed}", needed, visible_gpus(gpus, environment))


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
