"""What each GPU reads from its memory for one decode step, counted from a model's config.json. Pure.

Names and shapes are those of SGLang 0.5.23 (models/deepseek_v2.py, glm4_moe.py, llama.py, mixtral.py): which projections are split over
the ranks and which each rank has whole. It is a least count: norms, biases, activations, the embeddings of the few tokens and what is
written are left out, experts lie evenly, and nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.results.weight_formats import BF16, FP8, FP32, Formats, NotCountableError, WeightFormat, cache_format, weight_formats

_UNLIKE = {
    "is_encoder_decoder": "an encoder",
    "attn_output_gate": "gated attention",
    "hybrid_override_pattern": "state-space layers",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "linear_num_value_heads": "linear attention",
    "intermediate_size_mlp": "two kinds of dense layers",
    "hc_mult": "hyper-connections",
}
"""Keys of models whose layers are not counted here."""
_LAYERS = {"full_attention", "sliding_attention"}
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_INDEX_SCALE = 4
"""Bytes beside each indexed FP8 key (0.5.23 mem_cache/memory_pool.py, DSATokenToKVPool)."""
_LATENT_BLOCK = 128
"""Values of a latent that share a float scale, where sparse attention keeps it in FP8."""


@dataclass(frozen=True)
class Read:
    """Bytes of one GPU in one step, and how they came about."""

    name: str
    bytes: float
    how: str


@dataclass(frozen=True)
class ModelReads:
    """All reads of a step. `weight_bytes` are those of the whole checkpoint, to be held against the files."""

    reads: tuple[Read, ...]
    weight_bytes: float
    remarks: tuple[str, ...] = ()

    @property
    def bytes(self) -> float:
        return sum(read.bytes for read in self.reads)


@dataclass(frozen=True)
class Step:
    """A decode step: `batch_size` streams of `context` tokens each, on `ranks` GPUs (tensor parallel; experts over the same)."""

    batch_size: int = 1
    context: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class _Matrix:
    """Weights under one heading. `read` of `copies` are needed in a step; each is split over `ranks`."""

    heading: str
    module: str
    values: int
    ranks: int = 1
    copies: int = 1
    read: float = 1.0
    format: WeightFormat | None = None
    """None: as the quantization has the module."""


def count_reads(config: Mapping[str, Any], step: Step, quantization: str | None = None, cache: str | None = None) -> ModelReads:
    """Count what is read.

    Args:
        config: config.json; of a model of several parts its ``text_config`` counts.
        quantization, cache: SGLang's ``--quantization`` and ``--kv-cache-dtype``, None where they were not given.

    Raises:
        NotCountableError: the model has layers that are not counted here, or the config lacks a number.
    """
    model = read_model(config, step)
    config = model.config
    formats = weight_formats(config, quantization)
    reads: dict[str, list[tuple[float, str]]] = {}
    total = 0.0
    for matrix in model.matrices():
        kept = matrix.format or formats.of(matrix.module)
        reads.setdefault(matrix.heading, []).append((matrix.values * matrix.read / matrix.ranks * kept.bytes_per_value, kept.name))
        total += matrix.values * matrix.copies * kept.bytes_per_value
    counted = [Read(name, sum(size for size, _ in parts), _how(name, parts, model)) for name, parts in reads.items()]
    counted.append(model.cache(cache_format(config, cache)))
    return ModelReads(tuple(counted), total + model.only_stored(formats), tuple(filter(None, [formats.remark])))


def read_model(config: Mapping[str, Any], step: Step) -> Model:
    """The numbers of a model; see :func:`count_reads`."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {"quantization_config": config.get("quantization_config"), **text}
    _refuse_unlike(config)
    return Model(config, step)


def _refuse_unlike(config: Mapping[str, Any]) -> None:
    for key, what in _UNLIKE.items():
        if config.get(key):
            raise NotCountableError(f"the model has {what} ({key}), which is not counted here")
    kinds = set(config.get("layer_types") or ()) - _LAYERS
    if kinds:
        raise NotCountableError(f"the model has layers of {', '.join(sorted(map(str, kinds)))}, which are not counted here")


def _how(name: str, parts: list[tuple[float, str]], model: Model) -> str:
    formats = ", ".join(dict.fromkeys(kept for _, kept in parts))
    return f"{formats}; {model.explained(name)}" if model.explained(name) else formats


