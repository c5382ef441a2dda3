"""An order's part in a change of a server over several nodes. Part of :mod:`wire`."""

from typing import List

from orchestrator.agent.codec import field, record


@record(frozen=True)
class RankGroup:
    """Which node's part of a server over several nodes an order is about, and where the supervisors of all its nodes meet.

    Each node has an order of its own, all of one id. The supervisor of rank 0 listens on `port` of `address`; the others, which reach
    that address anyway since SGLang's ranks meet on it, tell it where they stand and hear where everybody else does.
    """

    rank: int
    """SGLang's --node-rank."""
    count: int
    """SGLang's --nnodes."""
    address: str
    port: int
    token: str
    """Shared by the orders of one id and by nobody else: what is told without it is not believed."""


@record(frozen=True)
class RankStanding:
    """Where a node's supervisor stands. What it has reached it never takes back, so of two the further one is true."""

    rank: int
    point: int = 0
    """How far it is (:class:`ranks.Point`)."""
    failure: str = ""
    """Why it has turned back, or refused; empty while it goes forward."""
    down: bool = False
    """It has given up: nothing serves there, and nothing will."""
    left: bool = False
    """It has heard all that it needs, and says no more."""


@record(frozen=True)
class KnownRanks:
    """What a supervisor that takes over knows of the other nodes: what was heard of them, and how those ended that say nothing any more."""

    standings: List[RankStanding] = field(default_factory=list)
