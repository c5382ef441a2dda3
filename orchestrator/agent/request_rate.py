"""How many requests a second a server answers, by its own counter over the time in which it is looked at."""

import re
import time
from typing import Optional

from orchestrator.agent.http import Client, HttpError

_TOTAL = re.compile(r"^sglang:num_requests_total(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
_SECONDS = 2.0
_AT_LEAST = 2.0
"""Seconds below which a count says nothing of a rate."""


def total_of(text: str) -> Optional[float]:
    """The requests that a server's /metrics says to have ended since its start; None where it has no such counter."""
    values = [float(value) for value in _TOTAL.findall(text)]
    return sum(values) if values else None


class RequestRate:
    """Counts from now on. `client` is None where nobody can be asked."""

    def __init__(self, client: Optional[Client]) -> None:
        self._client = client
        self._began = time.monotonic()
        self._first = self._read()

    def __call__(self) -> Optional[float]:
        """Requests a second since then; None where the server has no counter (``--enable-metrics``), or too little time has passed."""
        last, seconds = self._read(), time.monotonic() - self._began
        if self._first is None or last is None or last < self._first or seconds < _AT_LEAST:
            return None
        return (last - self._first) / seconds

    def _read(self) -> Optional[float]:
        if self._client is None:
            return None
        try:
            response = self._client.get("/metrics", _SECONDS)
        except HttpError:
            return None
        return total_of(response.text()) if response.status == 200 else None
