"""What a model's folder says of itself: the quantization that its weights have, and how large they are. Reads small files only."""

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_NVFP4 = ("nvfp4",)
_LARGEST_FILE = 64 << 20
"""Of a JSON file that is read; configurations have some kilobytes."""


@dataclass(frozen=True)
class Checkpoint:
    """`quantization` is as the checkpoint names it (``NVFP4``, ``fp8``), empty where it names none. `weights` are bytes on the disk."""

    path: str
    architectures: Tuple[str, ...] = ()
    quantization: str = ""
    weights: int = 0
    has_experts: bool = False

    @property
    def is_nvfp4(self) -> bool:
        return any(name in self.quantization.lower() for name in _NVFP4)


def read(values: Mapping[str, Any], directory: Optional[str]) -> Optional[Checkpoint]:
    """The checkpoint of the parsed arguments; None where the model is no folder here (a hub's model), or none that can be read."""
    path = os.path.join(directory or "/", os.path.expanduser(str(values.get("model_path") or "")))
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(path) if entry.is_file()}
    except OSError:
        return None
    config = _json(os.path.join(path, "config.json"))
    architectures = config.get("architectures")
    return Checkpoint(
        path,
        tuple(str(name) for name in architectures) if isinstance(architectures, list) else (),
        _quantization(config.get("quantization_config"))
        or _quantization(_json(os.path.join(path, "hf_quant_config.json")).get("quantization")),
        _weights(sizes),
        _has_experts(config),
    )


def _has_experts(config: Dict[str, Any]) -> bool:
    """A model of several modalities keeps its language model's configuration in a part."""
    inner = config.get("text_config")
    return any(config.get(name) for name in _EXPERTS) or (isinstance(inner, dict) and any(inner.get(name) for name in _EXPERTS))


def _quantization(config: Any) -> str:
    """``quant_algo`` is ModelOpt's, in config.json or a file of its own; ``format`` compressed-tensors'; ``quant_method`` everybody's."""
    if not isinstance(config, dict):
        return ""
    named = config.get("quant_algo") or config.get("format") or config.get("quant_method")
    return str(named or "")


def _weights(sizes: Mapping[str, int]) -> int:
    """The files of one format: a folder may hold the same weights twice."""
    by_format: List[int] = [sum(size for name, size in sizes.items() if name.endswith(ending)) for ending in WEIGHTS]
    return next((total for total in by_format if total), 0)


def _json(path: str) -> Dict[str, Any]:
    try:
        if os.stat(path).st_size > _LARGEST_FILE:
            return {}
        with open(path, "rb") as stream:
            found = json.loads(stream.read())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
