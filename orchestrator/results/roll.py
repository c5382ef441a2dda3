"""Where a roll stands by its journal, what comes next, and what its clients had of it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.agent import wire
from orchestrator.agent.wire_router import Counters, RouterView
from orchestrator.errors import RefusedError, RolledBackError, ServiceDownError
from orchestrator.results.roll_records import (
    Begun,
    By,
    Changed,
    Counted,
    Dropped,
    Finished,
    Ordered,
    PutBack,
    Record,
    Refused,
    Removing,
    Returned,
    RolledReplica,
    Skipped,
)

_STOPS = {
    wire.State.REFUSED: RefusedError.exit_code,
    wire.State.RESTORED: RolledBackError.exit_code,
    wire.State.DOWN: ServiceDownError.exit_code,
}
"""How a roll ends that has stopped at a replica whose order ended so."""


@dataclass(frozen=True)
class Turn:
    """A replica that something is being done with. `removed`: it was taken out of the router from here, or was about to be."""

    service: str
    removed: bool = False
    order: Ordered | None = None
    changed: Changed | None = None


@dataclass(frozen=True)
class Stop:
    """Why no further replica is begun."""

    service: str
    exit_code: int
    why: str


@dataclass(frozen=True)
class Standing:
    """Where a roll stands.

    Attributes:
        done: the replicas that are through, each with how; one that was restored is not.
        returned: how each that was changed, or restored, came in again.
        ids: the router's for each worker since it came in last, by url.
        changes: how each order has ended.
        turn: the replica that is under way.
    """

    begun: Begun
    done: dict[str, Returned | Skipped] = field(default_factory=dict)
    returned: dict[str, Returned] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    changes: list[Changed] = field(default_factory=list)
    turn: Turn | None = None
    stop: Stop | None = None
    finished: Finished | None = None

    @property
    def pending(self) -> list[RolledReplica]:
        """The replicas that are still to come, the one that is under way included."""
        return [replica for replica in self.begun.replicas if replica.service not in self.done]

    @property
    def to_take(self) -> list[RolledReplica]:
        """The replicas that nothing was begun with and that are to be changed: none once it has stopped."""
        under_way = None if self.turn is None else self.turn.service
        return [] if self.stop is not None else [replica for replica in self.pending if replica.service != under_way]

    @property
    def exit_code(self) -> int:
        return 0 if self.stop is None else self.stop.exit_code

    def replica(self, service: str) -> RolledReplica:
        """The replica of a service."""
        return next(replica for replica in self.begun.replicas if replica.service == service)

    def step(self, service: str) -> str:
        """Its place among all, for the screen."""
        services = [replica.service for replica in self.begun.replicas]
        return f"{services.index(service) + 1}/{len(services)}"


def stand(records: Sequence[Record]) -> Standing:
    """Where a roll stands by its journal.

    Raises:
        ValueError: its first record does not say what is rolled.
    """
    if not records or not isinstance(records[0], Begun):
        raise ValueError("its first record does not say what is rolled")
    standing = Standing(records[0], ids=dict(records[0].ids))
    for record in records[1:]:
        standing = _after(standing, record)
    return standing


def _after(before: Standing, record: Record) -> Standing:
    if isinstance(record, Removing):
        return dataclasses.replace(before, turn=Turn(record.service, removed=True))
    if isinstance(record, Ordered):
        removed = before.turn is not None and before.turn.removed
        return dataclasses.replace(before, turn=Turn(record.service, removed, record))
    if isinstance(record, Dropped | Refused):
        return _nothing_changed(before, record)
    if isinstance(record, Changed):
        return _changed(before, record)
    if isinstance(record, PutBack):
        return dataclasses.replace(before, turn=None, ids=_ids(before, record))
    if isinstance(record, Returned):
        done = before.done if before.stop is not None else {**before.done, record.service: record}
        return dataclasses.replace(
            before, turn=None, done=done, returned={**before.returned, record.service: record}, ids=_ids(before, record)
        )
    if isinstance(record, Skipped):
        return dataclasses.replace(before, done={**before.done, record.service: record})
    return dataclasses.replace(before, finished=record) if isinstance(record, Finished) else before


def _ids(before: Standing, record: PutBack | Returned) -> dict[str, str]:
    url = before.replica(record.service).worker
    kept = {known: worker_id for known, worker_id in before.ids.items() if known != url}
    return kept if record.worker_id is None else {**kept, url: record.worker_id}


def _nothing_changed(before: Standing, record: Dropped | Refused) -> Standing:
    """What was taken out is still out."""
    turn = Turn(record.service, removed=True) if _may_be_out(before, record.service) else None
    stop = Stop(record.service, RefusedError.exit_code, record.reason) if isinstance(record, Refused) else before.stop
    return dataclasses.replace(before, turn=turn, stop=stop)


def _may_be_out(before: Standing, service: str) -> bool:
    """Whether a replica of which nothing was changed may be out of the router: taken out from here, or by an order that came to nothing."""
    turn = before.turn
    return turn is not None and (turn.removed or (turn.order is not None and before.replica(service).by == By.SUPERVISOR))


def _changed(before: Standing, end: Changed) -> Standing:
    removed = before.turn is not None and before.turn.removed
    code = _STOPS.get(end.state)
    stop = Stop(end.service, code, end.summary) if code is not None else before.stop
    turn: Turn | None = Turn(end.service, removed, changed=end)
    if end.state == wire.State.DOWN:
        turn = None
    elif end.state == wire.State.REFUSED:
        turn = Turn(end.service, removed=True) if _may_be_out(before, end.service) else None
    return dataclasses.replace(before, changes=[*before.changes, end], turn=turn, stop=stop)


@dataclass(frozen=True)
class Look:
    """The end of this order has to be asked for."""

    order: Ordered


@dataclass(frozen=True)
class Return:
    """This replica was changed and serves, and is to be in the router."""

    service: str


@dataclass(frozen=True)
class PutIn:
    """This replica is out of the router, or may be, and nothing of it was changed."""

    service: str


@dataclass(frozen=True)
class Take:
    """This replica is next."""

    service: str


@dataclass(frozen=True)
class Finish:
    """Nothing is left to be done."""


Action = Look | Return | PutIn | Take | Finish


def next_action(standing: Standing) -> Action | None:
    """What comes next; None once it has finished."""
    if standing.finished is not None:
        return None
    turn = standing.turn
    if turn is not None and turn.order is not None:
        return Look(turn.order)
    if turn is not None and turn.changed is not None:
        return Return(turn.service)
    if turn is not None and turn.removed:
        return PutIn(turn.service)
    if standing.stop is not None or not standing.pending:
        return Finish()
    return Take(standing.pending[0].service)


@dataclass(frozen=True)
class Growth:
    """What the router counted while a roll went on; each field as in :class:`Counted`."""

    requests: int
    answered: int
    failed: int
    retries: int
    exhausted: int
    upstream_errors: int

    @property
    def open(self) -> int:
        """Requests that came and of which the router tells no end: they still ran, or their clients did not wait for the answer."""
        return self.requests - self.answered - self.failed

    @property
    def clean(self) -> bool:
        """Whether no client had anything of it: nothing was tried twice, failed, or was refused for want of a worker."""
        return not (self.failed or self.retries or self.exhausted or self.upstream_errors)


def counted(counters: Counters | None) -> Counted | None:
    """The router's counters as the journal keeps them."""
    if counters is None:
        return None
    return Counted(**{item.name: getattr(counters, item.name) for item in dataclasses.fields(Counted)})


