"""Which kernels a launch would really run: what SGLang's parser accepts and then refuses, or silently runs as something else.

SGLang's parser knows names and choices only. What it makes of them depends on GPUs that the check does not see, and comes from this
table, read in the wheels 0.5.9, 0.5.11, 0.5.14 and 0.5.23 (srt/server_args.py, from 0.5.20 srt/arg_groups/moe_hook.py and
overrides.py; srt/layers/quantization/modelopt_quant.py). What is in no row is unknown. What is found in the source that is installed
counts before its version: a checkout or a fork may have any number.
"""

from dataclasses import dataclass
from typing import Any, Callable, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.checkpoint import Checkpoint
from orchestrator.agent.sglang import Version, parse_version
from orchestrator.agent.wire import Outcome, Verdict

CHECK = "kernel_choice"
STANDALONE_CUTEDSL = "sglang.srt.layers.moe.moe_runner.flashinfer_cutedsl"
"""A module of SGLang from 0.5.11 on: with it flashinfer_cutedsl runs CuTe DSL kernels without DeepEP too."""

_NVFP4_QUANTIZATIONS = frozenset({"modelopt_fp4", "nvfp4_online", "petit_nvfp4"})
_FELL_THROUGH = ("triton", "triton_kernel", "deep_gemm")
_QUANTIZATION_COPIED = ("NemotronH", "MiniMaxM3", "Gemma4", "DeepseekV4")
"""Architectures for which SGLang takes the quantization from the checkpoint, or a runner of its own, on 12.x too."""
_A2A_OLD = ("flashinfer_cutlass",)
_A2A_RUNNERS = ("flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_trtllm_routed", "deep_gemm")
_NAME_ONE = "name the kernels yourself: fab backends; on 12.x flashinfer_cutlass or marlin"


@dataclass(frozen=True)
class Question:
    """What the rules look at. `version` is None where the number says nothing: unknown, or a development version."""

    runner: str
    all_to_all: str
    quantization: Optional[str]
    tensor: int
    expert: int
    data: int
    values: Mapping[str, Any]
    capabilities: FrozenSet[str]
    checkpoint: Optional[Checkpoint]
    version: Optional[Version]
    standalone: Optional[bool]
    """Whether :data:`STANDALONE_CUTEDSL` was found; None: that could not be told."""

    @property
    def is_nvfp4(self) -> bool:
        if self.quantization in _NVFP4_QUANTIZATIONS:
            return True
        return self.quantization in (None, "modelopt_mixed") and self.checkpoint is not None and self.checkpoint.is_nvfp4

    @property
    def on_12(self) -> bool:
        return any(capability.startswith("12.") for capability in self.capabilities)

    def before(self, *version: int) -> Optional[bool]:
        """Whether this SGLang is older; None where its version does not tell."""
        return None if self.version is None else self.version < (*version, -1)


def question(
    values: Mapping[str, Any],
    gpus: Sequence[wire.Gpu],
    checkpoint: Optional[Checkpoint],
    version: Optional[str],
    standalone: Optional[bool],
) -> Question:
    quantization = values.get("quantization")
    return Question(
        runner=str(values.get("moe_runner_backend") or "auto"),
        all_to_all=str(values.get("moe_a2a_backend") or "none"),
        quantization=None if quantization in (None, "None") else str(quantization),
        tensor=_size(values, "tp_size", "tensor_parallel_size"),
        expert=_size(values, "ep_size", "expert_parallel_size"),
        data=_size(values, "attn_dp_size", "dp_size", "data_parallel_size"),
        values=values,
        capabilities=frozenset(gpu.compute_capability for gpu in gpus),
        checkpoint=checkpoint,
        version=None if version is None or "dev" in version else parse_version(version),
        standalone=standalone,
    )


def check(asked: Question) -> List[Verdict]:
    """What is known to speak against this combination, or that it is not known what it becomes."""
    return [verdict for rule in _RULES for verdict in [rule(asked)] if verdict is not None]


def _cutedsl_without_deepep(asked: Question) -> Optional[Verdict]:
    if asked.runner != "flashinfer_cutedsl" or asked.all_to_all == "deepep" or asked.standalone:
        return None
    if asked.standalone is None and asked.before(0, 5, 11) is not True:
        if asked.version is not None:
            return None
        detail = "whether this SGLang runs CuTe DSL kernels without DeepEP can't be told: neither its version nor its source says"
        return Verdict(CHECK, Outcome.UNKNOWN, detail, next_step="look for `Cutlass` and `CuteDSL` in the log of the launch")
    rests = "its source has no moe_runner/flashinfer_cutedsl.py" if asked.standalone is False else "by its version"
    detail = (
        f"this SGLang runs CuTe DSL kernels behind DeepEP only ({rests}): with --moe-a2a-backend {asked.all_to_all} it would silently run "
        "CUTLASS kernels under the name flashinfer_cutedsl"
    )
    return Verdict(CHECK, Outcome.REFUSE, detail, next_step="--moe-a2a-backend deepep (see: fab backends), or SGLang 0.5.11 or newer")


