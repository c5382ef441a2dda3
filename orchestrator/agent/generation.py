"""One short generation over /generate, and whether what came back is one."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from orchestrator.agent.http import Client


class BadGeneration(Exception):  # noqa: N818
    """An answer with status 200 that is not the generation that was asked for; the message says in what."""


@dataclass(frozen=True)
class Generation:
    """What a generation brought. `token_ids` is empty where the version does not give them."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    token_ids: List[int]


def generate(client: Client, prompt: Dict[str, Any], tokens: int, timeout: float) -> Generation:
    """Generate exactly `tokens` tokens greedily. `prompt` is ``{"text": ...}`` or ``{"input_ids": [...]}``.

    Token ids must lie in the model's vocabulary: one past it kills the whole server (seen on 0.5.17).

    Raises:
        HttpError: no good answer.
        BadGeneration: an answer, with another number of tokens or cut short.
    """
    body = {**prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    return read_generation(client.post_json("/generate", body, timeout), tokens)


def read_generation(answer: Any, tokens: int) -> Generation:
    """Check an answer of /generate.

    Raises:
        BadGeneration: see :func:`generate`.
    """
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        raise BadGeneration("the answer holds no meta_info")
    reason = finish_type(meta)
    if reason != "length":
        raise BadGeneration(f"it ended by {reason!r}, not by its length")
    if meta.get("completion_tokens") != tokens:
        raise BadGeneration(f"{meta.get('completion_tokens')} tokens came back, {tokens} were asked for")
    ids = answer.get("output_ids")
    return Generation(
        text=str(answer.get("text", "")),
        prompt_tokens=int(meta.get("prompt_tokens", 0)),
        completion_tokens=tokens,
        cached_tokens=int(meta.get("cached_tokens") or 0),
        token_ids=[item for item in ids if isinstance(item, int)] if isinstance(ids, list) else [],
    )


def finish_type(meta: Dict[str, Any]) -> Optional[str]:
    """``length``, ``stop``, ``abort``, or None while it goes on."""
    reason = meta.get("finish_reason")
    return str(reason.get("type")) if isinstance(reason, dict) else None