def began_anew(before: Counted | None, after: Counted | None) -> bool:
    """Whether the router must have been restarted between the two: a counter never goes back."""
    if before is None or after is None:
        return False
    return any(getattr(after, item.name) < getattr(before, item.name) for item in dataclasses.fields(Counted))


def growth(before: Counted | None, after: Counted | None) -> Growth | None:
    """What was counted between the two; None where nobody knows."""
    if before is None or after is None or began_anew(before, after):
        return None
    names = [item.name for item in dataclasses.fields(Counted)]
    return Growth(**{name: getattr(after, name) - getattr(before, name) for name in names})


def ids_of(view: RouterView, workers: Sequence[str]) -> dict[str, str]:
    """The router's ids of these workers, by url; those that it does not have are left out."""
    found = {url: view.worker(url) for url in workers}
    return {url: worker.id for url, worker in found.items() if worker is not None}


def was_restarted(standing: Standing, view: RouterView, after: Counted | None) -> bool:
    """Whether the router was restarted since the roll began, or since a replica came in: it makes other ids then, and counts anew."""
    now = ids_of(view, list(standing.ids))
    return began_anew(standing.begun.before, after) or any(now[url] != standing.ids[url] for url in now)


def clients(standing: Standing) -> Growth | None:
    """What the clients had of a roll that has finished; None where nobody knows."""
    finished = standing.finished
    return None if finished is None or finished.restarted else growth(standing.begun.before, finished.after)


def by_words(by: str) -> str:
    """Who takes it out and has it in, for a plan."""
    return "by its supervisor, on the box" if by == By.SUPERVISOR else "from here"
