"""Bytes read in a decode step, by model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.results.model_reads import ModelReads, Step, count_reads
from orchestrator.results.weight_formats import NVFP4, NotCountableError, cache_format, weight_formats

CASES = yaml.safe_load((Path(__file__).parent / "data" / "model_reads.yml").read_text(encoding="utf-8"))
DENSE: dict[str, Any] = CASES[0]["config"]


def counted(config: dict[str, Any], **step: int) -> ModelReads:
    return count_reads(config, Step(**step))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_reads_are_those_worked_out_by_hand(case: dict[str, Any]) -> None:
    found = count_reads(case["config"], Step(**case["step"]), cache=case.get("cache"))
    assert {read.name: read.bytes for read in found.reads} == pytest.approx(case["reads"], rel=1e-6)
    assert found.bytes == pytest.approx(sum(case["reads"].values()), rel=1e-6)
    assert found.weight_bytes == pytest.approx(case["weights"], rel=1e-6)
    assert all(read.how for read in found.reads if read.name != "output head" or case["step"].get("ranks"))


def test_more_gpus_than_key_heads_hold_copies() -> None:
    one, many = (counted(DENSE, context=1000, ranks=ranks).reads for ranks in (8, 16))
    assert many[-1] == one[-1], "each GPU reads a key head of its own"


def test_a_model_of_several_parts_is_its_text_part() -> None:
    assert counted({"text_config": DENSE, "vision_config": {"hidden_size": 1}}) == counted(DENSE)


def test_a_window_bounds_what_is_read_of_the_cache() -> None:
    layers = ["sliding_attention", "full_attention"] * 16
    everything = counted(DENSE, context=10000).reads[-1].bytes
    half = counted({**DENSE, "layer_types": layers, "sliding_window": 1000}, context=10000).reads[-1].bytes
    assert half == pytest.approx(everything * (0.5 + 0.5 / 10))
    assert counted({**DENSE, "sliding_window": 1000}, context=10000).reads[-1].bytes == pytest.approx(everything / 10)
    assert counted({**DENSE, "sliding_window": 1000, "use_sliding_window": False}, context=10000).reads[-1].bytes == everything


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"layer_types": ["linear_attention"]}, "linear_attention"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"attn_output_gate": True}, "gated"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"quantization_config": {"quant_method": "quip"}}, "quip"),
        ({"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": 3, "type": "float"}}}}}, "3 bits"),
    ],
)
def test_what_is_not_understood_is_not_counted(more: dict[str, Any], says: str) -> None:
    with pytest.raises(NotCountableError, match=says):
        counted({**DENSE, **more})


@pytest.mark.parametrize(
    ("quantization", "module", "bytes_per_value"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "model.layers.3.mlp.gate_proj", 1 + 4 / 16384),
        ({"quant_method": "fp8", "modules_to_not_convert": ["mlp"]}, "model.layers.3.mlp.gate_proj", 2.0),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.3"]}, "model.layers.30.mlp.gate_proj", 1.0),
        ({"quant_algo": "NVFP4", "exclude_modules": ["model.layers.3.self_attn*"]}, "model.layers.3.self_attn.o_proj", 2.0),
        ({"quant_algo": "NVFP4", "exclude_modules": ["model.layers.3.self_attn*"]}, "model.layers.4.self_attn.o_proj", 0.5625),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"], "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, "model.layers.3.mlp.gate_proj", 0.5625),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"], "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, "model.layers.3.self_attn.o_proj", 2.0),
        ({"quant_method": "mxfp4"}, "model.layers.3.mlp.gate_proj", 0.53125),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "model.layers.3.mlp.gate_proj", 0.515625),
    ],
)  # fmt: skip
def test_a_quantization_is_read(quantization: dict[str, Any], module: str, bytes_per_value: float) -> None:
    assert weight_formats({"quantization_config": quantization}, None).of(module).bytes_per_value == bytes_per_value


def test_the_command_line_says_what_the_config_does_not() -> None:
    formats = weight_formats({}, "modelopt_fp4")
    assert formats.quantized is NVFP4
    assert "leaves alone" in formats.remark
    with pytest.raises(NotCountableError, match="--quantization petit"):
        weight_formats({}, "petit")


@pytest.mark.parametrize(
    ("config", "argument", "bytes_per_value"),
    [
        ({}, None, 2.0),
        ({}, "auto", 2.0),
        ({}, "fp8_e5m2", 1.0),
        ({}, "fp4_e2m1", 0.5625),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "auto", 1.0),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, None, 1.0),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "bf16", 2.0),
    ],
)
def test_the_caches_type_is_the_arguments_or_the_checkpoints(config: dict[str, Any], argument: str | None, bytes_per_value: float) -> None:
    assert cache_format(config, argument).bytes_per_value == bytes_per_value
