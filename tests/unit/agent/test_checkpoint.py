"""What a model's folder says of its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.checkpoint import Checkpoint, read


def describe(folder: Path, config: Any, quantization: Any = None) -> Checkpoint:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if quantization is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(quantization))
    found = read({"model_path": str(folder)}, None)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "quantization", "named", "nvfp4"),
    [
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, None, "NVFP4", True),
        ({}, {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4", True),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}},
            None,
            "nvfp4-pack-quantized",
            True,
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, None, "fp8", False),
        ({"quantization_config": "odd"}, None, "", False),
        ({}, None, "", False),
        ("no json", None, "", False),
        ("[1]", None, "", False),
    ],
)
def test_the_quantization(tmp_path: Path, config: Any, quantization: Any, named: str, nvfp4: bool) -> None:
    found = describe(tmp_path, config, quantization)
    assert (found.quantization, found.is_nvfp4) == (named, nvfp4)


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"num_experts": 128}, True), ({"text_config": {"n_routed_experts": 256}}, True), ({"num_experts": 0}, False), ({}, False)],
)
def test_experts(tmp_path: Path, config: dict[str, Any], expected: bool) -> None:
    assert describe(tmp_path, config).has_experts is expected


def test_the_weights_of_one_format_count(tmp_path: Path) -> None:
    for name, size in {"a.safetensors": 3000, "b.safetensors": 2000, "pytorch_model.bin": 5000, "tokenizer.json": 7}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    assert describe(tmp_path, {"architectures": ["A"]}) == Checkpoint(str(tmp_path), ("A",), "", 5000)


def test_a_hub_model_is_none() -> None:
    assert read({"model_path": "org/model"}, None) is None
    assert read({}, "/no/such/folder") is None


def test_a_relative_path_counts_from_the_services_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    found = read({"model_path": "model"}, str(tmp_path))
    assert found is not None
    assert found.path == str(tmp_path / "model")