def _nvfp4_falls_through(asked: Question) -> Optional[Verdict]:
    if not asked.is_nvfp4 or asked.runner not in (*_FELL_THROUGH, "cutlass"):
        return None
    why = "the checkpoint is NVFP4" if asked.quantization is None else f"--quantization is {asked.quantization}"
    silent = asked.before(0, 5, 16)
    if asked.runner == "cutlass":
        runs = asked.version is None or asked.before(0, 5, 11) or (silent and not asked.before(0, 5, 15))
        detail = f"{why}, which this SGLang does not run with cutlass: it ends while it loads"
        return None if runs else Verdict(CHECK, Outcome.REFUSE, detail, next_step="--backend flashinfer_cutlass")
    outcomes = {
        True: f"would silently run CUTLASS kernels under the name {asked.runner}",
        False: f"fails at the first forward pass, after the load: Unsupported moe_runner_backend for NVFP4 MoE: {asked.runner}",
        None: f"never runs {asked.runner} for NVFP4: it runs CUTLASS kernels under that name, or fails after the load",
    }
    return Verdict(CHECK, Outcome.REFUSE, f"{why}, and this SGLang {outcomes[silent]}", next_step="fab backends shows which backends fit")


def _auto(asked: Question) -> Optional[Verdict]:
    """What ``auto`` becomes; nothing for a model without experts."""
    if asked.runner != "auto" or asked.checkpoint is None or not asked.checkpoint.has_experts:
        return None
    unknown = Verdict(CHECK, Outcome.UNKNOWN, _auto_unknown(asked), next_step=_NAME_ONE)
    if not asked.is_nvfp4 or not asked.on_12 or asked.before(0, 5, 11) is not False:
        return unknown
    if asked.quantization == "modelopt_fp4" and asked.before(0, 5, 13) is False:
        return Verdict(CHECK, Outcome.PASS, "auto becomes flashinfer_cutlass on compute capability 12.x with --quantization modelopt_fp4")
    if any(name.startswith(_QUANTIZATION_COPIED) for name in asked.checkpoint.architectures):
        return unknown
    detail = (
        "auto becomes flashinfer_trtllm here, whose kernels are for compute capability 10.x: it fails at the first forward pass, after "
        "the load"
    )
    evidence = [f"--quantization is {asked.quantization or 'unset'}; the checkpoint is {asked.checkpoint.quantization or 'not quantized'}"]
    return Verdict(CHECK, Outcome.REFUSE, detail, evidence, f"`--quantization modelopt_fp4` in the service's arguments; or {_NAME_ONE}")


def _auto_unknown(asked: Question) -> str:
    seen = ", ".join(sorted(asked.capabilities)) or "no GPU that is visible here"
    return f"which MoE kernels `auto` becomes is not known for --quantization {asked.quantization or 'unset'} on {seen}"


def _deepep_normal(asked: Question) -> Optional[Verdict]:
    if (asked.runner, asked.all_to_all, asked.values.get("deepep_mode")) != ("flashinfer_cutedsl", "deepep", "normal"):
        return None
    detail = "flashinfer_cutedsl behind DeepEP runs in low-latency mode only: SGLang ends with ValueError"
    return Verdict(CHECK, Outcome.REFUSE, detail, next_step="--deepep-mode low_latency")


def _expert_parallel(asked: Question) -> Optional[Verdict]:
    """With an all-to-all backend SGLang sets the size itself. The rule for flashinfer_cutedsl came with its standalone path."""
    ruled = asked.runner == "flashinfer_cutlass" or (asked.runner == "flashinfer_cutedsl" and bool(asked.standalone))
    if not ruled or asked.all_to_all != "none" or asked.expert in (1, asked.tensor):
        return None
    detail = f"{asked.runner} takes an expert parallel size of 1 or {asked.tensor}, the tensor parallel size; --ep-size is {asked.expert}"
    return Verdict(CHECK, Outcome.REFUSE, detail, next_step=f"--ep-size 1 or {asked.tensor} in the service's arguments")


def _all_to_all(asked: Question) -> Optional[Verdict]:
    if asked.all_to_all == "deepep_v2" and asked.runner != "deep_gemm":
        detail = f"--moe-a2a-backend deepep_v2 takes deep_gemm only; --moe-runner-backend is {asked.runner}"
        return Verdict(CHECK, Outcome.REFUSE, detail, next_step="--backend deep_gemm")
    if asked.all_to_all != "flashinfer":
        return None
    accepted = _A2A_OLD if asked.before(0, 5, 13) else _A2A_RUNNERS
    if asked.runner not in accepted:
        detail = f"--moe-a2a-backend flashinfer takes {', '.join(accepted)}; --moe-runner-backend is {asked.runner}"
        return Verdict(CHECK, Outcome.REFUSE, detail, next_step="fab backends")
    muse = asked.checkpoint is not None and any(name.startswith("MuseSpark") for name in asked.checkpoint.architectures)
    if asked.before(0, 5, 14) is False and asked.data != asked.tensor and not muse:
        detail = (
            f"--moe-a2a-backend flashinfer needs attention data parallelism of {asked.tensor}, the tensor parallel size; it is {asked.data}"
        )
        return Verdict(CHECK, Outcome.REFUSE, detail, next_step="--enable-dp-attention with --dp-size; from 0.5.20 on --attn-dp-size")
    return None


_Rule = Callable[[Question], Optional[Verdict]]
_RULES: Tuple[_Rule, ...] = (_cutedsl_without_deepep, _nvfp4_falls_through, _auto, _deepep_normal, _expert_parallel, _all_to_all)


def _size(values: Mapping[str, Any], *names: str) -> int:
    found = (str(values[name]) for name in names if values.get(name) is not None)
    return next((max(1, int(text)) for text in found if text.isdigit()), 1)
