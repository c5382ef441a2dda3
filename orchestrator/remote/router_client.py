"""A router as the operator's machine reaches it, over httpx.

A read that finds nobody, or is cut off, is sent again; what changes the router's list never is: whether it was heard is looked up instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from orchestrator.agent.router import SECONDS, Router
from orchestrator.agent.router_protocol import Ask, Reply, RouterFailed
from orchestrator.agent.wire_router import RouterAddress, Trouble

ATTEMPTS = 3
"""Of a read. Whoever waits for the router to come back asks again by itself, so these cover a blink only."""
_FIRST_WAIT = 0.1


@contextmanager
def open_router(address: RouterAddress, transport: httpx.BaseTransport | None = None) -> Iterator[Router]:
    """The router at `address`. No proxy of the environment is used and no redirect followed. Nothing is asked yet.

    Each call of the router raises RouterFailed where no answer comes.
    """
    headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
    with httpx.Client(headers=headers, timeout=SECONDS, trust_env=False, transport=transport) as client:
        caller = _Caller(address, client)
        yield Router(caller.exchange, caller.read_metrics if address.metrics is not None else None)


class _Caller:
    def __init__(self, address: RouterAddress, client: httpx.Client) -> None:
        self._address = address
        self._client = client
        self._base = address.url.rstrip("/")

    def exchange(self, ask: Ask) -> Reply:
        response = self._get(self._base + ask.path) if ask.reads else self._once(ask.method, self._base + ask.path, ask.body)
        return Reply(response.status_code, response.text)

    def read_metrics(self) -> str:
        url = str(self._address.metrics)
        response = self._get(url)
        if response.status_code != httpx.codes.OK:
            raise RouterFailed(Trouble.NOT_UNDERSTOOD, f"{url} gives HTTP {response.status_code}")
        return response.text

    def _get(self, url: str) -> httpx.Response:
        retrying = Retrying(
            retry=retry_if_exception_type(RouterFailed),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=_FIRST_WAIT),
            reraise=True,
        )
        return retrying(self._once, "GET", url, None)

    def _once(self, method: str, url: str, body: dict[str, object] | None) -> httpx.Response:
        try:
            return self._client.request(method, url, json=body) if body is not None else self._client.request(method, url)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            raise RouterFailed(Trouble.UNREACHABLE, f"router {self._address.name} at {url}: {why}") from error
