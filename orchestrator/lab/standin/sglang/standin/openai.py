"""The two OpenAI shapes: /v1/completions and /v1/chat/completions. Any model name is accepted and echoed, as in SGLang."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sglang.standin import text
from sglang.standin.requests import BadRequest


def sampling(body: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's parameters in SGLang's names."""
    most = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    return {"max_new_tokens": most, "temperature": body.get("temperature", 1.0), "ignore_eos": body.get("ignore_eos", False)}


class Shape:
    """One exchange; `events` and `whole` turn what the server generates into the API's objects."""

    event_object = ""
    whole_object = ""

    def __init__(self, body: dict[str, Any]) -> None:
        self.identifier = ""
        self.prompt = self._prompt(body)
        self._model = body.get("model") or "default"
        self._created = int(time.time())
        options = body.get("stream_options") or {}
        self._with_usage = bool(options.get("include_usage"))
        self._continuous = bool(options.get("continuous_usage_stats"))

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        raise NotImplementedError

    def _first(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def _choice(self, piece: str, reason: str | None) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def _whole_choice(self, answer: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, chunks: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for choice in self._first():
            yield self._event([choice])
        seen = 0
        meta: dict[str, Any] = {}
        for chunk in chunks:
            meta = chunk["meta_info"]
            for choice in self._choice(chunk["text"][seen:], _reason(meta)):
                yield {**self._event([choice]), **({"usage": _usage(meta)} if self._continuous else {})}
            seen = len(chunk["text"])
        if self._with_usage:
            yield {**self._event([]), "usage": _usage(meta)}

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.identifier,
            "object": self.whole_object,
            "created": self._created,
            "model": self._model,
            "choices": [self._whole_choice(answer)],
            "usage": _usage(answer["meta_info"]),
            "metadata": {"weight_version": "default"},
        }

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.identifier, "object": self.event_object, "created": self._created, "model": self._model, "choices": choices}


class Completion(Shape):
    """/v1/completions."""

    event_object = whole_object = "text_completion"

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        prompt = body.get("prompt")
        if not prompt:
            raise BadRequest("Prompt cannot be empty.")
        if isinstance(prompt, list):
            return text.encode(prompt[0]) if isinstance(prompt[0], str) else list(prompt)
        return text.encode(prompt)

    def _choice(self, piece: str, reason: str | None) -> Iterator[dict[str, Any]]:
        yield {"index": 0, "text": piece, "logprobs": None, "finish_reason": reason, "matched_stop": None}

    def _whole_choice(self, answer: dict[str, Any]) -> dict[str, Any]:
        return next(self._choice(answer["text"], _reason(answer["meta_info"])))

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**super()._event(choices), "usage": None}


class Chat(Shape):
    """/v1/chat/completions: a role chunk first, the finish in a chunk of its own."""

    event_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        messages = body.get("messages")
        if not messages:
            raise BadRequest("Messages cannot be empty.")
        return [1, *text.encode(" ".join(str(message.get("content", "")) for message in messages)), 2]

    def _first(self) -> Iterator[dict[str, Any]]:
        yield self._delta({"role": "assistant", "content": ""}, None)

    def _choice(self, piece: str, reason: str | None) -> Iterator[dict[str, Any]]:
        if piece:
            yield self._delta({"content": piece}, None)
        if reason:
            yield self._delta({}, reason)

    def _delta(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        content = {"reasoning_content": None, **delta}
        return {"index": 0, "delta": content, "logprobs": None, "finish_reason": reason, "matched_stop": None}

    def _whole_choice(self, answer: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer["text"], "reasoning_content": None, "tool_calls": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(answer["meta_info"]), "matched_stop": None}


def _reason(meta: dict[str, Any]) -> str | None:
    reason = meta["finish_reason"]
    return str(reason["type"]) if reason else None


def _usage(meta: dict[str, Any]) -> dict[str, Any]:
    prompt, completion = meta["prompt_tokens"], meta["completion_tokens"]
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }
