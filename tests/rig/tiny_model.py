"""A model directory small enough for a test server: a random model of a few layers and a byte-level tokenizer.

There are no weights: the server starts it with ``--load-format dummy``. The tokenizer has the 256 byte tokens and a few specials
and no merges, so any text round-trips and one byte of ASCII is one token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIALS = ("<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>")
PAD, BOS, EOS = 256, 257, 259
VOCABULARY = 320
"""256 bytes and the specials, rounded up to a multiple of 64."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Architecture:
    """The names that a model's config.json goes by, whether its MLP layers are mixtures of experts, and whether one is for every token."""

    class_name: str
    model_type: str
    experts: bool = False
    shared_expert: bool = False


LLAMA = Architecture("LlamaForCausalLM", "llama")
QWEN2_MOE = Architecture("Qwen2MoeForCausalLM", "qwen2_moe", experts=True, shared_expert=True)
QWEN3_MOE = Architecture("Qwen3MoeForCausalLM", "qwen3_moe", experts=True)


@dataclass(frozen=True)
class Dimensions:
    """How large a model is; `expert` is the intermediate size of one expert, `context` in tokens."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 2
    head: int = 16
    intermediate: int = 128
    experts: int = 4
    expert: int = 128
    context: int = 2048


FOR_CPU = Dimensions()
FOR_GPU = Dimensions(hidden=1024, layers=4, heads=8, key_value_heads=4, head=128, intermediate=2048, experts=8, expert=512, context=32768)
"""Heads of 128, as attention kernels want them; 0.1 GB in bf16."""


def write_model(folder: Path, architecture: Architecture = LLAMA, dimensions: Dimensions = FOR_CPU) -> Path:
    """Write the model's four files into `folder` (made when missing) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    _write(folder / "config.json", _config(architecture, dimensions) | tokens)
    _write(folder / "generation_config.json", tokens)
    _write(folder / "tokenizer.json", _tokenizer())
    _write(folder / "tokenizer_config.json", _tokenizer_config(dimensions.context))
    return folder


def _config(architecture: Architecture, dimensions: Dimensions) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "hidden_size": dimensions.hidden,
        "num_hidden_layers": dimensions.layers,
        "num_attention_heads": dimensions.heads,
        "num_key_value_heads": dimensions.key_value_heads,
        "head_dim": dimensions.head,
        "intermediate_size": dimensions.intermediate,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": dimensions.context,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "attention_bias": False,
    }
    if architecture.experts:
        config |= {
            "num_experts": dimensions.experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": dimensions.expert,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "router_aux_loss_coef": 0.001,
        }
    if architecture.shared_expert:
        config["shared_expert_intermediate_size"] = dimensions.expert
    return config


def _tokenizer() -> dict[str, Any]:
    """The JSON that the `tokenizers` library would save for a byte-level BPE without merges."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + index, "content": text, **flags} for index, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letter: value for value, letter in enumerate(_byte_alphabet())}, "merges": []},
    }


def _byte_alphabet() -> list[str]:
    """The printable letters by which byte-level BPE writes the 256 byte values (GPT-2's ``bytes_to_unicode``)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(value) if value in printable else chr(next(spare)) for value in range(256)]


def _tokenizer_config(context: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 2 * context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
