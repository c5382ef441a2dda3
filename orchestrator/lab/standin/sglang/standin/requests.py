"""The tokenizer manager's part: requests on their way to the scheduler, answers on their way back."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from sglang.standin import text
from sglang.standin.plan import Plan

HEALTH_CHECK = "HEALTH_CHECK"


class BadRequest(Exception):  # noqa: N818
    """Answered with 400 and this message."""


@dataclass
class Generation:
    """One request and what has come back of it."""

    rid: str
    prompt: list[int]
    received: float
    return_logprob: bool = False
    logprob_start: int = -1
    messages: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    first_token: float = 0.0


class Requests:
    """All open requests, by id."""

    def __init__(self, plan: Plan, scheduler: Connection, answers: Connection) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._answers = answers
        self._open: dict[str, Generation] = {}
        self._states: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.last_received = 0.0
        self.generated_tokens = 0
        threading.Thread(target=self._receive, daemon=True).start()

    def rids(self) -> list[str]:
        return list(self._open)

    def used_tokens(self) -> int:
        return sum(len(generation.prompt) + len(generation.tokens) for generation in list(self._open.values()))

    def submit(self, body: dict[str, Any], prompt: list[int], rid: str | None = None) -> Generation:
        """Send one request to the scheduler.

        Raises:
            BadRequest: it does not fit the context.
        """
        parameters = body.get("sampling_params") or {}
        default = min(128, max(0, self._plan.context_length - len(prompt)))
        wanted = parameters.get("max_new_tokens")
        most = int(default if wanted is None else wanted)
        self._check_length(len(prompt), most)
        generation = Generation(
            rid=rid or uuid.uuid4().hex,
            prompt=prompt,
            received=time.time(),
            return_logprob=bool(body.get("return_logprob")),
            logprob_start=int(body["logprob_start_len"]) if body.get("logprob_start_len") is not None else -1,
        )
        self._open[generation.rid] = generation
        self._send(
            {
                "kind": "generate",
                "rid": generation.rid,
                "prompt": prompt,
                "max_new_tokens": most,
                "ignore_eos": bool(parameters.get("ignore_eos")),
                "sampled": float(parameters.get("temperature", 1.0)) > 0,
                "scores_prompt": generation.return_logprob and generation.logprob_start >= 0,
            }
        )
        return generation

    def _check_length(self, prompt: int, new: int) -> None:
        limit = self._plan.context_length
        if prompt >= limit:
            raise BadRequest(f"The input ({prompt} tokens) is longer than the model's context length ({limit} tokens).")
        if prompt + new > limit:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total of "
                f"{prompt + new} tokens: {prompt} tokens from the input messages and {new} tokens for the completion."
            )

    def chunks(self, generation: Generation) -> Iterator[dict[str, Any]]:
        """The answer as it grows: each item is the newest ``text``, ``output_ids`` and ``meta_info``, cumulative."""
        while True:
            message = generation.messages.get()
            generation.first_token = generation.first_token or time.time()
            generation.tokens.extend(message["tokens"])
            generation.text += message["text"]
            yield self._chunk(generation, message)
            if message["finish_reason"] is not None:
                return

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The finished answer."""
        answer: dict[str, Any] = {}
        for chunk in self.chunks(generation):
            answer = chunk
        return answer

    def _chunk(self, generation: Generation, message: dict[str, Any]) -> dict[str, Any]:
        reason = message["finish_reason"]
        meta: dict[str, Any] = {
            "id": generation.rid,
            "finish_reason": reason,
            "prompt_tokens": len(generation.prompt),
            "weight_version": self._plan["weight_version"],
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(generation.tokens),
            "cached_tokens": message["cached_tokens"],
            "dp_rank": None,
            "response_sent_to_client_ts": generation.first_token,
        }
        if reason is not None:
            meta.update(self._final_meta(generation, message))
        if generation.return_logprob:
            meta.update(self._logprobs(generation))
        return {"text": generation.text, "output_ids": list(generation.tokens), "meta_info": meta}

    def _final_meta(self, generation: Generation, message: dict[str, Any]) -> dict[str, Any]:
        now = time.time()
        decoding = max(1e-6, now - generation.first_token)
        return {
            "e2e_latency": now - generation.received,
            "request_received_ts": generation.received,
            "first_token_latency": generation.first_token - generation.received,
            "prefill_finished_time": message["prefill_finished"],
            "request_finished_ts": now,
            "decode_throughput": max(0, len(generation.tokens) - 1) / decoding,
        }

    def _logprobs(self, generation: Generation) -> dict[str, Any]:
        everything = generation.prompt + generation.tokens
        scored: list[list[Any]] = [[None, everything[0], None]]
        for previous, token in zip(everything, everything[1:]):  # noqa: B905, RUF007 - Python 3.9
            value = text.log_likelihood(previous, token, runner=self._plan.runner, garbage=self._plan.settings.garbage)
            scored.append([value, token, None])
        count = len(generation.prompt)
        start = generation.logprob_start if generation.logprob_start >= 0 else count
        return {"input_token_logprobs": scored[start:count], "output_token_logprobs": scored[count:]}

    def abort(self, rids: list[str] | None) -> None:
        """End requests whose id begins with one of `rids`, all of them for None."""
        self._send({"kind": "abort", "rids": rids})

    def forget(self, generation: Generation) -> None:
        """Its reader has gone."""
        if self._open.pop(generation.rid, None) is not None:
            self._send({"kind": "abort", "rids": [generation.rid]})

    def flush_cache(self) -> bool:
        if self._open:
            return False
        self._send({"kind": "flush"})
        return True

    def internal_state(self) -> dict[str, Any]:
        """Ask the scheduler; waits for as long as it is wedged, as /server_info does."""
        rid = uuid.uuid4().hex
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._states[rid] = answer
        self._send({"kind": "internal_state", "rid": rid})
        return answer.get()

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._scheduler.send(message)
            except OSError:
                # The scheduler is gone; the request hangs until the watchdog ends the server, as it really does.
                return

    def _receive(self) -> None:
        while True:
            try:
                message = self._answers.recv()
            except (EOFError, OSError):
                return
            self.last_received = time.monotonic()
            if message["kind"] == "internal_state":
                self._states.pop(message["rid"]).put(message)
                continue
            self.generated_tokens += len(message["tokens"])
            generation = self._open.get(message["rid"])
            if generation is None:
                continue
            if message["finish_reason"] is not None:
                self._open.pop(message["rid"], None)
            generation.messages.put(message)
