"""Who keeps changes of a service away: looking at it, waiting for it, and a person's own lock."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TypeVar

from orchestrator.agent import wire
from orchestrator.agent.wire_words import at_work, gpu_held_by, held_by, locked_by
from orchestrator.errors import LockedError, TurnedAwayError, UnfinishedOrderError
from orchestrator.flows import look
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Agent, Connect, Target, connect
from orchestrator.results.runs import operator_name

T = TypeVar("T")

LOCK_SECONDS = 60.0
"""Bounds one answer: nvidia-smi may be asked in it."""
POLL_SECONDS = 2.0
TOLD_EVERY = 30.0
"""Seconds after which the same words are said again while somebody is waited for."""


class Patience:
    """How long others are waited for, from when this was made."""

    def __init__(
        self, seconds: float = 0.0, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.sleep = sleep
        self.clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; never below zero."""
        return max(0.0, self._end - self.clock())


def lock_status(agent: Agent, target: Target, order_id: str | None = None) -> wire.LockStatus:
    """Who keeps changes of the service away at the moment, and where an order stands: a named one, the one at work, or the newest."""
    return _ask(agent, target, wire.LockAction.STATUS, order_id=order_id)


def _ask(agent: Agent, target: Target, action: str, reason: str = "", order_id: str | None = None) -> wire.LockStatus:
    environment = dict(target.service.environment)
    request = wire.LockRequest(target.service.name, target.state_root, action, operator_name(), reason, order_id, environment)
    return agent.ask("lock", request, wire.LockStatus, LOCK_SECONDS)


def status(target: Target, connect: Connect = connect) -> wire.LockStatus:
    """Who keeps changes of the service away.

    Raises:
        UnreachableError: the service's place can't be reached, trusted or used.
    """
    with connect(target) as agent:
        return lock_status(agent, target)


def acquire(
    target: Target, reason: str, observer: Observer, patience: Patience | None = None, connect: Connect = connect
) -> wire.LockStatus:
    """Lock the service for whoever types, until :func:`release`: nobody's order is taken meanwhile, theirs neither.

    Raises:
        LockedError: a person has it, or an order is at work, for longer than was to be waited.
        UnfinishedOrderError: an order was cut off half-way; it comes to its end first.
    """
    with connect(target) as agent:
        # Who else uses the GPUs, or sets knobs, is nothing to a lock.
        wait_for_orders(
            target,
            lambda: dataclasses.replace(lock_status(agent, target), gpus=[], preparing=None),
            observer,
            patience or Patience(),
        )
        return _ask(agent, target, wire.LockAction.ACQUIRE, reason)


def release(target: Target, connect: Connect = connect) -> wire.LockStatus:
    """End a person's lock on the service, whoever's it is; the answer names it."""
    with connect(target) as agent:
        return _ask(agent, target, wire.LockAction.RELEASE)


def survey_when_free(
    agent: Agent, target: Target, observer: Observer, patience: Patience, *, looks_only: bool = False
) -> wire.SurveyReport:
    """Survey the service's place as soon as nobody keeps a change of it away.

    Args:
        looks_only: nothing is going to be changed, so that a person's lock is only told.

    Raises:
        LockedError: a person has locked the service, or an order is at work for longer than was to be waited.
    """
    while True:
        found = look.survey(agent, target)
        if found.lock is not None and looks_only:
            observer.warn(f"{locked_by(target.service.name, found.lock)}; it would be refused")
            return found
        seen = [wire.LockStatus(found.lock, found.order, found.gpu_locks)]
        if not wait_for_orders(target, lambda: seen.pop() if seen else lock_status(agent, target), observer, patience):  # noqa: B023
            return found


def wait_for_orders(target: Target, ask: Callable[[], wire.LockStatus], observer: Observer, patience: Patience) -> bool:
    """Return when no order, and no preparation of the machine, keeps a change away; whether that had to be waited for.

    A person's lock is not waited for: nobody knows when it ends.

    Raises:
        LockedError: a person has locked the service, or it takes longer than was to be waited.
    """
    told: tuple[str, float] | None = None
    while True:
        found = ask()
        refuse_when_locked(target, found.person, waiting=patience.seconds > 0)
        reason = _busy(target, found)
        if reason is None:
            return told is not None
        if not patience.left:
            raise _still_busy(target, found, reason, waited=patience.seconds)
        if told is None or told[0] != _subject(found) or patience.clock() - told[1] >= TOLD_EVERY:
            observer.note(f"waiting for up to {patience.left:.0f} s: {reason}")
            told = (_subject(found), patience.clock())
        patience.sleep(min(POLL_SECONDS, patience.left))


def persistently(seconds: float, observer: Observer, attempt: Callable[[Patience], T]) -> T:
    """Make an attempt, and again when its order was kept away only as it was handed in: others may have waited for the same moment.

    Raises:
        LockedError: somebody keeps it away when `seconds` are over.
    """
    patience = Patience(seconds)
    while True:
        try:
            return attempt(patience)
        except (TurnedAwayError, UnfinishedOrderError) as error:
            if not patience.left:
                raise
            observer.note(f"{error.message}; looking again")


def refuse_when_locked(target: Target, held: wire.PersonLock | None, *, waiting: bool = False) -> None:
    """Raise LockedError while a person has locked the service, whoever it is."""
    if held is None:
        return
    more = ["a person's lock is not waited for: only a release ends it"] if waiting else []
    raise LockedError(
        locked_by(target.service.name, held),
        evidence=more,
        next_step=f"ask them; whoever may, ends it: {target.command('lock.release')}",
    )


def _busy(target: Target, found: wire.LockStatus) -> str | None:
    """Who is at work, as a sentence."""
    if found.order is not None and found.order.live:
        return at_work(found.order)
    if found.gpus:
        return gpu_held_by(found.gpus[0])
    if found.preparing is not None:
        return f"the knobs of {target.place} are being changed {held_by(found.preparing)}"
    return None


def _subject(found: wire.LockStatus) -> str:
    order = found.order
    return f"{order.order_id} {order.state}" if order is not None and order.live else str(found.gpus or found.preparing)


def _still_busy(target: Target, found: wire.LockStatus, reason: str, *, waited: float) -> LockedError:
    watches = found.order is not None and found.order.live
    return LockedError(
        reason,
        evidence=[f"waited for {waited:g} s"] if waited else [],
        next_step=f"{target.command('attach' if watches else 'lock.status')}   # or give --wait SECONDS",
    )
