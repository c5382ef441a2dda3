"""Following an order until it has ended, through lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from orchestrator.agent import wire
from orchestrator.errors import AgentError, ConnectError, ConnectionLostError, UnreachableError
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Agent, Connect, Target, decoded

PATIENCE_SECONDS = 90.0
"""How long nothing may be heard before following is given up. The order goes on either way."""


def follow(
    agent: Agent,
    target: Target,
    order: wire.Order,
    observer: Observer,
    connect: Connect,
    *,
    patience: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> wire.OrderResult:
    """Tell `observer` each state and progress of an order and return how it ended.

    A lost connection is made again, for as long as something is heard at least every `patience` seconds: reading changes
    nothing, so it may be repeated.

    Raises:
        ConnectionLostError: the box could not be reached again; the order goes on there.
    """
    follower = _Follower(agent, target, order, observer, connect, clock)
    retrying = Retrying(
        retry=retry_if_exception_type((ConnectError, ConnectionLostError, AgentError)),
        wait=wait_exponential(multiplier=0.5, max=15),
        stop=lambda _: clock() - follower.heard > patience,
        before_sleep=follower.tell_retry,
        sleep=sleep,
        reraise=True,
    )
    try:
        return retrying(follower.read)
    except UnreachableError as error:
        raise ConnectionLostError(
            f"lost sight of the {order.kind} {order.order_id}; it goes on in {target.place}",
            evidence=[error.message, *error.evidence],
            next_step=target.command("status"),
        ) from error


class _Follower:
    """Reads events, remembering the last one so that a new connection goes on after it."""

    def __init__(
        self, agent: Agent, target: Target, order: wire.Order, observer: Observer, connect: Connect, clock: Callable[[], float]
    ) -> None:
        self._agent: Agent | None = agent
        self._target = target
        self._order = order
        self._observer = observer
        self._connect = connect
        self._after = 0
        self._clock = clock
        self.heard = clock()

    def read(self) -> wire.OrderResult:
        """Read to the end, over the first connection as long as it lasts and over a new one after that."""
        if self._agent is not None:
            agent, self._agent = self._agent, None
            return self._read(agent)
        with self._connect(self._target) as agent:
            self._observer.note(f"connected again to {self._target.place}")
            return self._read(agent)

    def _read(self, agent: Agent) -> wire.OrderResult:
        reference = wire.OrderReference(self._order.service, self._order.state_root, self._order.order_id, self._after)
        for event in agent.call("follow", reference):
            self.heard = self._clock()
            if event.kind == wire.EventKind.RESULT:
                return decoded(wire.OrderResult, event)
            self._tell(event)
        raise AgentError("the agent stopped following without a result")

    def _tell(self, event: wire.Event) -> None:
        if event.kind == wire.EventKind.STATE:
            entry = decoded(wire.StateEntry, event)
            if entry.sequence > self._after:
                self._after = entry.sequence
                self._observer.state(entry)
        elif event.kind == wire.EventKind.PROGRESS:
            self._observer.progress(decoded(wire.Progress, event))
        elif event.kind == wire.EventKind.COLLECTED:
            self._observer.collected(decoded(wire.Collected, event))
        elif event.kind == wire.EventKind.LOG:
            self._observer.log(str(event.data.get("text", "")))

    def tell_retry(self, state: RetryCallState) -> None:
        """Say that the connection is made again, and why."""
        error = state.outcome.exception() if state.outcome is not None else None
        reason = error.message if isinstance(error, UnreachableError) else str(error)
        self._observer.warn(f"{reason}; the {self._order.kind} goes on there, connecting again in {state.upcoming_sleep:.1f} s")
