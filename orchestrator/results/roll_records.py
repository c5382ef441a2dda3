"""The lines of a roll's journal: one before each thing that is done to a replica, and one as it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from orchestrator.results.sweep_records import Allowed

SCHEMA = "orchestrator.roll.journal/1"


class By:
    """Who takes a replica out of the router and has it in again."""

    SUPERVISOR = "supervisor"
    """The agent that carries the order out, on the box: it goes on whatever becomes of the operator's end."""
    OPERATOR = "operator"
    """This program, here."""


@dataclass(frozen=True)
class RolledReplica:
    """A replica as the roll knows it. `by` is a value of :class:`By`."""

    service: str
    host: str
    worker: str
    by: str = By.OPERATOR


@dataclass(frozen=True)
class Counted:
    """The router's counters at a moment; see :class:`orchestrator.agent.wire_router.Counters`."""

    requests: int
    answered: int
    failed: int
    retries: int
    exhausted: int
    upstream_errors: int


@dataclass(frozen=True)
class Begun:
    """What is rolled, in this order. `before` is None where the router has no counters that can be read.

    `ids` are those that the router had for its replicas' workers, by url: a restart gives others. `token` is the one of its lock.
    """

    router: str
    backend: str
    replicas: list[RolledReplica]
    operator: str
    before: Counted | None = None
    ids: dict[str, str] = field(default_factory=dict)
    allowed: Allowed = field(default_factory=Allowed)
    token: str = ""
    time: float = 0.0
    schema: str = SCHEMA
    kind: Literal["begun"] = "begun"


@dataclass(frozen=True)
class Resumed:
    """Somebody has taken it up again."""

    operator: str
    time: float = 0.0
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True)
class Removing:
    """A replica is about to be taken out of the router, from here."""

    service: str
    time: float = 0.0
    kind: Literal["removing"] = "removing"


@dataclass(frozen=True)
class Ordered:
    """An order is about to be handed in. `run` is its run folder's name."""

    service: str
    order_id: str
    run: str
    time: float = 0.0
    kind: Literal["ordered"] = "ordered"


@dataclass(frozen=True)
class Dropped:
    """The box never took that order, or nothing came of it."""

    service: str
    time: float = 0.0
    kind: Literal["dropped"] = "dropped"


@dataclass(frozen=True)
class Changed:
    """An order has ended; see :class:`orchestrator.agent.wire.OrderResult`. `category` is the class of its launch's failure."""

    service: str
    state: str
    summary: str
    category: str | None = None
    launch_id: str | None = None
    dark_seconds: float | None = None
    lost_requests: int | None = None
    run: str = ""
    time: float = 0.0
    kind: Literal["changed"] = "changed"


@dataclass(frozen=True)
class Refused:
    """A replica's change was refused before anything was touched, so the roll stops."""

    service: str
    reason: str
    evidence: list[str] = field(default_factory=list)
    time: float = 0.0
    kind: Literal["refused"] = "refused"


@dataclass(frozen=True)
class PutBack:
    """A replica that was out is in again, and nothing of it was changed."""

    service: str
    worker_id: str | None = None
    time: float = 0.0
    kind: Literal["put_back"] = "put_back"


@dataclass(frozen=True)
class Returned:
    """A replica that was changed is in again. `requests` have reached it since; 0 where none came at all, `remark` says so."""

    service: str
    requests: int | None = None
    remark: str = ""
    seconds: float = 0.0
    worker_id: str | None = None
    time: float = 0.0
    kind: Literal["returned"] = "returned"


@dataclass(frozen=True)
class Skipped:
    """A replica serves as it should already."""

    service: str
    time: float = 0.0
    kind: Literal["skipped"] = "skipped"


@dataclass(frozen=True)
class Finished:
    """The roll is over: all replicas are through, or it has stopped at one. `after` as :attr:`Begun.before`.

    `restarted`: the router was restarted meanwhile, so that its counters began anew.
    """

    exit_code: int
    said: str
    after: Counted | None = None
    restarted: bool = False
    time: float = 0.0
    kind: Literal["finished"] = "finished"


Record = Begun | Resumed | Removing | Ordered | Dropped | Changed | Refused | PutBack | Returned | Skipped | Finished

RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])
