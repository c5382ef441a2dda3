"""What crosses about the launches that a box remembers: the boot unit, the list to roll back to, and a server that is taken over."""

from typing import Dict, List, Optional

from orchestrator.agent.codec import field, record
from orchestrator.agent.wire import BootUnit, DecodeTiming, Launch, ProcessId, ServerInfo, Verdict


class BootAction:
    """The values of :attr:`BootRequest.action`."""

    SHOW = "show"
    ON = "on"
    """Write the unit from the launch that serves."""
    OFF = "off"
    """Remove it: the next crash or restart of the machine is the end of the server."""


@record(frozen=True)
class BootRequest:
    """About what starts a service's server again. `port` is the service's."""

    service: str
    state_root: str
    port: int
    action: str = BootAction.SHOW


@record(frozen=True)
class BootReport:
    """`unit` is None where nothing starts the server again; `changed` whether this call has done something."""

    unit: Optional[BootUnit]
    verdicts: List[Verdict] = field(default_factory=list)
    changed: bool = False


@record(frozen=True)
class LaunchesRequest:
    """Which launches of a service are remembered on the box."""

    service: str
    state_root: str
    port: int


@record(frozen=True)
class KnownLaunch:
    """A launch with its record on the box. `launch` is what may be shown of it: secret values are masked.

    `verified` is when it was proven to serve (Unix time), None when it never was. `serves`: it is what is on the port now.
    `proof` is its place among all proofs of the service, which no clock has a part in; 0 for one from before places were kept.
    """

    launch: Launch
    verified: Optional[float] = None
    serves: bool = False
    timing: Optional[DecodeTiming] = None
    proof: int = 0


@record(frozen=True)
class LaunchesReport:
    """Oldest first. `server` is what is on the port now, whoever started it; `previous` the launch that a rollback would start.

    `why` says why there is none.
    """

    launches: List[KnownLaunch]
    server: Optional[ServerInfo] = None
    previous: Optional[str] = None
    why: str = ""


@record(frozen=True)
class AdoptRequest:
    """A server that somebody started by hand. `launch_id` None: only look; else prove that it serves and keep it under this id."""

    service: str
    state_root: str
    port: int
    launch_id: Optional[str] = None
    expected: Optional[ProcessId] = None
    """The server that the plan showed."""
    ours: bool = False
    """Whether a server that this program has started is looked at too, by its record. It is never recorded again."""


@record(frozen=True)
class AdoptReport:
    """What there is to say of it.

    `launch` is its launch as it may be shown: the names of `secrets` are there, their values masked. `steering` are the variables that
    change what it does and may be written down, `kept` the names of all others, `secret` of those that hold a secret.
    `flags` are its options, as written -> the parser's name. `rollback` is why it can't be brought back, None where it can.
    """

    server: ServerInfo
    launch: Launch
    health: str
    sglang_version: Optional[str] = None
    steering: Dict[str, str] = field(default_factory=dict)
    kept: List[str] = field(default_factory=list)
    secret: List[str] = field(default_factory=list)
    flags: Dict[str, str] = field(default_factory=dict)
    rollback: Optional[str] = None
    verdicts: List[Verdict] = field(default_factory=list)
    recorded: Optional[str] = None
    """The id of the record, once it was proven to serve."""
    answers: List[Verdict] = field(default_factory=list)
    """What it answered then, judged by itself."""
    answers_kept: bool = False
    """Whether that lies with the record, so that later launches and timings are held against it."""


@record(frozen=True)
class Adopted:
    """Kept beside the record of a launch that somebody else has started: which process it was, and on which boot."""

    main: ProcessId
    boot: str
