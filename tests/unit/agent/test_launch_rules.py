"""Which kernels a combination really runs: a table of what is accepted by the parser and then refused, or run as something else."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.checkpoint import Checkpoint
from orchestrator.agent.launch_rules import check, question

NVFP4 = Checkpoint("/m", ("Glm4MoeForCausalLM",), "NVFP4", 1 << 30, has_experts=True)
BF16 = Checkpoint("/m", ("Qwen3MoeForCausalLM",), "", 1 << 30, has_experts=True)
DENSE = Checkpoint("/m", ("LlamaForCausalLM",), "", 1 << 30)
NEMOTRON = Checkpoint("/m", ("NemotronHForCausalLM",), "NVFP4", 1 << 30, has_experts=True)


def judge(
    version: str | None,
    checkpoint: Checkpoint | None = None,
    capability: str = "12.0",
    standalone: bool | None = None,
    **values: Any,
) -> list[tuple[str, str]]:
    gpus = [wire.Gpu(0, "GPU-0", "GPU", capability, 0, 97887)]
    return [(verdict.outcome, verdict.detail) for verdict in check(question(values, gpus, checkpoint, version, standalone))]


CUTEDSL: dict[str, Any] = {"moe_runner_backend": "flashinfer_cutedsl", "quantization": "modelopt_fp4"}


@pytest.mark.parametrize(
    ("version", "standalone", "all_to_all", "outcome", "words"),
    [
        ("0.5.9", False, "none", "refuse", "would silently run CUTLASS kernels under the name flashinfer_cutedsl"),
        ("0.5.10.post1", None, "none", "refuse", "by its version"),
        ("0.5.9", False, "flashinfer", "refuse", "with --moe-a2a-backend flashinfer it would"),
        ("0.5.9", False, "deepep", None, ""),
        ("0.5.9", True, "none", None, ""),
        ("0.5.23", True, "none", None, ""),
        ("0.5.23", None, "none", None, ""),
        ("0.5.23", False, "none", "refuse", "its source has no"),
        ("0.5.11.dev3+g1a2b3c", None, "none", "unknown", "can't be told"),
        ("0.5.11.dev3+g1a2b3c", True, "none", None, ""),
        ("unknown", None, "none", "unknown", "can't be told"),
        (None, False, "none", "refuse", "silently"),
    ],
)
def test_cutedsl_without_deepep(version: str | None, standalone: bool | None, all_to_all: str, outcome: str | None, words: str) -> None:
    found = [item for item in judge(version, standalone=standalone, moe_a2a_backend=all_to_all, **CUTEDSL) if "takes" not in item[1]]
    assert [item[0] for item in found] == ([] if outcome is None else [outcome])
    assert all(words in detail for _, detail in found)


@pytest.mark.parametrize(
    ("version", "runner", "outcome", "words"),
    [
        ("0.5.9", "triton", "refuse", "would silently run CUTLASS kernels under the name triton"),
        ("0.5.14", "deep_gemm", "refuse", "silently"),
        ("0.5.23", "triton", "refuse", "Unsupported moe_runner_backend for NVFP4 MoE: triton"),
        ("unknown", "triton", "refuse", "never runs triton"),
        ("0.5.9", "cutlass", None, ""),
        ("0.5.14", "cutlass", "refuse", "while it loads"),
        ("0.5.15", "cutlass", None, ""),
        ("0.5.23", "cutlass", "refuse", "while it loads"),
        ("unknown", "cutlass", None, ""),
        ("0.5.23", "flashinfer_cutlass", None, ""),
        ("0.5.23", "marlin", None, ""),
    ],
)
def test_runners_that_nvfp4_never_reaches(version: str, runner: str, outcome: str | None, words: str) -> None:
    found = judge(version, NVFP4, moe_runner_backend=runner)
    assert [item[0] for item in found] == ([] if outcome is None else [outcome])
    assert all(words in detail for _, detail in found)
    assert judge(version, BF16, moe_runner_backend=runner) == []


@pytest.mark.parametrize(
    ("version", "checkpoint", "capability", "quantization", "outcome", "words"),
    [
        ("0.5.23", NVFP4, "12.0", None, "refuse", "auto becomes flashinfer_trtllm"),
        ("0.5.23", NVFP4, "12.0", "modelopt_mixed", "refuse", "flashinfer_trtllm"),
        ("0.5.23", NVFP4, "12.0", "modelopt_fp4", "pass", "auto becomes flashinfer_cutlass"),
        ("0.5.11", NVFP4, "12.0", "modelopt_fp4", "refuse", "flashinfer_trtllm"),
        ("0.5.9", NVFP4, "12.0", "modelopt_fp4", "unknown", "is not known"),
        ("0.5.23", NEMOTRON, "12.0", None, "unknown", "is not known"),
        ("0.5.23", NVFP4, "10.0", None, "unknown", "on 10.0"),
        ("0.5.23", BF16, "12.0", None, "unknown", "is not known"),
        ("unknown", NVFP4, "12.0", None, "unknown", "is not known"),
        ("0.5.23", DENSE, "12.0", None, None, ""),
        ("0.5.23", None, "12.0", None, None, ""),
    ],
)
def test_what_auto_becomes(
    version: str, checkpoint: Checkpoint | None, capability: str, quantization: str | None, outcome: str | None, words: str
) -> None:
    found = judge(version, checkpoint, capability, moe_runner_backend="auto", quantization=quantization)
    assert [item[0] for item in found] == ([] if outcome is None else [outcome])
    assert all(words in detail for _, detail in found)


@pytest.mark.parametrize(
    ("version", "values", "words"),
    [
        ("0.5.23", {**CUTEDSL, "moe_a2a_backend": "deepep", "deepep_mode": "normal"}, "low-latency mode only"),
        ("0.5.23", {**CUTEDSL, "tp_size": 8, "ep_size": 4}, "an expert parallel size of 1 or 8"),
        ("0.5.9", {"moe_runner_backend": "flashinfer_cutlass", "tp_size": 8, "ep_size": 2}, "an expert parallel size of 1 or 8"),
        ("0.5.11", {**CUTEDSL, "moe_a2a_backend": "flashinfer"}, "takes flashinfer_cutlass; --moe-runner-backend is flashinfer_cutedsl"),
        ("0.5.23", {**CUTEDSL, "moe_a2a_backend": "flashinfer", "tp_size": 8}, "attention data parallelism of 8"),
        ("0.5.23", {"moe_runner_backend": "triton", "moe_a2a_backend": "flashinfer"}, "takes flashinfer_cutlass, "),
        ("0.5.23", {**CUTEDSL, "moe_a2a_backend": "deepep_v2"}, "deepep_v2 takes deep_gemm only"),
    ],
)
def test_combinations_that_end_a_launch(version: str, values: dict[str, Any], words: str) -> None:
    found = judge(version, standalone=True, **values)
    assert [outcome for outcome, _ in found] == ["refuse"]
    assert words in found[0][1]


@pytest.mark.parametrize(
    "values",
    [
        {**CUTEDSL, "tp_size": 8, "ep_size": 8},
        {**CUTEDSL, "tp_size": 8, "ep_size": 4, "moe_a2a_backend": "deepep", "deepep_mode": "low_latency"},
        {**CUTEDSL, "tp_size": 8, "moe_a2a_backend": "flashinfer", "attn_dp_size": 8},
        {"moe_runner_backend": "some_fork_of_ours", "quantization": "modelopt_fp4"},
    ],
)
def test_combinations_against_which_nothing_speaks(values: dict[str, Any]) -> None:
    assert judge("0.5.23", standalone=True, **values) == []
