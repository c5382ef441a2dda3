"""One roll at a time behind a router; see :mod:`orchestrator.agent.roll_lock`.

The lock lies with the replica whose worker's url sorts first: whatever inventory says that these are the replicas, it is the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agent.wire_router import RollLock, RollLockAction, RollLockRequest, RollLockStatus, plain_url
from orchestrator.agent.wire_words import utc
from orchestrator.errors import LockedError
from orchestrator.results.roll_journal import is_cut_off
from orchestrator.results.runs import operator_name

if TYPE_CHECKING:
    from orchestrator.flows.roll_plan import Fleet

SECONDS = 60.0
"""Bounds one answer."""


class RouterLock:
    """The lock of the roll behind a fleet's router. Each call raises UnreachableError where its place can't be asked."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        first = min(fleet.router.replicas, key=lambda replica: plain_url(replica.worker))
        self._target = fleet.target(first.service)

    def standing(self) -> RollLock | None:
        """The lock that stands, whoever's."""
        return self._ask(RollLockAction.STATUS).held

    def refuse_others(self, token: str = "") -> RollLock | None:
        """Return a lock of another roll than `token`'s that was begun here and that nothing carries on any more.

        Raises:
            LockedError: a roll of somebody else's stands, or one of this machine that is at work.
        """
        standing = self.standing()
        if standing is None or standing.token == token:
            return None
        if is_cut_off(standing.roll, standing.token):
            return standing
        raise self._locked(standing)

    def take(self, roll: str, token: str) -> None:
        """Keep other rolls away until :meth:`release`, also when this process ends; a roll takes it again when it is taken up.

        Raises:
            LockedError: see :meth:`refuse_others`.
        """
        left = self.refuse_others(token)
        held = self._ask(RollLockAction.TAKE, roll, token, None if left is None else left.token).held
        if held is not None and held.token != token:
            raise self._locked(held)

    def release(self, token: str) -> None:
        """Let other rolls begin. One that is not `token`'s stays."""
        self._ask(RollLockAction.RELEASE, token=token)

    def _ask(self, action: str, roll: str = "", token: str = "", instead_of: str | None = None) -> RollLockStatus:
        name = self._fleet.router.name
        request = RollLockRequest(
            self._target.service.name, self._target.state_root, action, name, roll, token, operator_name(), instead_of
        )
        with self._fleet.connect(self._target) as agent:
            return agent.ask("rolling", request, RollLockStatus, SECONDS)

    def _locked(self, standing: RollLock) -> LockedError:
        return LockedError(
            f"router {self._fleet.router.name} is rolled already: {rolled_by(standing)}",
            evidence=["two rolls at once would have two replicas out at the same time"],
            next_step=f"wait for it, or where it was cut off: {self._fleet.command(f'--resume {standing.roll}')}   # there; "
            f"where it is lost for good: {self._fleet.command('--repair --force')}",
        )


def rolled_by(lock: RollLock) -> str:
    """Whose roll it is, and since when."""
    return f"{lock.roll} by {lock.operator}, since {utc(lock.since)}"
