"""A client that asks one server for a short generation again and again, one at a time, and writes down what came of each."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import urlsplit

ANSWERED, REFUSED, CUT = "answered", "refused", "cut"
"""A whole answer with status 200; no connection; a connection that brought something else, or broke."""

_BODY = json.dumps({"text": "The rig asks", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}})
_SECONDS = 60.0


@dataclass(frozen=True)
class Request:
    """One request. `began` and `ended` are on the monotonic clock."""

    began: float
    ended: float
    outcome: str


@dataclass(frozen=True)
class Gap:
    """The longest time from one good answer to the next, with their ends on the monotonic clock."""

    last_answer: float
    first_answer: float

    @property
    def seconds(self) -> float:
        return self.first_answer - self.last_answer


@dataclass
class SteadyClient:
    """See :func:`steady_client`."""

    url: str
    pause: float = 0.05
    """Seconds from an answer to the next request."""
    requests: list[Request] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def counts(self) -> dict[str, int]:
        """How many requests came to which outcome."""
        found = Counter(request.outcome for request in self.requests)
        return {outcome: found[outcome] for outcome in (ANSWERED, REFUSED, CUT)}

    def gap(self) -> Gap:
        """Where the server was dark for longest.

        Raises:
            ValueError: fewer than two requests were answered.
        """
        ends = [request.ended for request in self.requests if request.outcome == ANSWERED]
        return max((Gap(before, after) for before, after in pairwise(ends)), key=lambda gap: gap.seconds)

    def answered_until(self, moment: float) -> bool:
        """Whether every request that ended before `moment` was answered, and there was one."""
        ended = [request for request in self.requests if request.ended < moment]
        return bool(ended) and all(request.outcome == ANSWERED for request in ended)

    def ask_until_over(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            outcome = self._ask()
            self.requests.append(Request(began, time.monotonic(), outcome))
            self._over.wait(self.pause)

    def _ask(self) -> str:
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_SECONDS)
        try:
            connection.connect()
        except OSError:
            return REFUSED
        try:
            connection.request("POST", "/generate", _BODY, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return CUT
        finally:
            connection.close()
        return ANSWERED if answer.status == 200 else CUT

    def stop(self) -> None:
        self._over.set()


@contextmanager
def steady_client(url: str, pause: float = 0.05) -> Iterator[SteadyClient]:
    """Ask the server at `url` as long as the block lasts; the last answer has come when it ends."""
    client = SteadyClient(url, pause)
    thread = threading.Thread(target=client.ask_until_over, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stop()
        thread.join(_SECONDS)
