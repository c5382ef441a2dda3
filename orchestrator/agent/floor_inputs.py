"""From what the bytes that are read for each token can be counted: the model's own files and what the server says. Reads only."""

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from orchestrator.agent import module_lists, sglang
from orchestrator.agent.wire_base import Fact
from orchestrator.agent.wire_measure import FloorInputs

_LONGEST_LIST = 512
"""Entries. A list that is longer is one of modules, which is told in fewer words, or one that nothing here needs (token ids)."""
_MOST_BYTES = 1 << 26


def floor_inputs(info: Mapping[str, Any], facts: sglang.ServerFacts, environment: Mapping[str, str], home: str) -> FloorInputs:
    """Read what is there; what isn't is left out.

    Args:
        info: the whole answer of /server_info.
        facts: the same, read.
        environment, home: the server's, for where Hugging Face's cache is.
    """
    model = facts.text("model_path")
    folder = None if model is None else model_folder(model, facts.text("revision"), environment, home)
    config = {} if folder is None else _read(folder / "config.json")
    weight_bytes, weight_source = (None, "") if folder is None else weights(folder)
    return FloorInputs(
        model_path=model,
        config=shortened(config),
        config_source=str(folder / "config.json") if config and folder is not None else "",
        weight_bytes=weight_bytes,
        weight_source=weight_source,
        weight_gigabytes_per_gpu=_weight_per_gpu(info),
        quantization=facts.text("quantization"),
        tensor_parallel=_size(facts, "tp_size"),
        pipeline_parallel=_size(facts, "pp_size"),
        data_parallel=_size(facts, "dp_size"),
        expert_parallel=_size(facts, "ep_size"),
        kv_cache_dtype=facts.text("kv_cache_dtype"),
        facts=[Fact(f"config.json: {name}", "left out", f"{count} entries") for name, count in left_out(config)],
    )


def model_folder(model: str, revision: Optional[str], environment: Mapping[str, str], home: str) -> Optional[Path]:
    """Where the model's files lie: the path itself, or its newest snapshot in Hugging Face's cache."""
    if os.path.isdir(model):
        return Path(model)
    cache = environment.get("HF_HUB_CACHE") or os.path.join(environment.get("HF_HOME") or os.path.join(home, ".cache/huggingface"), "hub")
    entry = Path(cache) / f"models--{model.replace('/', '--')}"
    try:
        name = (entry / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    except OSError:
        name = revision or ""
    snapshot = entry / "snapshots" / name
    return snapshot if name and snapshot.is_dir() else None


def weights(folder: Path) -> Tuple[Optional[int], str]:
    """The bytes of all weights and where that was read: the index of the safetensors files, else the files' sizes."""
    total = _read(folder / "model.safetensors.index.json").get("metadata", {})
    size = total.get("total_size") if isinstance(total, dict) else None
    if isinstance(size, int):
        return size, str(folder / "model.safetensors.index.json")
    try:
        sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    except OSError:
        return None, ""
    return (sum(sizes), f"sizes of {folder}/*.safetensors") if sizes else (None, "")


def shortened(config: Any) -> Dict[str, Any]:
    """A model's config with its long lists told in fewer words; one that stays long all the same is left out (:func:`left_out`)."""
    if not isinstance(config, dict):
        return {}
    kept: Dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            kept[name] = shortened(value)
        elif not _is_too_long(value):
            kept[name] = _short(value)
    return kept


def left_out(config: Any, prefix: str = "") -> List[Tuple[str, int]]:
    """The lists that are left out, by their path in the config, with how many entries each has."""
    found: List[Tuple[str, int]] = []
    for name, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict):
            found += left_out(value, f"{prefix}{name}.")
        elif _is_too_long(value):
            found.append((f"{prefix}{name}", len(value)))
    return found


def _is_too_long(value: Any) -> bool:
    short = _short(value)
    return isinstance(short, list) and len(short) > _LONGEST_LIST


def _short(value: Any) -> Any:
    if isinstance(value, list) and len(value) > _LONGEST_LIST and all(isinstance(item, str) for item in value):
        return module_lists.condensed(value)
    return value


def _read(path: Path) -> Dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _weight_per_gpu(info: Mapping[str, Any]) -> Optional[float]:
    states: List[Any] = info.get("internal_states") or []
    usage = states[0].get("memory_usage") if states and isinstance(states[0], dict) else None
    weight = usage.get("weight") if isinstance(usage, dict) else None
    return float(weight) if isinstance(weight, (int, float)) else None


def _size(facts: sglang.ServerFacts, name: str) -> int:
    value = facts.arguments.get(name)
    return value if isinstance(value, int) and value > 0 else 1
