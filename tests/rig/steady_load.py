"""Clients of a router that never stop: so many requests a second, streams and not, each judged by whether it was answered whole.

A stream that is cut off is no error to `http.client`: it just ends. So a stream counts only with its ``[DONE]``.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Sent:
    """One request: how it ended (``ok``, ``cut``, ``http 500`` or an exception's name), and when."""

    kind: str
    outcome: str
    began: float
    seconds: float


@dataclass
class SteadyLoad:
    """Sends `rate` requests a second to `port` until it is left; open loop: a slow answer holds no other request back."""

    port: int
    model: str
    """The name under which the workers serve it: smg asks for it."""
    rate: float = 4.0
    tokens: int = 40
    address: str = "127.0.0.1"
    patience: float = 60.0
    """How long a client waits for its answer, seconds."""
    sent: list[Sent] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads.append(threading.Thread(target=self._send, daemon=True))
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._ended.set()
        for thread in list(self._threads):
            thread.join(self.patience)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(item.outcome for item in self.sent)

    @property
    def failed(self) -> list[Sent]:
        return [item for item in self.sent if item.outcome != "ok"]

    @property
    def longest(self) -> float:
        return max((item.seconds for item in self.sent), default=0.0)

    def _send(self) -> None:
        began, number = time.monotonic(), 0
        while not self._ended.wait(max(0.0, began + number / self.rate - time.monotonic())):
            thread = threading.Thread(target=self._request, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)
            number += 1

    def _request(self, number: int) -> None:
        kind = ("/generate stream", "/generate", "/v1/completions stream", "/v1/completions", "/v1/chat/completions stream")[number % 5]
        began = time.monotonic()
        try:
            outcome = self._ask(kind)
        except (OSError, http.client.HTTPException, ValueError) as error:
            outcome = type(error).__name__
        self.sent.append(Sent(kind, outcome, began, time.monotonic() - began))

    def _ask(self, kind: str) -> str:
        path, _, streams = kind.partition(" ")
        connection = http.client.HTTPConnection(self.address, self.port, timeout=self.patience)
        try:
            connection.request("POST", path, json.dumps(self._body(path, bool(streams))), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = _whole(response)
        finally:
            connection.close()
        if response.status != 200:
            return f"http {response.status}"
        if text is None:
            return "cut"
        if streams:
            return "ok" if "data: [DONE]" in text else "cut"
        json.loads(text)
        return "ok"

    def _body(self, path: str, streams: bool) -> dict[str, Any]:
        if path == "/generate":
            return {"text": "Say something.", "sampling_params": {"max_new_tokens": self.tokens, "ignore_eos": True}, "stream": streams}
        asked = {"model": self.model, "max_tokens": self.tokens, "stream": streams}
        if path == "/v1/completions":
            return {**asked, "prompt": "Say something."}
        return {**asked, "messages": [{"role": "user", "content": "Say something."}]}


def _whole(response: http.client.HTTPResponse) -> str | None:
    """The answer's body; None where it was cut off."""
    try:
        return response.read().decode()
    except (OSError, http.client.HTTPException):
        return None
