"""What the state machine asks of the world, and what it is told: the seam between its decisions and their effects.

:mod:`box_steps` takes these steps on a real box; a test takes them without a server.

Every wait in them has a bound, on the steady clock (:mod:`clock`). Those that a service sets are in :class:`wire.Policy`:

==============  ======================================================================================================
find, recall    reads of /proc and of the state folder: no wait
capture         the service's own parser and YAML reader: 60 s each
observe         /health 22 s, ``verify``, /server_info 10 s
measure         ``measure_seconds``
remember        nvidia-smi, :data:`gpu.SECONDS` a call
stop            systemctl 30 s a call, ``drain``, ``grace``, ``clean`` after SIGKILL; 1 s for each endpoint of each look at the load
clean           systemctl 30 s, then ``clean`` for processes, port and GPU memory in all
warm            the files' size by ``warm_rate``, 1800 s at most; 20 s for a disk that hangs
room            nvidia-smi, :data:`gpu.SECONDS` a call
stage           as start
wait_gate       ``stage_total``, or a no-progress and a total limit for each phase of the load up to the gate
still_staged    2 s
old_lives       a read of /proc
activate        10 s
unstage         ``clean``
start           YAML 60 s, systemd-run or the waiter 30 s a call
start_unit      systemctl 30 s a call, three calls
is_started      2 s, or systemctl 30 s
wait_ready      a no-progress and a total limit for each phase of the load, and one for the whole (:mod:`load_limits`)
verify          ``verify``; 5 s for each regular expression; 60 s for a second proof where the server did not score
stop_launch     1 s, ``clean``, and ``clean`` again
still_serves    60 s
leave, join     of a router (:mod:`router_steps`): 10 s for the others, 30 s for the removal, ``drain``; then ``join``
==============  ======================================================================================================

A child that outlives SIGKILL (state D) is left behind half a second later (:mod:`command`). A disk that hangs in fsync is the one thing
that is waited for without a bound: what is done must be in the journal.
"""

from typing import Any, Callable, Dict, List, Optional, Protocol

from orchestrator.agent import wire
from orchestrator.agent.codec import field, record

CAPACITY_CHECK = "kv capacity"
"""The verdict of :meth:`Steps.verify` on the room for the KV cache."""

Report = Callable[[str, str], None]
"""Takes a phase and a detail, for the screen."""


class LaunchFailed(Exception):  # noqa: N818
    """A launch did not become a serving server."""

    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


@record(frozen=True)
class Previous:
    """How the old server is brought back: by its unit when somebody's unit runs it, else by this launch."""

    launch: wire.Launch
    unit: Optional[str] = None


@record(frozen=True)
class Observed:
    """What was seen of a serving server, to compare the next one with."""

    capacity: Optional[int] = None
    """max_total_num_tokens."""
    facts: List[wire.Fact] = field(default_factory=list)
    remark: Optional[str] = None


@record(frozen=True)
class Recalled:
    """What was kept of the old server before it was touched (:meth:`Steps.remember`)."""

    previous: Previous
    observed: Observed = field(default_factory=Observed)
    baseline: Optional[wire.DecodeTiming] = None


@record(frozen=True)
class Stopped:
    """How a stop went.

    `last_answer` is the monotonic time of the old server's last good answer, None if none was seen, and `answered_at` the same as Unix
    time, for whoever goes on in another boot than `boot`. `lost_requests` None: the server did not say.
    """

    summary: str
    last_answer: Optional[float] = None
    lost_requests: Optional[int] = None
    evidence: List[str] = field(default_factory=list)
    answered_at: Optional[float] = None
    boot: Optional[str] = None


@record(frozen=True)
class Staged:
    """A launch that waits at its gate. `seconds` is how long it took to get there.

    `footprint` is the GPU memory that it holds there, MiB by UUID; empty where there is no GPU or the driver does not tell.
    `phases` is how long each phase took on the way.
    """

    launch: wire.Launch
    seconds: float
    footprint: Dict[str, int] = field(default_factory=dict)
    phases: Dict[str, float] = field(default_factory=dict)


