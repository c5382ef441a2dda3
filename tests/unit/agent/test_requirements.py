"""What a backend profile needs, against what a place has."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.agent import cuda, wire
from orchestrator.agent.gpu import GpuReading
from orchestrator.agent.requirements import check, check_expected, check_parallel_size, parallel_size, visible_gpus
from orchestrator.agent.wire import Requirements


def gpus(*capabilities: str) -> list[wire.Gpu]:
    return [wire.Gpu(index, f"GPU-{index}f", "RTX PRO 6000", capability, 0, 97887) for index, capability in enumerate(capabilities)]


def outcomes(verdicts: list[wire.Verdict]) -> dict[str, str]:
    return {verdict.check: verdict.outcome for verdict in verdicts}


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ((), "unknown"),
        (("10.0",), "pass"),
        (("12.0",), "warn"),
        (("9.0",), "refuse"),
        (("10.0", "9.0"), "refuse"),
        (("10.0", "12.0"), "warn"),
    ],
)
def test_compute_capability(seen: tuple[str, ...], outcome: str) -> None:
    needed = Requirements(compute_capability=["10.0", "10.3"], compute_capability_unproven=["12.0"])
    assert outcomes(check(needed, gpus(*seen), {}, {})) == {"compute_capability": outcome}


@pytest.mark.parametrize(
    ("accepted", "given", "outcome"),
    [
        (["modelopt_fp4"], "modelopt_fp4", "pass"),
        (["modelopt_fp4"], None, "refuse"),
        (["modelopt_fp4", "None"], None, "pass"),
        (["None"], "fp8", "refuse"),
    ],
)
def test_quantization(accepted: list[str], given: str | None, outcome: str) -> None:
    [verdict] = check(Requirements(quantization=accepted), [], {"quantization": given}, {})
    assert verdict.outcome == outcome
    assert (verdict.next_step is not None) == (outcome == "refuse")


@pytest.mark.parametrize(("modules", "outcome"), [({"a": True}, "pass"), ({"a": False}, "refuse"), ({}, "unknown")])
def test_python_modules(modules: dict[str, bool], outcome: str) -> None:
    assert outcomes(check(Requirements(python_modules=["a"]), [], {}, modules)) == {"python_modules": outcome}


def test_gpu_count_of_the_profile() -> None:
    assert outcomes(check(Requirements(gpu_count=2), gpus("9.0"), {}, {})) == {"gpu_count": "refuse"}
    assert outcomes(check(Requirements(gpu_count=2), gpus("9.0", "9.0"), {}, {})) == {"gpu_count": "pass"}


def test_a_profile_that_asks_for_nothing_gets_no_verdict() -> None:
    assert check(Requirements(), gpus("9.0"), {}, {}) == []


@pytest.mark.parametrize(
    ("values", "expected"), [({"tp_size": 4, "pp_size": 2}, 8), ({"tensor_parallel_size": 4}, 4), ({"tp_size": "4"}, 4), ({}, 1)]
)
def test_parallel_size(values: dict[str, Any], expected: int) -> None:
    assert parallel_size(values) == expected


@pytest.mark.parametrize(("chosen", "indices"), [(None, [0, 1, 2]), ("", []), ("-1", []), ("2,0", [2, 0]), ("1,9,0", [1]), ("GPU-1", [1])])
def test_visible_gpus(chosen: str | None, indices: list[int]) -> None:
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert [gpu.index for gpu in visible_gpus(gpus("9.0", "9.0", "9.0"), environment)] == indices


def test_more_ranks_than_gpus_are_refused() -> None:
    refused = check_parallel_size(gpus("9.0", "9.0"), {"tp_size": 2}, {"CUDA_VISIBLE_DEVICES": "0"})
    assert refused is not None
    assert refused.outcome == "refuse"
    assert check_parallel_size([], {"tp_size": 2}, {}) is None


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (cuda.CudaAnswer(0, 1), "pass", "1 GPU(s)"),
        (cuda.CudaAnswer(0, 0), "refuse", "CUDA_VISIBLE_DEVICES"),
        (cuda.CudaAnswer(999), "refuse", "/dev/nvidia-uvm"),
        (cuda.CudaAnswer(100), "refuse", "/dev/nvidiactl"),
        (cuda.CudaAnswer(3), "refuse", "uvm_disable_hmm"),
        (cuda.CudaAnswer(802), "refuse", "nvidia-fabricmanager"),
        (cuda.CudaAnswer(803), "refuse", "differ in version"),
        (cuda.CudaAnswer(804), "refuse", "cuda-compat"),
        (cuda.CudaAnswer(12345), "refuse", "CUresult"),
        (cuda.CudaAnswer(problem="did not answer within 20 s and was killed"), "refuse", "dmesg"),
        (cuda.CudaAnswer(problem="libcuda.so.1: cannot open shared object file"), "refuse", "ldconfig"),
    ],
)
def test_cuda_codes_become_hints(answer: cuda.CudaAnswer, outcome: str, words: str) -> None:
    verdict = cuda.verdict(answer, gpus("12.0"))
    assert verdict.outcome == outcome
    assert words in f"{verdict.detail} {verdict.next_step}"


def test_a_quantization_that_the_checkpoint_decides_is_not_to_be_changed() -> None:
    [verdict] = check(Requirements(quantization=["fp8"]), [], {"quantization": "modelopt_fp4"}, {})
    assert "choose a backend for modelopt_fp4" in str(verdict.next_step)
    assert "fp8" not in str(verdict.next_step)


FAILED = GpuReading([], "nvidia-smi ended with status 9", ["NVIDIA-SMI has failed because it couldn't communicate"])


@pytest.mark.parametrize(
    ("expected", "reading", "outcome", "words"),
    [
        (2, GpuReading(gpus("12.0", "12.0")), "pass", "2 GPU(s)"),
        (0, GpuReading([], "nvidia-smi: No such file or directory"), "pass", "0 GPU(s)"),
        (8, GpuReading(gpus("12.0", "12.0")), "refuse", "says 8; nvidia-smi lists 2"),
        (1, GpuReading(gpus("12.0", "12.0")), "refuse", "says 1; nvidia-smi lists 2"),
        (8, FAILED, "refuse", "ended with status 9 NVIDIA-SMI has failed because it couldn't communicate"),
        (8, GpuReading([], "nvidia-smi: No such file or directory"), "refuse", "No such file or directory"),
    ],
)
def test_the_gpus_that_the_inventory_says(expected: int, reading: GpuReading, outcome: str, words: str) -> None:
    verdict = check_expected(expected, reading)
    assert verdict is not None
    assert verdict.outcome == outcome
    assert words in " ".join([verdict.detail, *verdict.evidence])
    assert check_expected(None, reading) is None
