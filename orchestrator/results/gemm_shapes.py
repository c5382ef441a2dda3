"""The matrix multiplications and sums over ranks of one decode step, from a model's config.json. Pure.

The same matrices as :mod:`model_reads` counts, with the shapes in which SGLang 0.5.23 multiplies them: q, k and v in one
(layers/linear.py, QKVParallelLinear), gate and up in one (MergedColumnParallelLinear), q_a and kv_a of latent attention in one, and kv_b
absorbed into two multiplications by head (models/deepseek_common/attention_forward_methods/forward_mla.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.agent.wire_budget import AllReduce, Gemm
from orchestrator.agent.wire_measure import FloorInputs
from orchestrator.results.model_reads import Model, Step, read_model
from orchestrator.results.weight_formats import BF16, NotCountableError, WeightFormat, weight_formats

_ACTIVATION_BYTES = 2
"""Of a hidden state, BF16."""


@dataclass(frozen=True)
class _Shape:
    """`groups` None: one multiplication of all tokens. `format` None: as the quantization has the module."""

    name: str
    module: str
    inputs: float
    outputs: float
    groups: float = 1
    rows: int | None = None
    format: WeightFormat | None = None


def gemms(inputs: FloorInputs, batch_size: int) -> list[Gemm]:
    """The multiplications of a step at a batch size, each shape once with the number of layers that have it.

    Raises:
        NotCountableError: the model has layers that are not counted, the config lacks a number, or ranks share the work in a way that is
            not known here.
    """
    refuse_unknown_layout(inputs)
    model = read_model(inputs.config, Step(batch_size, 0, inputs.tensor_parallel))
    formats = weight_formats(model.config, inputs.quantization)
    found: dict[tuple[Any, ...], Gemm] = {}
    for shape in _shapes(model, inputs.expert_parallel):
        kept = shape.format or formats.of(shape.module)
        groups, rows = max(1, round(shape.groups)), shape.rows or batch_size
        width, depth = math.ceil(shape.outputs), math.ceil(shape.inputs)
        size = shape.groups * shape.inputs * shape.outputs * kept.bytes_per_value
        key = (shape.name, rows, depth, width, groups, kept)
        earlier = found.get(key)
        found[key] = (
            dataclasses.replace(earlier, count=earlier.count + 1)
            if earlier is not None
            else Gemm(shape.name, batch_size, rows, depth, width, groups, 1, kept.name, size)
        )
    return list(found.values())


def all_reduce(inputs: FloorInputs, batch_size: int) -> AllReduce | None:
    """What is summed over the ranks in a step: a hidden state a token after attention and after the MLP of each layer, and after the
    embeddings. None with one rank.

    Raises:
        NotCountableError: as :func:`gemms`.
    """
    refuse_unknown_layout(inputs)
    if inputs.tensor_parallel == 1:
        return None
    model = read_model(inputs.config, Step(batch_size, 0, inputs.tensor_parallel))
    return AllReduce(batch_size, batch_size * model.hidden * _ACTIVATION_BYTES, 2 * model.layers + 1)


def refuse_unknown_layout(inputs: FloorInputs) -> None:
    """Raise NotCountableError where the ranks share a step in another way than by tensor and expert parallelism."""
    if not inputs.config:
        raise NotCountableError("the model's config.json could not be read")
    if inputs.data_parallel > 1:
        raise NotCountableError("with data parallelism it is not known what each GPU multiplies of attention")
    if inputs.pipeline_parallel > 1:
        raise NotCountableError("with pipeline parallelism a step is passed on between GPUs, which is not counted here")


def _shapes(model: Model, expert_ranks: int) -> Iterator[_Shape]:
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}"
        yield from _latent_attention(model, f"{prefix}.self_attn", layer) if model.latent else _attention(model, f"{prefix}.self_attn")
        if model.has_experts(layer):
            yield from _experts(model, f"{prefix}.mlp", expert_ranks)
        else:
            yield from _gated(model, "dense", f"{prefix}.mlp.gate_proj", model.number("intermediate_size"))
    yield _Shape("lm_head", "lm_head", model.hidden, model.number("vocab_size") / model.step.ranks, format=BF16)


def _attention(model: Model, prefix: str) -> Iterator[_Shape]:
    ranks, size = model.step.ranks, model.head_size
    key_heads = model.key_heads / min(ranks, model.key_heads)
    yield _Shape("qkv_proj", f"{prefix}.q_proj", model.hidden, (model.heads / ranks + 2 * key_heads) * size)
    yield _Shape("o_proj", f"{prefix}.o_proj", model.heads * size / ranks, model.hidden)


def _latent_attention(model: Model, prefix: str, layer: int) -> Iterator[_Shape]:
    plain, rotated, value = (model.number(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    ranks, narrow = model.step.ranks, model.config.get("q_lora_rank")
    heads = model.heads / ranks
    if narrow:
        yield _Shape("qkv_a_proj", f"{prefix}.q_a_proj", model.hidden, narrow + model.latent + rotated)
        yield _Shape("q_b_proj", f"{prefix}.q_b_proj", narrow, heads * (plain + rotated))
    else:
        yield _Shape("q_proj", f"{prefix}.q_proj", model.hidden, heads * (plain + rotated))
        yield _Shape("kv_a_proj", f"{prefix}.kv_a_proj_with_mqa", model.hidden, model.latent + rotated)
    yield _Shape("absorbed k", f"{prefix}.kv_b_proj", plain, model.latent, heads, model.step.batch_size)
    yield _Shape("absorbed v", f"{prefix}.kv_b_proj", model.latent, value, heads, model.step.batch_size)
    yield _Shape("o_proj", f"{prefix}.o_proj", heads * value, model.hidden)
    if model.has_indexer(layer):
        index_heads, size = model.number("index_n_heads"), model.number("index_head_dim")
        yield _Shape("indexer wq_b", f"{prefix}.indexer.wq_b", model.number("q_lora_rank"), index_heads * size)
        yield _Shape("indexer wk", f"{prefix}.indexer.wk", model.hidden, size)
        yield _Shape("indexer weights", f"{prefix}.indexer.weights_proj", model.hidden, index_heads, format=BF16)


def _experts(model: Model, prefix: str, expert_ranks: int) -> Iterator[_Shape]:
    """Experts are split over all ranks, or lie whole on `expert_ranks` of them; tokens are dealt evenly."""
    size, ranks, batch = model.number("moe_intermediate_size", "intermediate_size"), model.step.ranks, model.step.batch_size
    inside = size / (ranks / expert_ranks)
    groups = model.experts_read / expert_ranks
    rows = max(1, round(batch * model.active / model.experts_read))
    module = f"{prefix}.experts.0.gate_proj"
    yield _Shape("experts gate_up", module, model.hidden, 2 * inside, groups, rows)
    yield _Shape("experts down", module, inside, model.hidden, groups, rows)
    shared = model.shared_size
    if shared:
        yield from _gated(model, "shared", f"{prefix}.shared_experts.gate_proj", shared)
    yield _Shape("router", f"{prefix}.gate", model.hidden, model.experts, format=model.router_format)


def _gated(model: Model, name: str, module: str, size: int) -> Iterator[_Shape]:
    ranks = model.step.ranks
    yield _Shape(f"{name} gate_up", module, model.hidden, 2 * size / ranks)
    yield _Shape(f"{name} down", module, size / ranks, model.hidden)