@record(frozen=True)
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

    def remember(self, observed: Observed, baseline: Optional[wire.DecodeTiming]) -> None:
        """Keep on the disk all that is known of the old server and can't be read again once it is being stopped, or stands beside another.

        Raises:
            OSError: there is no room for it. Nothing has been touched.
        """

    def recall(self) -> Optional[Recalled]:
        """What :meth:`remember` (or, before that, :meth:`capture`) kept, by a supervisor that takes over from one that was killed."""

    def stop(self, report: Report, enter: Callable[[str, str], None]) -> Stopped:
        """Stop the server that was found, or what is left of the one that :meth:`recall` knows, by a stop that was cut off.

        Also of one that has died by itself: what would start it again is switched off, and what has started it again meanwhile is ended.
        `enter` is called with STOPPING when draining has ended.
        """

    def clean(self, report: Report) -> List[wire.Verdict]:
        """Wait until nothing of the stopped server is left. A REFUSE verdict means: don't start on top of it."""

    def leftovers(self) -> List[str]:
        """Processes of earlier launches of this service whose main process has gone, for a person to read."""

    def end_leftovers(self, report: Report) -> List[wire.Verdict]:
        """End what :meth:`leftovers` named and check that nothing is left."""

    def warm(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> List[wire.Verdict]:
        """Bring the files that the launch will load into the page cache as far as memory allows; raises only what `pulse` raises."""

    def room(self, launch: wire.Launch) -> wire.Verdict:
        """Whether the launch can be staged beside what runs now; PASS, or why it is started after the stop instead. Never raises."""

    def with_gate(self, launch: wire.Launch) -> wire.Launch:
        """The launch with a gate on a port that was free a moment ago, for the intent in the journal."""

    def stage(self, launch: wire.Launch) -> Dict[str, Any]:
        """Start a launch that has a gate, beside the old server; the answer is for the journal, as :meth:`start`'s.

        Its ``gate`` is the verdict on who can reach the gate.

        What brings the old server back after a crash stays as it is.
        """

    def wait_gate(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> Staged:
        """Prove that the launch waits at its gate: the gate's socket belongs to a process of it. Also for one staged before a resume.

        Raises:
            LaunchFailed: it died, hung, ran out of time, somebody else holds the port or has activated it; or what `pulse` raises.
        """

    def still_staged(self, launch: wire.Launch) -> None:
        """Look once more before the old server is stopped.

        Raises:
            LaunchFailed: the staged one has died, or somebody else has activated it.
        """

    def old_lives(self) -> bool:
        """Whether the main process of the server that was found (or recalled) still lives; cheap."""

    def activate(self, launch: wire.Launch, report: Report) -> None:
        """Tell the staged launch to go on. One that was activated already, by a supervisor that was killed, is as good.

        Raises:
            LaunchFailed: it has died, or does not take it.
        """

    def unstage(self, launch: wire.Launch, report: Report) -> List[wire.Verdict]:
        """End whatever there is of a staged launch, at once, and close its gate; nothing of the old server is touched."""

    def start(self, launch: wire.Launch) -> Dict[str, Any]:
        """Start a launch detached; the answer is for the journal (unit or session, limits read back)."""

    def start_unit(self, unit: str) -> None:
        """Start somebody's systemd unit again."""

    def is_started(self, target: Previous) -> bool:
        """Whether a start that was intended has happened: a process of it lives, or it has left an exit status."""

    def wait_ready(self, previous: Previous, report: Report, enter: Callable[[str, str], None], pulse: Callable[[], None]) -> Ready:
        """Prove the launch (or the unit) ready. `enter` is called with ANSWERING at its first good answer, `pulse` all the while.

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

    def come_back(self, launch: wire.Launch) -> List[wire.Verdict]:
        """Have this launch, which was just verified, come back by itself after a crash and a restart of the machine, where that is wanted.

        From :meth:`stop` until then nothing does. Verdicts warn of what stands in its way.
        """

    def usual(self, launch: wire.Launch) -> Dict[str, wire.UsualPhase]:
        """How long the phases of this launch's load should take, by earlier ones that were like it; empty where there were none."""

    def new_launch_id(self) -> str:
        """An id for the launch that brings the old server back."""


class Recorder(Protocol):
    """The journal, as the machine needs it."""

    def reserve(self) -> None: ...

    def state(self, state: str, reason: str, data: Optional[Dict[str, Any]] = None) -> Any: ...

    def progress(self, phase: str, detail: str = "") -> None: ...
