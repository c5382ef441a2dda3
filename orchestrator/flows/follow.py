"""Following an order until it has ended, through lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from orchestrator.agent import wire
from orchestrator.errors import AgentError, ConnectError, ConnectionLostError, UnreachableError
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Agent, Connect, Target, decoded

PATIENCE_SECONDS = 90.0
"""How long nothing may be heard before following is given up. The order goes on either way."""


class AnyOrder(Protocol):
    """What names an order: the order itself, or where it stands."""

    @property
    def order_id(self) -> str: ...

    @property
    def kind(self) -> str: ...


class Follower:
    """Reads events, remembering the last one so that a new connection goes on after it."""

    def __init__(
        self,
        agent: Agent,
        target: Target,
        order: AnyOrder,
        observer: Observer,
        connect: Connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent: Agent | None = agent
        self._target = target
        self._order = order
        self._observer = observer
        self._connect = connect
        self._after = 0
        self._clock = clock
        self.heard = clock()

    def to_end(self, patience: float = PATIENCE_SECONDS, sleep: Callable[[float], None] = time.sleep) -> wire.OrderResult:
        """Tell each state and progress and return how the order ended. May be called again when it was interrupted: nothing is told twice.

        A lost connection is made again, for as long as something is heard at least every `patience` seconds: reading changes
        nothing, so it may be repeated.

        Raises:
            ConnectionLostError: the box could not be reached again; the order goes on there.
        """
        self.heard = self._clock()
        retrying = Retrying(
            retry=retry_if_exception_type((ConnectError, ConnectionLostError, AgentError)),
            wait=wait_exponential(multiplier=0.5, max=15),
            stop=lambda _: self._clock() - self.heard > patience,
            before_sleep=self._tell_retry,
            sleep=sleep,
            reraise=True,
        )
        try:
            return retrying(self._read_again)
        except UnreachableError as error:
            raise ConnectionLostError(
                f"lost sight of the {self._order.kind} {self._order.order_id}; it goes on in {self._target.place}",
                evidence=[error.message, *error.evidence],
                next_step=self._target.command("attach", f"--order {self._order.order_id}"),
            ) from error

    def _read_again(self) -> wire.OrderResult:
        """Read to the end, over the first connection as long as it lasts and over a new one after that."""
        if self._agent is not None:
            agent, self._agent = self._agent, None
            return self._read(agent)
        with self._connect(self._target) as agent:
            self._observer.note(f"connected again to {self._target.place}")
            return self._read(agent)

    def _read(self, agent: Agent) -> wire.OrderResult:
        reference = wire.OrderReference(self._target.service.name, self._target.state_root, self._order.order_id, self._after)
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

    def _tell_retry(self, state: RetryCallState) -> None:
        """Say that the connection is made again, and why."""
        error = state.outcome.exception() if state.outcome is not None else None
        reason = error.message if isinstance(error, UnreachableError) else str(error)
        self._observer.warn(f"{reason}; the {self._order.kind} goes on there, connecting again in {state.upcoming_sleep:.1f} s")
