"""What a plan says of a start beside the old server, and of the time without service. Part of :mod:`wire`."""

from typing import List, Optional

from orchestrator.agent.codec import field, record
from orchestrator.agent.wire_base import Verdict


class Staging:
    """The values of :attr:`Policy.staging`."""

    AUTO = "auto"
    """Where SGLang has a gate and there is room beside the old server."""
    NEVER = "never"


@record(frozen=True)
class DarkEstimate:
    """How long a switch is expected to be dark, seconds: the middle of what earlier ones took, with their extremes.

    `basis` says in words what it rests on, `switches` on how many.
    """

    seconds: float
    shortest: float
    longest: float
    basis: str
    switches: int = 0


@record(frozen=True)
class UsualPhase:
    """How long a phase of a load took before, seconds: the middle and the longest of so many `loads`."""

    seconds: float
    longest: float
    loads: int


@record(frozen=True)
class StagingPlan:
    """Whether the next server starts beside the old one, up to its gate, and why or why not.

    `verdicts` tell of the room for it, of who can reach the gate, of the checkpoint's files and of the caches of compiled kernels.
    `estimate` is None where no earlier switch tells anything.
    """

    staged: bool
    reason: str
    verdicts: List[Verdict] = field(default_factory=list)
    estimate: Optional[DarkEstimate] = None
    around: Optional[float] = None
    """Of earlier switches that a router held requests through: the longest that it had no worker beyond the dark time, seconds."""
