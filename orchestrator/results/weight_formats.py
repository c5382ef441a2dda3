"""How many bytes a weight or a cached key takes, by a model's config.json. Pure.

A quantization's config names what it leaves alone by module, in one of several spellings; the output head and the experts' router are never
quantized (SGLang 0.5.23: `quant_config=None` for the router, embeddings have no method for it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


class NotCountableError(ValueError):
    """What is read can't be counted from this config, and why."""


@dataclass(frozen=True)
class WeightFormat:
    """`bytes_per_value` holds the scales' share."""

    name: str
    bytes_per_value: float


BF16 = WeightFormat("BF16", 2.0)
FP32 = WeightFormat("FP32", 4.0)
FP8 = WeightFormat("FP8", 1.0)
NVFP4 = WeightFormat("NVFP4", 0.5 + 1 / 16)
"""Four bits, and an FP8 scale for sixteen values."""
MXFP4 = WeightFormat("MXFP4", 0.5 + 1 / 32)

_IGNORE_KEYS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
_BY_ARGUMENT = {"fp8": FP8, "modelopt_fp8": FP8, "modelopt_fp4": NVFP4, "nvfp4": NVFP4, "mxfp4": MXFP4}


@dataclass(frozen=True)
class Formats:
    """What modules are kept in. `left_alone` are the patterns of those that are not quantized."""

    quantized: WeightFormat
    left_alone: tuple[str, ...]
    remark: str = ""

    def of(self, module: str) -> WeightFormat:
        if self.quantized is BF16 or any(_matches(module, pattern) for pattern in self.left_alone):
            return BF16
        return self.quantized


def weight_formats(config: Mapping[str, Any], argument: str | None) -> Formats:
    """What a config says of its quantization; where it says nothing, what SGLang's ``--quantization`` does.

    Raises:
        NotCountableError: a quantization that isn't known here.
    """
    found = config.get("quantization_config") or config.get("compression_config")
    if isinstance(found, Mapping):
        return Formats(_quantized(found), tuple(_left_alone(found)))
    if argument is None or argument in ("auto", "unquant"):
        return Formats(BF16, ())
    if argument not in _BY_ARGUMENT:
        raise NotCountableError(f"config.json has no quantization_config, and --quantization {argument} is not known here")
    remark = f"{_BY_ARGUMENT[argument].name} by --quantization {argument}: which modules it leaves alone is not in config.json"
    return Formats(_BY_ARGUMENT[argument], (), remark)


def _quantized(found: Mapping[str, Any]) -> WeightFormat:
    method = str(found.get("quant_method") or "").lower()
    algorithm = str(found.get("quant_algo") or "").upper()
    groups = found.get("config_groups")
    if isinstance(groups, Mapping) and groups and not algorithm:
        return _of_groups(groups)
    if "NVFP4" in algorithm or method in ("nvfp4", "modelopt_fp4"):
        return NVFP4
    if algorithm == "FP8" or method == "fp8":
        return _fp8(found.get("weight_block_size"))
    if method == "mxfp4":
        return MXFP4
    if method in ("awq", "gptq") and isinstance(found.get("bits"), int):
        return _integer(int(found["bits"]), found.get("group_size"))
    raise NotCountableError(f"a quantization that is not known here: {method or 'no quant_method'} {algorithm}".rstrip())


def _of_groups(groups: Mapping[str, Any]) -> WeightFormat:
    """Of compressed-tensors' and ModelOpt's groups, which must be alike."""
    formats = {_of_group(group.get("weights") or {}) for group in groups.values() if isinstance(group, Mapping)}
    if len(formats) != 1:
        raise NotCountableError("a quantization whose groups differ")
    return formats.pop()


def _of_group(weights: Mapping[str, Any]) -> WeightFormat:
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if (bits, kind) == (4, "float"):
        return MXFP4 if size == 32 else NVFP4
    if (bits, kind) == (8, "float"):
        return _fp8(weights.get("block_structure"))
    if kind == "int" and isinstance(bits, int):
        return _integer(bits, size)
    raise NotCountableError(f"a quantization that is not known here: {bits} bits, {kind}")


def _fp8(block: Any) -> WeightFormat:
    """A float scale for each block; one a tensor or a channel is not worth counting."""
    if isinstance(block, list) and len(block) == 2:
        return WeightFormat("FP8", 1.0 + 4.0 / (block[0] * block[1]))
    return FP8


def _integer(bits: int, group: Any) -> WeightFormat:
    scales = 2.0 / group if isinstance(group, int) and group > 0 else 0.0
    return WeightFormat(f"INT{bits}", bits / 8 + scales)


def _left_alone(found: Mapping[str, Any]) -> Iterable[str]:
    for key in _IGNORE_KEYS:
        patterns = found.get(key)
        if isinstance(patterns, list):
            yield from (pattern for pattern in patterns if isinstance(pattern, str))


def _matches(module: str, pattern: str) -> bool:
    """compressed-tensors writes ``re:`` expressions or names, ModelOpt globs, Transformers parts of names."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return fnmatchcase(module, pattern) or f".{pattern}." in f".{module}."


def cache_format(config: Mapping[str, Any], argument: str | None) -> WeightFormat:
    """What a key or value takes in the KV cache: SGLang's ``--kv-cache-dtype``, else what the checkpoint declares, else BF16.

    Raises:
        NotCountableError: a type that isn't known here.
    """
    if argument is not None and argument != "auto":
        for start, found in (("fp8", FP8), ("fp4", NVFP4), ("bf", BF16), ("float16", BF16)):
            if argument.startswith(start):
                return found
        raise NotCountableError(f"--kv-cache-dtype {argument} is not known here")
    quantization = config.get("quantization_config")
    declared = quantization if isinstance(quantization, Mapping) else {}
    scheme = declared.get("kv_cache_scheme")
    eight = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8
    return FP8 if eight or str(declared.get("kv_cache_quant_algo") or "").upper() == "FP8" else BF16
