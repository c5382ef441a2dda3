"""A router as the place reaches it in which the agent runs."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Callable, Optional

from orchestrator.agent.http import Client, HttpError
from orchestrator.agent.router import SECONDS, Router, carry_out
from orchestrator.agent.router_protocol import Ask, Reply, RouterFailed
from orchestrator.agent.router_settings import settings_at
from orchestrator.agent.wire_router import RouterAction, RouterAddress, RouterReport, RouterRequest, Trouble, plain_url


def box_router(address: RouterAddress) -> Router:
    """The router as the place reaches it in which this runs."""
    client = _client(address.url, address.key)

    def exchange(ask: Ask) -> Reply:
        try:
            response = client.ask(ask.method, ask.path, ask.body, SECONDS)
        except HttpError as error:
            raise RouterFailed(Trouble.UNREACHABLE, f"router {address.name} at {address.url}: {error}") from error
        return Reply(response.status, response.text())

    if address.metrics is None:
        return Router(exchange)
    metrics, path = _client(address.metrics, address.key), _path(address.metrics)

    def read_metrics() -> str:
        try:
            response = metrics.get(path, SECONDS)
        except HttpError as error:
            raise RouterFailed(Trouble.UNREACHABLE, str(error)) from error
        if response.status != 200:
            raise RouterFailed(Trouble.NOT_UNDERSTOOD, f"{address.metrics} gives HTTP {response.status}")
        return response.text()

    return Router(exchange, read_metrics)


def _client(url: str, key: Optional[str]) -> Client:
    scheme, _, rest = plain_url(url).partition("://")
    if scheme != "http":
        raise RouterFailed(Trouble.UNREACHABLE, f"{url} is not reached from here: only http is spoken on the box")
    place = rest.partition("/")[0]
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdigit():
        host, port = place, "80"
    return Client(int(port), host, key)


def _path(url: str) -> str:
    rest = url.partition("://")[2]
    return "/" + rest.partition("/")[2]


def router(request: RouterRequest, emit: Callable[[str, Any], None]) -> RouterReport:
    """Ask a router from here. What goes wrong with it is part of the answer."""
    report = carry_out(lambda: nullcontext(box_router(request.router)), request)
    return replace(report, settings=settings_at(request.router.url)) if request.action == RouterAction.LOOK else report
