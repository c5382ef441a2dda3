"""The shapes of /generate: prompts in, events out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from sglang.standin import text
from sglang.standin.requests import BadRequest, Generation, Requests


def prompts_of(body: dict[str, Any]) -> tuple[list[list[int]], bool]:
    """The prompts as tokens, and whether the caller sent a batch.

    Raises:
        BadRequest: there is none.
    """
    if body.get("input_ids"):
        ids = body["input_ids"]
        return (ids, True) if isinstance(ids[0], list) else ([ids], False)
    if body.get("text"):
        texts = body["text"]
        return ([text.encode(item) for item in texts], True) if isinstance(texts, list) else ([text.encode(texts)], False)
    raise BadRequest("Either text, input_ids or input_embeds should be provided.")


def stream_generate(requests: Requests, generations: list[Generation], *, is_batch: bool, incremental: bool) -> Iterator[dict[str, Any]]:
    """Events as they come: cumulative unless the server was started with --incremental-streaming-output."""
    merged: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def follow(index: int, generation: Generation) -> None:
        seen_text, seen_tokens = 0, 0
        for chunk in requests.chunks(generation):
            event = dict(chunk)
            if incremental:
                event["text"], event["output_ids"] = chunk["text"][seen_text:], chunk["output_ids"][seen_tokens:]
                seen_text, seen_tokens = len(chunk["text"]), len(chunk["output_ids"])
            if is_batch:
                event["index"] = index
            merged.put(event)
        merged.put(None)

    for index, generation in enumerate(generations):
        threading.Thread(target=follow, args=(index, generation), daemon=True).start()
    unfinished = len(generations)
    while unfinished:
        event = merged.get()
        if event is None:
            unfinished -= 1
        else:
            yield event
