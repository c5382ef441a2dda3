"""The multiplications of a decode step: the same weights as the floor counts, in the shapes that a server runs."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.agent.wire_budget import AllReduce, Gemm
from orchestrator.agent.wire_measure import FloorInputs
from orchestrator.results.gemm_shapes import all_reduce, gemms
from orchestrator.results.model_reads import Step, count_reads
from orchestrator.results.weight_formats import NotCountableError
from tests.unit.results.test_model_reads import CASES, DENSE


def inputs(config: dict[str, Any], ranks: int = 1, **more: Any) -> FloorInputs:
    return FloorInputs(config=config, tensor_parallel=ranks, **more)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_they_have_all_the_weights_that_the_floor_reads(case: dict[str, Any]) -> None:
    step = Step(**case["step"])

    found = gemms(inputs(case["config"], step.ranks), step.batch_size)

    read = sum(item.bytes for item in count_reads(case["config"], step).reads if item.name != "KV cache")
    assert sum(gemm.bytes * gemm.count for gemm in found) == pytest.approx(read, rel=1e-9)


def shapes(found: list[Gemm]) -> dict[str, tuple[int, int, int, int, int]]:
    return {gemm.name: (gemm.groups, gemm.rows, gemm.inputs, gemm.outputs, gemm.count) for gemm in found}


def test_a_dense_models_shapes_worked_out_by_hand() -> None:
    assert shapes(gemms(inputs(DENSE), 4)) == {
        "qkv_proj": (1, 4, 4096, 4096 + 2 * 8 * 128, 32),
        "o_proj": (1, 4, 4096, 4096, 32),
        "dense gate_up": (1, 4, 4096, 2 * 14336, 32),
        "dense down": (1, 4, 14336, 4096, 32),
        "lm_head": (1, 4, 4096, 128256, 1),
    }


def test_ranks_share_them_and_each_keeps_a_whole_key_head() -> None:
    found = shapes(gemms(inputs(DENSE, ranks=16), 1))
    assert found["qkv_proj"] == (1, 1, 4096, (32 // 16 + 2) * 128, 32)
    assert found["o_proj"] == (1, 1, 256, 4096, 32)
    assert found["lm_head"] == (1, 1, 4096, 128256 // 16, 1)


def test_experts_are_groups_and_share_the_tokens() -> None:
    mixtral = CASES[1]["config"]
    assert shapes(gemms(inputs(mixtral, ranks=2), 4))["experts gate_up"] == (5, 1, 4096, 14336, 32)
    whole = shapes(gemms(inputs(mixtral, ranks=2, expert_parallel=2), 64))
    assert whole["experts gate_up"] == (4, 16, 4096, 2 * 14336, 32)
    assert whole["experts down"] == (4, 16, 14336, 4096, 32)


def test_a_format_that_only_some_layers_have_makes_shapes_of_its_own() -> None:
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0"]}
    found = gemms(inputs({**DENSE, "quantization_config": quantization}), 1)
    assert [(gemm.format, gemm.count) for gemm in found if gemm.name == "o_proj"] == [("BF16", 1), ("FP8", 31)]


def test_what_is_summed_over_the_ranks() -> None:
    assert all_reduce(inputs(DENSE), 4) is None
    assert all_reduce(inputs(DENSE, ranks=8), 4) == AllReduce(4, 4 * 4096 * 2, 65)


@pytest.mark.parametrize(
    ("more", "says"),
    [({"data_parallel": 2}, "data parallelism"), ({"pipeline_parallel": 2}, "pipeline"), ({"config": {}}, "could not be read")],
)
def test_what_is_not_known_is_not_counted(more: dict[str, Any], says: str) -> None:
    with pytest.raises(NotCountableError, match=says):
        gemms(FloorInputs(**{"config": DENSE, **more}), 1)
