"""A router of the inventory, asked from where it can be reached: from here, or by the agent in the router's own place."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.agent.router import SECONDS, carry_out
from orchestrator.agent.router_settings import settings_at
from orchestrator.agent.wire_router import (
    RouterAction,
    RouterAddress,
    RouterReport,
    RouterRequest,
    RouterSettings,
    RouterTrouble,
    RouterView,
    Trouble,
)
from orchestrator.errors import OrchestratorError, RouterError, RouterRestartedError, TooFewServingError
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.target import Agent, Connect, Target

if TYPE_CHECKING:
    from orchestrator.agent.router import Router as RouterClient
    from orchestrator.config import Inventory, Router

LOOK_SECONDS = 4 * SECONDS
"""For the list, the readiness and the counters; each read may be tried again."""
REMOVE_SECONDS = 30.0
"""Until a removed worker has left the list: 0.03 s with 0.3.2, 5 s with smg 1.13.0, whatever is running."""
_ON_THE_WAY = 30.0
"""For the agent to come to the router's place and answer, besides what it waits for there."""

OpenRouter = Callable[[RouterAddress], AbstractContextManager["RouterClient"]]

_KINDS: dict[str, type[OrchestratorError]] = {
    Trouble.RESTARTED: RouterRestartedError,
    Trouble.TOO_FEW: TooFewServingError,
}


class Asked(Protocol):
    """A router that is asked."""

    @property
    def address(self) -> RouterAddress: ...

    def look(self) -> RouterView:
        """What it knows now."""

    def remove(self, worker: str) -> RouterView:
        """Take a worker out: no new request goes to it then."""

    def add(self, worker: str, key: str | None, seconds: float) -> RouterView:
        """Have a worker in, healthy, its model known."""


def open_router(address: RouterAddress) -> AbstractContextManager[RouterClient]:
    """The router, over httpx from here."""
    from orchestrator.remote import router_client

    return router_client.open_router(address)


@dataclass(frozen=True)
class ReachedRouter:
    """A router of the inventory; see :class:`Asked`. Each call raises RouterError where it does not answer or won't."""

    inventory: Inventory
    router: Router
    address: RouterAddress
    open: Open = open_agent
    open_router: OpenRouter = open_router

    def look(self) -> RouterView:
        return self._ask(RouterRequest(self.address, RouterAction.LOOK, seconds=LOOK_SECONDS))

    def remove(self, worker: str) -> RouterView:
        return self._ask(RouterRequest(self.address, RouterAction.REMOVE, worker, seconds=REMOVE_SECONDS))

    def add(self, worker: str, key: str | None, seconds: float) -> RouterView:
        return self._ask(RouterRequest(self.address, RouterAction.ADD, worker, key, seconds))

    def _ask(self, request: RouterRequest) -> RouterView:
        report = carry_out(self._open, request) if self.router.host is None else self._from_its_place(request)
        if report.view is None:
            raise explained(self.router.name, report.trouble)
        return report.view

    def settings(self) -> RouterSettings | None:
        """What of its flags decides about its retries: by its process where that can be seen, else by the inventory; None: nobody knows."""
        return self._seen_settings() or self.router.declared_settings

    def _seen_settings(self) -> RouterSettings | None:
        if self.router.host is None:
            return settings_at(self.router.url) if sys.platform == "linux" else None
        request = RouterRequest(dataclasses.replace(self.address, metrics=None), RouterAction.LOOK, seconds=LOOK_SECONDS)
        return self._from_its_place(request).settings

    def _open(self) -> AbstractContextManager[RouterClient]:
        return self.open_router(self.address)

    def _from_its_place(self, request: RouterRequest) -> RouterReport:
        host = self.inventory.host(str(self.router.host))
        with self.open(self.inventory, host, self.router.place) as agent:
            return asked_by(agent, request)


def asked_by(agent: Agent, request: RouterRequest) -> RouterReport:
    """A router, asked by the agent from its place."""
    return agent.ask("router", request, RouterReport, request.seconds + _ON_THE_WAY)


def reached_by_box(router: Router, asked: Asked, target: Target, worker: str, connect: Connect) -> bool:
    """Whether a service's place reaches the router that has its server as `worker`.

    A loopback is another one in each place: only the router's own counts.
    """
    own_place = (router.host, router.place) == (target.host.name, target.service.place)
    if (router.is_local and not own_place) or not router.url.startswith("http://"):
        return False
    request = RouterRequest(dataclasses.replace(asked.address, metrics=None), RouterAction.LOOK, seconds=2 * SECONDS)
    try:
        with connect(target) as agent:
            report = asked_by(agent, request)
    except OrchestratorError:
        return False
    return report.view is not None and report.view.worker(worker) is not None


def reach(inventory: Inventory, router: Router, open: Open = open_agent, open_router: OpenRouter = open_router) -> ReachedRouter:  # noqa: A002
    """The router, with its key.

    Raises:
        ConfigError: its key can't be had.
    """
    from orchestrator.config import resolve_router_key

    return ReachedRouter(inventory, router, router.address(resolve_router_key(router)), open, open_router)


def explained(name: str, trouble: RouterTrouble | None) -> OrchestratorError:
    """What went wrong with a router, as the operator hears it."""
    if trouble is None:
        return RouterError(f"router {name}: the agent has answered nothing", next_step="this is a bug of the program: report it")
    kind = _KINDS.get(trouble.category, RouterError)
    step = {
        Trouble.UNREACHABLE: f"see whether router {name} runs, and whether url:, host: and place: of its file are right",
        Trouble.UNAUTHORIZED: f"set key: in the file of router {name}",
        Trouble.NOT_UNDERSTOOD: f"see what listens there: url: in the file of router {name}",
        Trouble.UNKEYED: "set the server's key in its service's secrets: api-key",
        Trouble.RESTARTED: f"fab roll --router {name} --repair",
        Trouble.TOO_FEW: f"fab roll --router {name} --repair --plan",
    }.get(trouble.category)
    message = trouble.message if name in trouble.message else f"router {name}: {trouble.message}"
    return kind(message, evidence=list(trouble.evidence), next_step=step)
