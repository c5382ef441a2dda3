"""What the state machine asks of the world, and what it is told: the seam between its decisions and their effects.

:mod:`box_steps` takes these steps on a real box; a test takes them without a server.
"""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Protocol

from orchestrator.agent import wire

CAPACITY_CHECK = "kv capacity"
"""The verdict of :meth:`Steps.verify` on the room for the KV cache."""

Report = Callable[[str, str], None]
"""Takes a phase and a detail, for the screen."""


class LaunchFailed(Exception):  # noqa: N818
    """A launch did not become a serving server."""

    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


@dataclass(frozen=True)
class Previous:
    """How the old server is brought back: by its unit when somebody's unit runs it, else by this launch."""

    launch: wire.Launch
    unit: Optional[str] = None


@dataclass(frozen=True)
class Observed:
    """What was seen of a serving server, to compare the next one with."""

    capacity: Optional[int] = None
    """max_total_num_tokens."""
    facts: List[wire.Fact] = field(default_factory=list)
    remark: Optional[str] = None


@dataclass(frozen=True)
class Stopped:
    """How a stop went. `last_answer` is the monotonic time of the old server's last good answer, None if none was seen."""

    summary: str
    last_answer: Optional[float] = None
    lost_requests: Optional[int] = None
    evidence: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ready:
    """A launch proven ready. `first_answer` is the monotonic time of its first good generation."""

    first_answer: float
    observed: Observed


class Steps(Protocol):
    """What the machine does to the world. Every method has its own deadline."""

    def find(self) -> Optional[wire.ServerInfo]:
        """The server on the service's port, or the one of ours that is still loading."""

    def capture(self) -> Previous:
        """How the server that was found is brought back; kept on the box before anything is touched."""

    def observe(self, previous: Previous) -> Observed:
        """Look at the serving old server, for :meth:`verify`; never raises for what the server does."""

    def measure(self, launch: wire.Launch, report: Report) -> wire.DecodeTiming:
        """A bounded decode timing; never raises: a timing that can't be had is skipped with its reason."""

    def stop(self, report: Report, enter: Callable[[str, str], None]) -> Stopped:
        """Stop the server that was found. `enter` is called with STOPPING when draining has ended."""

    def clean(self, report: Report) -> List[wire.Verdict]:
        """Wait until nothing of the stopped server is left. A REFUSE verdict means: don't start on top of it."""

    def leftovers(self) -> List[str]:
        """Processes of earlier launches of this service whose main process has gone, for a person to read."""

    def end_leftovers(self, report: Report) -> List[wire.Verdict]:
        """End what :meth:`leftovers` named and check that nothing is left."""

    def start(self, launch: wire.Launch) -> Dict[str, Any]:
        """Start a launch detached; the answer is for the journal (unit or session, limits read back)."""

    def start_unit(self, unit: str) -> None:
        """Start somebody's systemd unit again."""

    def wait_ready(self, previous: Previous, report: Report, enter: Callable[[str, str], None]) -> Ready:
        """Prove the launch (or the unit) ready. `enter` is called with ANSWERING at its first good answer.

        Raises:
            LaunchFailed: it died, hung, ran out of time, or another process holds its port.
        """

    def verify(self, launch: wire.Launch, old: Observed, new: Observed, report: Report) -> List[wire.Verdict]:
        """Compare what the new server says with what the old one said when it was observed."""

    def stop_launch(self, launch: wire.Launch, report: Report) -> List[wire.Verdict]:
        """End whatever is left of a failed launch, at once, and check that nothing is left."""

    def still_serves(self, launch: wire.Launch, report: Report) -> None:
        """Prove a launch that was ready once more, in short.

        Raises:
            LaunchFailed: it has died or does not answer any more.
        """

    def mark_verified(self, launch: wire.Launch, observed: Observed) -> None:
        """Make this launch the one to roll back to."""

    def new_launch_id(self) -> str:
        """An id for the launch that brings the old server back."""


class Recorder(Protocol):
    """The journal, as the machine needs it."""

    def state(self, state: str, reason: str, data: Optional[Dict[str, Any]] = None) -> Any: ...

    def progress(self, phase: str, detail: str = "") -> None: ...
