"""What each MoE runner does here: a decode speed that is *set*, and where it refuses. None of it was measured.

Refusals follow SGLang 0.5.23: srt/arg_groups/moe_hook.py (arguments), srt/layers/quantization/modelopt_quant.py (first
forward) and the CuTe DSL of nvidia-cutlass-dsl, which compiles its MoE kernels for compute capability 10.x only.
"""

from __future__ import annotations

NVFP4 = ("modelopt_fp4", "modelopt_mixed", "nvfp4_online")

TOKENS_PER_SECOND = {
    "flashinfer_cutedsl": 118.0,
    "flashinfer_trtllm": 46.0,
    "flashinfer_cutlass": 41.0,
    "marlin": 49.0,
}
"""Batch-1 decode speeds by runner, chosen so that a demonstration is short and its outcome plain."""

OTHER_TOKENS_PER_SECOND = 40.0


def check_arguments(runner: str, quantization: str | None) -> None:
    """What server_args refuses before anything is loaded: exit code 1.

    Raises:
        AssertionError: with the real text.
    """
    if runner == "flashinfer_cutedsl" and quantization not in NVFP4:
        raise AssertionError(
            f"Invalid quantization '{quantization}'. \nFlashInfer CuteDSL MOE currently supports only: 'modelopt_fp4', "
            "'modelopt_mixed' (with NVFP4 MoE layers), 'nvfp4_online', or hybrid NVFP4 models."
        )
    if runner == "flashinfer_cutlass" and quantization not in (*NVFP4, "modelopt_fp8", None):
        raise AssertionError(
            f"Invalid quantization '{quantization}'. \nFlashInfer Cutlass MOE supports only: 'modelopt_fp4', 'modelopt_fp8'."
        )


def resolve_runner(runner: str, quantization: str | None, compute_capability: str) -> tuple[str, str | None]:
    """The runner that ``auto`` becomes, and the line that is logged about it (srt/arg_groups/overrides.py)."""
    if runner != "auto" or quantization != "modelopt_fp4":
        return runner, None
    if compute_capability.startswith("10."):
        return "flashinfer_trtllm", "Use flashinfer_trtllm as MoE runner backend on sm100 for DeepseekV3ForCausalLM"
    if compute_capability.startswith(("11.", "12.")):
        line = "Use flashinfer_cutlass as MoE runner backend on SM110/SM120 for modelopt_fp4 (trtllm-gen MoE kernels are SM100-only)"
        return "flashinfer_cutlass", line
    return runner, None


def first_forward_error(runner: str, quantization: str | None, compute_capability: str) -> str | None:
    """The last line of the traceback that the first forward pass raises after minutes of loading, None when it works."""
    if not compute_capability:
        return None
    if runner == "flashinfer_cutedsl" and not compute_capability.startswith("10."):
        arch = "sm_" + compute_capability.replace(".", "") + "a"
        return (
            f"cutlass.cute.nvgpu.common.OpError: OpError: expects arch to be one of [Arch.sm_100a, Arch.sm_100f, Arch.sm_103a, "
            f"Arch.sm_103f], but got Arch.{arch}\n  Suggestion: Ensure env CUTE_DSL_ARCH matches your GPU architecture"
        )
    if quantization in NVFP4 and runner in ("triton", "triton_kernel", "deep_gemm", "cutlass"):
        return (
            f"NotImplementedError: Unsupported moe_runner_backend for NVFP4 MoE: {runner}. "
            "Use --moe-runner-backend flashinfer_cutlass instead."
        )
    if runner == "flashinfer_trtllm" and not compute_capability.startswith("10."):
        return "RuntimeError: TllmGenFmhaRunner: Unsupported architecture"
    return None


def tokens_per_second(runner: str) -> float:
    return TOKENS_PER_SECOND.get(runner, OTHER_TOKENS_PER_SECOND)
