"""A host's container, asked beside the host whether a service in it is being changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from orchestrator.agent.wire import LockRequest, LockStatus, OrderStatus
from orchestrator.agent.wire_host import PlaceKind
from orchestrator.agent.wire_words import at_work
from orchestrator.errors import ContainerError, LockedError, OrchestratorError
from orchestrator.flows.target import Agent
from orchestrator.remote.beside import Beside

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory

ASK_SECONDS = 30.0
HOST_SECONDS = 20.0
"""How much longer than for the host's connection a container's answer is waited for."""
POLL_SECONDS = 2.0

Open = Callable[["Inventory", "Host", str], AbstractContextManager[Agent]]


class Guest:
    """Begins to ask at once. A container that can't be asked keeps nobody away: that is told, unless it does not run."""

    def __init__(self, inventory: Inventory, host: Host, open: Open) -> None:  # noqa: A002
        place = host.place(container=True)
        self._label = place.label
        self._request = LockRequest("", place.state_root)
        self._connect: Callable[[], AbstractContextManager[Agent]] = lambda: open(inventory, host, PlaceKind.CONTAINER)
        self._asked = Beside(self._ask)

    def wait_until_free(self, seconds: float, waits: Callable[[str], None]) -> list[str]:
        """Return once no order is at work in it, with warnings; `waits` hears for whom it waits.

        Raises:
            LockedError: an order is at work for longer than `seconds`.
        """
        begun = time.monotonic()
        try:
            orders = self._asked.result(HOST_SECONDS)
            while orders:
                left = begun + seconds - time.monotonic()
                if left <= 0:
                    raise self._locked(orders)
                waits(at_work(orders[0]))
                time.sleep(min(POLL_SECONDS, left))
                orders = self._ask()
        except (LockedError, ContainerError) as error:
            if isinstance(error, LockedError):
                raise
        except (OrchestratorError, TimeoutError) as error:
            return [f"whether a service in {self._label} is being changed is not known, and it was not waited for: {error}"]
        return []

    def _ask(self) -> list[OrderStatus]:
        with self._connect() as agent:
            return agent.ask("lock", self._request, LockStatus, ASK_SECONDS).at_work

    def _locked(self, orders: list[OrderStatus]) -> LockedError:
        return LockedError(
            f"nothing was set while a service in {self._label} is being changed: {at_work(orders[0])}",
            evidence=[at_work(order) for order in orders[1:]],
            next_step="fab prep --wait SECONDS waits for it",
        )