class Model:
    """A config's numbers, and the matrices that they make."""

    def __init__(self, config: Mapping[str, Any], step: Step) -> None:
        self.config = config
        self.step = step
        self.hidden = self.number("hidden_size")
        self.layers = self.number("num_hidden_layers")
        self.heads = self.number("num_attention_heads")
        self.latent = config.get("kv_lora_rank") or 0
        self.experts = next((int(config[key]) for key in _EXPERTS if config.get(key)), 0)

    def number(self, *names: str) -> int:
        """The first of these keys that the config has."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, int) and value > 0:
                return value
        raise NotCountableError(f"config.json has no {' or '.join(names)}")

    def matrices(self) -> Iterator[_Matrix]:
        for layer in range(self.layers):
            yield from self._layer(f"model.layers.{layer}", layer)
        yield _Matrix("output head", "lm_head", self.number("vocab_size") * self.hidden, self.step.ranks, format=BF16)

    def _layer(self, prefix: str, layer: int) -> Iterator[_Matrix]:
        yield from self._latent_attention(f"{prefix}.self_attn", layer) if self.latent else self._attention(f"{prefix}.self_attn")
        if self.has_experts(layer):
            yield from self._expert_layer(f"{prefix}.mlp")
        else:
            values = 3 * self.hidden * self.number("intermediate_size")
            yield _Matrix("dense layers", f"{prefix}.mlp.gate_proj", values, self.step.ranks)

    @property
    def head_size(self) -> int:
        return int(self.config.get("head_dim") or self.hidden // self.heads)

    @property
    def key_heads(self) -> int:
        return int(self.config.get("num_key_value_heads") or self.heads)

    def _attention(self, prefix: str) -> Iterator[_Matrix]:
        ranks = self.step.ranks
        yield _Matrix("attention", f"{prefix}.q_proj", self.hidden * self.heads * self.head_size, ranks)
        # Ranks beyond the number of key heads have copies.
        yield _Matrix("attention", f"{prefix}.k_proj", 2 * self.hidden * self.key_heads * self.head_size, min(ranks, self.key_heads))
        yield _Matrix("attention", f"{prefix}.o_proj", self.hidden * self.heads * self.head_size, ranks)

    def _latent_attention(self, prefix: str, layer: int) -> Iterator[_Matrix]:
        plain, rotated, value = (self.number(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        ranks, narrow = self.step.ranks, self.config.get("q_lora_rank")
        queries = self.heads * (plain + rotated)
        if narrow:
            yield _Matrix("attention", f"{prefix}.q_a_proj", self.hidden * narrow)
            yield _Matrix("attention", f"{prefix}.q_b_proj", narrow * queries, ranks)
        else:
            yield _Matrix("attention", f"{prefix}.q_proj", self.hidden * queries, ranks)
        yield _Matrix("attention", f"{prefix}.kv_a_proj_with_mqa", self.hidden * (self.latent + rotated))
        yield _Matrix("attention", f"{prefix}.kv_b_proj", self.latent * self.heads * (plain + value), ranks)
        yield _Matrix("attention", f"{prefix}.o_proj", self.heads * value * self.hidden, ranks)
        if self.has_indexer(layer):
            heads, size = self.number("index_n_heads"), self.number("index_head_dim")
            yield _Matrix("indexer", f"{prefix}.indexer.wq_b", self.number("q_lora_rank") * heads * size)
            yield _Matrix("indexer", f"{prefix}.indexer.wk", self.hidden * size)
            yield _Matrix("indexer", f"{prefix}.indexer.weights_proj", self.hidden * heads, format=BF16)

    def has_indexer(self, layer: int) -> bool:
        kinds = self.config.get("indexer_types") or ()
        return bool(self.config.get("index_topk")) and (not kinds or kinds[layer] == "full")

    def has_experts(self, layer: int) -> bool:
        if (
            not self.experts
            or layer < (self.config.get("first_k_dense_replace") or 0)
            or layer in (self.config.get("mlp_only_layers") or ())
        ):
            return False
        kinds = self.config.get("mlp_layer_types")
        if kinds:
            return bool(kinds[layer] == "sparse")
        sparse, every = self.config.get("decoder_sparse_step") or 1, self.config.get("moe_layer_freq") or 1
        if isinstance(every, list):
            return bool(every[layer])
        return bool((layer + 1) % sparse == 0 and layer % every == 0)

    @property
    def active(self) -> int:
        return self.number("num_experts_per_tok", "num_experts_per_token", "moe_topk")

    @property
    def experts_read(self) -> float:
        """How many different experts a step needs in the mean, if each token's are drawn evenly: exactly the active ones at batch 1."""
        return self.experts * (1 - (1 - self.active / self.experts) ** self.step.batch_size)

    def _expert_layer(self, prefix: str) -> Iterator[_Matrix]:
        size, ranks = self.number("moe_intermediate_size", "intermediate_size"), self.step.ranks
        expert = 3 * self.hidden * size
        yield _Matrix("routed experts", f"{prefix}.experts.0.gate_proj", expert, ranks, self.experts, self.experts_read)
        if self.shared_size:
            yield _Matrix("shared experts", f"{prefix}.shared_experts.gate_proj", 3 * self.hidden * self.shared_size, ranks)
        yield _Matrix("router", f"{prefix}.gate", self.experts * self.hidden, format=self.router_format)

    @property
    def shared_size(self) -> int:
        """Inner size of all experts that every token goes through, together."""
        size = self.number("moe_intermediate_size", "intermediate_size")
        return int(self.config.get("shared_expert_intermediate_size") or (self.config.get("n_shared_experts") or 0) * size)

    @property
    def router_format(self) -> WeightFormat:
        return FP32 if self.config.get("model_type") == "glm4_moe" else BF16

    def only_stored(self, formats: Formats) -> float:
        """Bytes that the files hold and decode doesn't read: the embeddings, and layers that predict further tokens."""
        tied = self.config.get("tie_word_embeddings")
        embeddings = 0.0 if tied else self.number("vocab_size") * self.hidden * BF16.bytes_per_value
        extra = 0.0
        for number in range(self.config.get("num_nextn_predict_layers") or 0):
            prefix = f"model.layers.{self.layers + number}"
            for matrix in self._layer(prefix, self.layers - 1):
                extra += matrix.values * matrix.copies * (matrix.format or formats.of(matrix.module)).bytes_per_value
            extra += 2 * self.hidden**2 * BF16.bytes_per_value
        return embeddings + extra

    def cache(self, kept: WeightFormat) -> Read:
        batch, context = self.step.batch_size, self.step.context
        if not self.latent:
            share = self.key_heads / min(self.step.ranks, self.key_heads)
            entry = 2 * share * self.head_size * kept.bytes_per_value
            tokens = sum(self._tokens_seen(layer) for layer in range(self.layers))
            how = f"{kept.name}; {batch} x {context} tokens of {share:g} key heads in {self.layers} layers"
            return Read("KV cache", batch * tokens * entry, how)
        rotated = self.number("qk_rope_head_dim")
        entry = (self.latent + rotated) * kept.bytes_per_value
        if not self.config.get("index_topk"):
            how = f"{kept.name}; {batch} x {context} latents of {entry:g} bytes in {self.layers} layers, whole on each GPU"
            return Read("KV cache", batch * context * entry * self.layers, how)
        if kept is FP8:
            entry = self.latent + self.latent / _LATENT_BLOCK * 4 + rotated * BF16.bytes_per_value
        seen = min(context, self.number("index_topk"))
        indexed = sum(self.has_indexer(layer) for layer in range(self.layers)) * context * (self.number("index_head_dim") + _INDEX_SCALE)
        how = f"{kept.name}; {batch} x {seen} latents of {entry:g} bytes in {self.layers} layers, and {context} indexed keys"
        return Read("KV cache", batch * (seen * entry * self.layers + indexed), how)

    def _tokens_seen(self, layer: int) -> int:
        kinds, window = self.config.get("layer_types") or (), self.config.get("sliding_window")
        everywhere = not kinds and self.config.get("use_sliding_window", True)
        slides = bool(window) and (everywhere or (bool(kinds) and kinds[layer] == "sliding_attention"))
        return min(self.step.context, int(window)) if slides and window else self.step.context

    def explained(self, name: str) -> str:
        """How many layers a heading is about, and how they are shared out."""
        sparse = sum(self.has_experts(layer) for layer in range(self.layers))
        where = f" over {self.step.ranks} GPUs" if self.step.ranks > 1 else ""
        if name == "attention":
            return f"{self.layers} layers, {'latent' if self.latent else f'{self.key_heads} key heads'}{where}"
        if name == "routed experts":
            return f"{self.experts_read:.4g} of {self.experts} in {sparse} layers{where}"
        if name in ("indexer", "router"):
            return "whole on each GPU"
        count = {"dense layers": self.layers - sparse, "shared experts": sparse}.get(name)
        return f"{count} layers{where}" if count else where.strip()
