"""The lines of a sweep's journal: one as each thing ends, and one before each order, so that its end can be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

SCHEMA = "orchestrator.sweep.journal/1"


@dataclass(frozen=True)
class Seen:
    """Which server serves: by its launch, and where it is not ours by its process."""

    launch_id: str | None
    pid: int | None = None
    start_time: int | None = None

    @property
    def is_known(self) -> bool:
        return self.launch_id is not None or self.pid is not None

    def is_same(self, other: Seen) -> bool:
        """Whether both are one launch. One that came back after a crash has another process."""
        if self.launch_id is not None or other.launch_id is not None:
            return self.launch_id == other.launch_id
        return self.pid is not None and (self.pid, self.start_time) == (other.pid, other.start_time)


@dataclass(frozen=True)
class Allowed:
    """What the operator said about the changes; see :class:`orchestrator.flows.order.Options`."""

    accept_drift: bool = False
    force: bool = False
    sequential: bool = False
    grace: float | None = None
    wait: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Begun:
    """What is tried, `design` as :class:`orchestrator.results.sweep.Design`, and what served before.

    Attributes:
        start_launch: the launch of the box's own records by which that comes back; None: there is none.
    """

    design: dict[str, Any]
    host: str
    place: str
    service: str
    operator: str
    seen: Seen
    start_launch: str | None = None
    allowed: Allowed = field(default_factory=Allowed)
    time: float = 0.0
    schema: str = SCHEMA
    kind: Literal["begun"] = "begun"


@dataclass(frozen=True)
class Resumed:
    """Somebody has taken it up again, with this server there."""

    operator: str
    seen: Seen
    time: float = 0.0
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True)
class Ordered:
    """An order is about to be handed in. `point` None: it brings back what served at the beginning. `run` is its run folder's name."""

    step: int
    point: int | None
    order_id: str
    run: str
    time: float = 0.0
    kind: Literal["ordered"] = "ordered"


@dataclass(frozen=True)
class Dropped:
    """The box never took that order."""

    step: int
    time: float = 0.0
    kind: Literal["dropped"] = "dropped"


@dataclass(frozen=True)
class Changed:
    """An order has ended; see :class:`orchestrator.agent.wire.OrderResult`. `category` is the class of its launch's failure."""

    step: int
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
class Skipped:
    """Refused before anything was touched."""

    step: int
    reason: str
    evidence: list[str] = field(default_factory=list)
    run: str = ""
    time: float = 0.0
    kind: Literal["skipped"] = "skipped"


@dataclass(frozen=True)
class Timed:
    """A launch was timed, in the run folder `run`; empty where it could not be, and `invalid` says why. It is believed without an entry."""

    step: int
    run: str = ""
    invalid: list[str] = field(default_factory=list)
    time: float = 0.0
    kind: Literal["timed"] = "timed"


@dataclass(frozen=True)
class Finished:
    """All was tried. `best` is the best point's number, None where no timing is to be believed."""

    exit_code: int
    best: int | None = None
    said: str = ""
    time: float = 0.0
    kind: Literal["finished"] = "finished"


Record = Begun | Resumed | Ordered | Dropped | Changed | Skipped | Timed | Finished

RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])
