"""Short greedy generations, and whether what came back is one."""

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


def complete(client: Client, prompt: str, tokens: int, timeout: float) -> Generation:
    """Continue a text greedily for at most `tokens` tokens; what a model writes past its own end says nothing of it.

    Raises:
        HttpError: no good answer.
        BadGeneration: an answer that is no generation.
    """
    body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}}
    return read_generation(client.post_json("/generate", body, timeout), tokens, may_end=True)


def chat(client: Client, prompt: str, tokens: int, timeout: float) -> str:
    """The greedy answer to a user's message, a model's reasoning before it; through its chat template.

    Raises:
        HttpError: no good answer.
        BadGeneration: an answer that is no chat completion.
    """
    body = {"model": "default", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": tokens}
    answer = client.post_json("/v1/chat/completions", body, timeout)
    try:
        message = answer["choices"][0]["message"]
        return "\n".join(str(message[name]) for name in ("reasoning_content", "content") if message.get(name))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadGeneration("the answer holds no chat message") from None


def read_generation(answer: Any, tokens: int, *, may_end: bool = False) -> Generation:
    """Check an answer of /generate. With `may_end` the model may have ended before `tokens` tokens.

    Raises:
        BadGeneration: see :func:`generate`.
    """
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        raise BadGeneration("the answer holds no meta_info")
    reason = finish_type(meta)
    if reason != "length" and not (may_end and reason == "stop"):
        raise BadGeneration(f"it ended by {reason!r}, not by its length")
    if meta.get("completion_tokens") != tokens and reason == "length":
        raise BadGeneration(f"{meta.get('completion_tokens')} tokens came back, {tokens} were asked for")
    ids = answer.get("output_ids")
    return Generation(
        text=str(answer.get("text", "")),
        prompt_tokens=int(meta.get("prompt_tokens", 0)),
        completion_tokens=int(meta.get("completion_tokens") or 0),
        cached_tokens=int(meta.get("cached_tokens") or 0),
        token_ids=[item for item in ids if isinstance(item, int)] if isinstance(ids, list) else [],
    )


def finish_type(meta: Dict[str, Any]) -> Optional[str]:
    """``length``, ``stop``, ``abort``, or None while it goes on."""
    reason = meta.get("finish_reason")
    return str(reason.get("type")) if isinstance(reason, dict) else None
