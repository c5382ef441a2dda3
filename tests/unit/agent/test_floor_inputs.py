"""A model's config as it crosses: its long lists in fewer words that mean the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.agent.floor_inputs import left_out, shortened
from orchestrator.agent.module_lists import condensed
from orchestrator.results.weight_formats import Formats, weight_formats

LAYERS = 92
ATTENTION = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(LAYERS) for name in "qkvo"]
EXPERTS = [f"model.layers.{layer}.mlp.experts.{expert}.{name}" for layer in (0, 1, 91) for expert in range(160) for name in ("up", "down")]
MODULES = [*ATTENTION, *EXPERTS, *[f"model.layers.{layer}.self_attn.q_proj.weight_scale" for layer in (3, 30)]]


def formats(names: list[str]) -> Formats:
    return weight_formats({"quantization_config": {"quant_method": "fp8", "ignored_layers": names}}, None)


def test_thousands_of_modules_are_a_few_expressions_that_leave_the_same_alone() -> None:
    names = [*ATTENTION, *EXPERTS, "lm_head", "re:.*norm.*", "model.layers.5.*"]

    short = condensed(names)

    assert len(names) > 1000
    assert len(short) < 20
    assert {"lm_head", "re:.*norm.*", "model.layers.5.*"} <= set(short)
    other = [f"model.layers.{layer}.mlp.{name}" for layer in (0, 9, 91) for name in ("gate_proj", "experts.159.up", "experts.160.up")]
    beyond = ["model.layers.92.self_attn.q_proj", "model.layers.1.self_attn.q_projector", "x.lm_head", "model.layers.0.self_attn"]
    for module in [*MODULES, *other, *beyond, "model.norm", "model.layers.5.mlp.up"]:
        assert formats(short).of(module) == formats(names).of(module), module


def test_numbers_that_are_no_product_stay_exact() -> None:
    names = [f"layers.{layer}.experts.{expert}" for layer, expert in ((0, 1), (0, 2), (1, 2), (10, 1), (10, 2))]

    short = condensed(names)

    assert len(short) == 2
    for layer in range(12):
        for expert in range(4):
            module = f"model.layers.{layer}.experts.{expert}.up_proj"
            assert formats(short).of(module) == formats(names).of(module), module


def test_a_config_crosses_with_what_the_floor_needs_of_it() -> None:
    config: dict[str, Any] = {
        "hidden_size": 8,
        "layer_types": ["full_attention"] * LAYERS,
        "quantization_config": {"quant_method": "fp8", "ignored_layers": ATTENTION * 2 + EXPERTS},
        "suppress_tokens": list(range(5000)),
    }

    short = shortened(config)

    assert len(json.dumps(short)) < 8000
    assert weight_formats(short, None).of("model.layers.91.self_attn.o_proj").name == "BF16"
    assert weight_formats(short, None).of("model.layers.91.mlp.shared_experts.up_proj").name == "FP8"
    assert short["layer_types"] == config["layer_types"]
    assert left_out(config) == [("suppress_tokens", 5000)]


@pytest.mark.parametrize("value", [None, [], "text"])
def test_what_is_no_config_is_none(value: Any) -> None:
    assert shortened(value) == {}
    assert left_out(value) == []
