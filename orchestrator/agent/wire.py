"""The one set of types that crosses between the operator's end and the agent.

The operator's end sends one :class:`Request`; the agent answers with :class:`Event` objects, one framed JSON line each,
the last of which has the kind ``result`` or ``error``. The agent decodes with :func:`codec.from_json`; the operator's end
validates the same data classes with pydantic's TypeAdapter. All times are seconds; wall-clock times are Unix time.

Annotations are read at run time by Python 3.9, so they use typing's spelling.
"""

from typing import Any, Dict, List, Optional

from orchestrator.agent.codec import WireError, field, from_json, record, to_json
from orchestrator.agent.wire_base import (
    PROTOCOL,
    AgentFailure,
    Event,
    EventKind,
    Fact,
    Outcome,
    PingRequest,
    PlaceFacts,
    Request,
    Verdict,
)
from orchestrator.agent.wire_nodes import KnownRanks, RankGroup, RankStanding
from orchestrator.agent.wire_notice import Afterwards, Fate
from orchestrator.agent.wire_policy import DrainEnd, Expectation, Garbage, PhaseLimits, Policy
from orchestrator.agent.wire_router import RouterSeat
from orchestrator.agent.wire_staging import DarkEstimate, Staging, StagingPlan, UsualPhase

__all__ = [  # and the types that are defined here
    "PROTOCOL",
    "Afterwards",
    "AgentFailure",
    "DarkEstimate",
    "DrainEnd",
    "Event",
    "EventKind",
    "Expectation",
    "Fact",
    "Fate",
    "Garbage",
    "KnownRanks",
    "Outcome",
    "PhaseLimits",
    "PingRequest",
    "PlaceFacts",
    "Policy",
    "RankGroup",
    "RankStanding",
    "Request",
    "Staging",
    "StagingPlan",
    "UsualPhase",
    "Verdict",
    "WireError",
    "from_json",
    "to_json",
]


@record(frozen=True)
class Conditions:
    """What a server ran under that its command line does not say, as /proc showed it (/proc/PID/status, /proc/PID/limits).

    `groups` are the supplementary ones; `limits` names (``NOFILE``, as setrlimit(2) and systemd have them) -> soft and hard, None for
    unlimited.
    """

    group: int
    groups: List[int]
    umask: int
    limits: Dict[str, List[Optional[int]]] = field(default_factory=dict)


@record(frozen=True)
class Launch:
    """One start of one service, whole: what is to run, where, as whom.

    The argument vector is ``[python, *entry, *arguments]`` (plus ``--config FILE`` when there are `secrets`, plus
    ``--gated-launch-port`` when there is a `gate_port`, which is chosen anew on the box for each staged start). `arguments`
    holds everything, ``--host`` and ``--port`` included. `secrets` maps SGLang argument names (``api-key``) to values: they
    reach the server by a file of mode 600 only. `backend_flags` and `backend_environment` name what the backend
    profile set, so that a comparison can tell the profile's differences from anybody's; `swept_flags` are those that a
    sweep tries values of, whether or not this launch has them.
    """

    launch_id: str
    service: str
    backend: str
    python: str
    arguments: List[str]
    host: str
    port: int
    entry: List[str] = field(default_factory=lambda: ["-m", "sglang.launch_server"])
    environment: Dict[str, str] = field(default_factory=dict)
    secrets: Dict[str, str] = field(default_factory=dict)
    backend_flags: List[str] = field(default_factory=list)
    backend_environment: List[str] = field(default_factory=list)
    swept_flags: List[str] = field(default_factory=list)
    user: Optional[str] = None
    directory: Optional[str] = None
    conditions: Optional[Conditions] = None
    """Those of a server that somebody started by hand, with its whole environment in `environment`; None: our own."""
    gate_port: Optional[int] = None


class ManagerKind:
    """Who restarts, stops and owns a server: the values of :attr:`Manager.kind`."""

    OWN_UNIT = "own_unit"
    OWN_SESSION = "own_session"
    SYSTEMD_UNIT = "systemd_unit"
    SESSION = "session"
    """A shell, tmux, screen or nohup: nobody starts it again."""
    UNSUPPORTED = "unsupported"
    """docker, podman, supervisord, PID 1, another PID namespace, several nodes: named in `name`, refused."""


@record(frozen=True)
class Manager:
    """Who manages a server. `name` is the unit, or what a person would call it (``tmux``, ``docker``)."""

    kind: str
    name: str
    detail: str = ""


@record(frozen=True)
class ProcessId:
    """A process that can't be confused with a later one of the same number.

    `start_time` is field 22 of /proc/PID/stat, in clock ticks since boot.
    """

    pid: int
    start_time: int


@record(frozen=True)
class ServerInfo:
    """A server as found in the place. `arguments` are what follows the entry point, secret values masked.

    What is no SGLang server and only holds the port has no `entry`: all of its words are `arguments`.
    """

    main: ProcessId
    members: List[ProcessId]
    manager: Manager
    port: int
    listening: bool
    python: str
    arguments: List[str]
    user: str
    started: float
    launch_id: Optional[str] = None
    backend: Optional[str] = None
    entry: List[str] = field(default_factory=lambda: ["-m", "sglang.launch_server"])


@record(frozen=True)
class Gpu:
    """One GPU as nvidia-smi reports it. `compute_capability` is text such as ``12.0``; memory in MiB."""

    index: int
    uuid: str
    name: str
    compute_capability: str
    memory_used: int
    memory_total: int


@record(frozen=True)
class SurveyRequest:
    """What there is in the place for one service. `launch` is the candidate or None (then only the server is looked for)."""

    service: str
    state_root: str
    python: str
    port: int
    environment: Dict[str, str] = field(default_factory=dict)
    user: Optional[str] = None
    expected_gpus: Optional[int] = None
    """How many GPUs there must be, None when any number is fine."""


@record(frozen=True)
class SignsRequest:
    """Which of `names` (``module`` or ``module:name``) the service's Python would import: that shows which SGLang it has, whatever its
    version says.
    """

    names: List[str]
    python: str
    environment: Dict[str, str] = field(default_factory=dict)
    user: Optional[str] = None


@record(frozen=True)
class SignsReport:
    """`found` has the asked names of which it could be told."""

    found: Dict[str, bool]


@record(frozen=True)
class BootUnit:
    """What starts a service's server again after it has crashed, or the machine was restarted.

    `armed` is false while nothing would be started. `restarts` are those since the launch was verified, `last` the newest one (Unix
    time) and `ended` how the server had ended before it, in systemd's words; empty where nobody could record it.
    """

    unit: str
    launch_id: str
    armed: bool
    restarts: int = 0
    last: Optional[float] = None
    ended: str = ""
    problem: Optional[str] = None


@record(frozen=True)
class OrderStatus:
    """Where an order stands. `state` reads ``INTERRUPTED(STATE)`` without a live holder and a final state.

    `since` is when it came into that state, `began` its first line in the journal.
    """

    order_id: str
    kind: str
    state: str
    live: bool
    since: float
    operator: str
    reason: str = ""
    """What the operator gave as the reason for it."""
    service: str = ""
    began: float = 0.0
    resumed: int = 0
    """How often another supervisor took it over where one was ended."""
    touched: bool = False
    """Whether anything was signalled or started."""
    notice: Optional[Fate] = None
    """What became of its notice; None: there is none, or nobody has begun with it."""

    @property
    def half_done(self) -> bool:
        """Cut off after something was touched: it has to be brought to its end before anything else."""
        return self.touched and self.state.startswith("INTERRUPTED")


@record(frozen=True)
class PersonLock:
    """Who keeps changes away, a service's or a machine's, and why. `operator` is ``user@host``, `since` Unix time."""

    operator: str
    reason: str
    since: float


@record(frozen=True)
class GpuLock:
    """An order that holds a GPU. `since` is when it took it."""

    uuid: str
    service: str
    order_id: str
    kind: str
    operator: str
    since: float


@record(frozen=True)
class SurveyReport:
    """The answer to a survey. `order` is the newest relaunch in the state folder: its id, last state and whether it is live."""

    facts: List[Fact]
    sglang_version: Optional[str]
    server: Optional[ServerInfo]
    health: str
    """``serving``, ``starting``, ``unhealthy``, ``silent`` or ``down``."""
    gpus: List[Gpu]
    verdicts: List[Verdict] = field(default_factory=list)
    order: Optional[OrderStatus] = None
    others: List[ServerInfo] = field(default_factory=list)
    """Other SGLang servers in the place, which nothing here will touch."""
    boot: Optional[BootUnit] = None
    lock: Optional[PersonLock] = None
    gpu_locks: List[GpuLock] = field(default_factory=list)
    """Orders of other services that hold GPUs which this service may use."""


class LockAction:
    """The values of :attr:`LockRequest.action`."""

    STATUS = "status"
    ACQUIRE = "acquire"
    RELEASE = "release"


@record(frozen=True)
class LockRequest:
    """Look at, take or release a person's lock on a service.

    With the action ``status`` an empty `service` stands for every service of the state root; `order_id` asks for an order other than the
    one at work or, where there is none, the newest. `environment` is the service's, which says what GPUs it may use.
    """

    service: str
    state_root: str
    action: str = LockAction.STATUS
    operator: str = ""
    reason: str = ""
    order_id: Optional[str] = None
    environment: Dict[str, str] = field(default_factory=dict)


@record(frozen=True)
class LockStatus:
    """Who keeps changes of a service away.

    `order` is at work or not, see :class:`OrderStatus`. `gpus` are held by orders of other services, and the service may use them.
    `at_work` are the orders at work on any service of the state root. `preparing` says who sets knobs of this machine at the moment.
    """

    person: Optional[PersonLock] = None
    order: Optional[OrderStatus] = None
    gpus: List[GpuLock] = field(default_factory=list)
    at_work: List[OrderStatus] = field(default_factory=list)
    preparing: Optional[PersonLock] = None
    released: Optional[PersonLock] = None
    """What a release has ended."""


@record(frozen=True)
class Difference:
    """One argument or environment variable that differs between the running server and the candidate.

    `origin`: ``backend`` (the profile's doing), ``sweep`` (an argument that the candidate's sweep tries values of), ``ours``
    (marker, log and loopback settings of this program), ``inherited`` (a variable that the old server got from the login it
    was started in and that steers nothing that is known), ``drift`` (anything else: a change by hand or an older service
    file). `old` and `new` are None where unset; secret values are masked.
    """

    kind: str
    name: str
    old: Optional[str]
    new: Optional[str]
    origin: str


@record(frozen=True)
class Probe:
    """Something to look for in the source of what the service's Python would import; nothing of it is run and no GPU is asked.

    `name` is a class or function of `module` (``CuteDslMoEWrapper``), followed through re-exports; empty: the module itself. `tells`
    are default arguments and constants to tell the values of. `load`: import it for real as well, with no GPU visible. Not `required`:
    that it is missing speaks against nothing. Of several probes the first that says anything of compute capabilities counts.
    """

    module: str
    """The Python module that is looked at."""
    name: str = ""
    """A class or function of it, followed through re-exports; empty: the module itself."""
    tells: List[str] = field(default_factory=list)
    """Default arguments and constants whose values are told."""
    load: bool = False
    """Whether it is imported for real as well, with no GPU visible."""
    required: bool = True
    """Whether it speaks against the backend that it is missing."""


@record(frozen=True)
class Requirements:
    """What a backend profile needs, as the agent can check it. Empty lists ask for nothing.

    `compute_capability` are those where it is known to work, `compute_capability_unproven` those where nobody has shown
    it (a warning); any other is refused. `quantization` are the values of ``--quantization`` that SGLang accepts with it
    (``None`` in the list: unset is fine). `python_modules` must be importable by the service's Python.
    """

    compute_capability: List[str] = field(default_factory=list)
    """Where it is known to work; any other is refused."""
    compute_capability_unproven: List[str] = field(default_factory=list)
    """Where nobody has shown it: a warning."""
    quantization: List[str] = field(default_factory=list)
    """The values of --quantization that it works with; ``None``: without the flag."""
    python_modules: List[str] = field(default_factory=list)
    """What the service's Python must be able to import."""
    gpu_count: Optional[int] = None
    """How many GPUs it takes."""
    note: str = ""
    """One line for the plan."""
    probes: List[Probe] = field(default_factory=list)
    """What is looked for in what the service's Python would import."""


@record(frozen=True)
class PreflightRequest:
    """Check a candidate while the old server serves."""

    launch: Launch
    state_root: str
    requirements: List[Requirements] = field(default_factory=list)
    expected_gpus: Optional[int] = None
    """How many GPUs there must be, None when any number is fine."""
    copy_of: Optional[str] = None
    """The box's own record of this launch is meant; `launch` is what may be shown of it."""
    policy: Optional[Policy] = None
    """The service's, for whether the launch would be staged; None: that is not asked."""
    sequential: bool = False
    """The operator wants no staged start."""


@record(frozen=True)
class PreflightReport:
    """`verdicts` in the order they were reached. `differences` is empty when there is no old server."""

    verdicts: List[Verdict]
    differences: List[Difference]
    server: Optional[ServerInfo]
    sglang_version: Optional[str]
    load: Optional[int] = None
    """Running and queued requests on the old server now, None when unknown."""
    request_rate: Optional[float] = None
    """Requests a second that the old server has ended while it was looked at, by its counters; None where it has none."""
    staging: Optional[StagingPlan] = None
    """None: nothing serves beside which a server could be staged, or it was not asked."""


class OrderKind:
    """The values of :attr:`Order.kind`."""

    RELAUNCH = "relaunch"
    LAUNCH = "launch"
    TEARDOWN = "teardown"


@record(frozen=True)
class Order:
    """What the supervisor is asked to do.

    `old` pins the server that the plan showed (None: there was none): if another one is found, the order is refused. How the
    old server is brought back is read on the box, never sent: it may hold secrets.
    """

    order_id: str
    kind: str
    service: str
    state_root: str
    port: int
    policy: Policy
    operator: str
    reason: str = ""
    old: Optional[ProcessId] = None
    new: Optional[Launch] = None
    copy_of: Optional[str] = None
    """Instead of `new`: a launch on the box that is started again. The box fills it in from its record; the order's id is its launch's."""
    overruled: List[str] = field(default_factory=list)
    """The refused checks, with what they found, that the operator has overruled; the journal's first line keeps them."""
    boot: Optional[bool] = None
    """Whether what comes to serve comes back after a crash and a restart of the machine. None: where systemd runs."""
    expectations: List[Expectation] = field(default_factory=list)
    """Asked of the old server and of what is started."""
    staged: bool = False
    """As the plan showed: the new server starts beside the old one, up to its gate, unless there is no room any more then."""
    estimate: Optional[DarkEstimate] = None
    """As the plan showed, for the result."""
    afterwards: Optional[Afterwards] = None
    """What is to follow its end; None: nothing."""
    router: Optional[RouterSeat] = None
    """Where the box takes the server out of a router before the stop, and has what serves in again."""
    group: Optional[RankGroup] = None
    """Which part of a server over several nodes it is about; None: the server is on one node."""

    @property
    def launch_id(self) -> Optional[str]:
        """The id of what it starts, None where it starts nothing."""
        if self.new is not None:
            return self.new.launch_id
        return self.order_id if self.copy_of is not None else None


@record(frozen=True)
class OrderReference:
    """Names an order in a state folder. `after` is the last sequence number that the caller has seen."""

    service: str
    state_root: str
    order_id: str
    after: int = 0
    ranks: Optional[KnownRanks] = None
    """To take up an order of a server over several nodes: how it ended on others."""


@record(frozen=True)
class Cancel:
    """Stop an order safely: nothing is changed where nothing was touched yet, else the old server is brought back."""

    service: str
    state_root: str
    order_id: str
    operator: str


@record(frozen=True)
class LogRequest:
    """`lines` are counted from the end. `launch_id` None means the service: its newest launch and, with `follow`, those that come
    after it, until the reader goes away. A named launch is followed until it has ended.
    """

    service: str
    state_root: str
    launch_id: Optional[str] = None
    lines: int = 200
    follow: bool = False


class State:
    """The states of an order, in their usual sequence."""

    CHECKED = "CHECKED"
    LOCKED = "LOCKED"
    BASELINE = "BASELINE"
    WARMING = "WARMING"
    """The checkpoint's files are read while the old server serves."""
    STAGING = "STAGING"
    """The new server is started beside the old one, up to its gate."""
    LEAVING = "LEAVING"
    """The server is taken out of its router, and waited for until it has no request left; it serves on."""
    DRAINING = "DRAINING"
    STOPPING = "STOPPING"
    CLEAN = "CLEAN"
    ACTIVATING = "ACTIVATING"
    """The staged server is told to go on; instead of STARTING."""
    STARTING = "STARTING"
    LOADING = "LOADING"
    ANSWERING = "ANSWERING"
    VERIFIED = "VERIFIED"
    MEASURED = "MEASURED"
    ROLLING_BACK = "ROLLING_BACK"
    DONE = "DONE"
    RESTORED = "RESTORED"
    DOWN = "DOWN"
    REFUSED = "REFUSED"

    FINAL = frozenset({DONE, RESTORED, DOWN, REFUSED})


@record(frozen=True)
class StateEntry:
    """One line of the journal. `sequence` counts from 1; `monotonic` orders lines of one boot."""

    sequence: int
    state: str
    time: float
    monotonic: float
    reason: str
    data: Dict[str, Any] = field(default_factory=dict)


@record(frozen=True)
class Progress:
    """What goes on inside a state: for the screen, kept without fsync.

    `elapsed` counts from the state's start, `in_phase` from the phase's within it, where that is told; `sequence` is that of the state's
    journal line.
    """

    state: str
    phase: str
    elapsed: float
    detail: str = ""
    sequence: int = 0
    in_phase: Optional[float] = None


@record(frozen=True)
class DecodeSample:
    """One timed stream. `time_per_output_token` is (last - first token time) / (tokens - tokens of the first event)."""

    time_to_first_token: float
    time_per_output_token: float
    tokens: int
    seconds: float
    cached_tokens: int = 0


@record(frozen=True)
class DecodeTiming:
    """Batch-1 decode timing, medians over `samples` with their extremes in the samples themselves.

    `skipped` says why there is none; the other fields are then zero. `tokens_per_second` is 1 / time_per_output_token.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    time_to_first_token: float = 0.0
    time_per_output_token: float = 0.0
    tokens_per_second: float = 0.0
    samples: List[DecodeSample] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
    skipped: Optional[str] = None


@record(frozen=True)
class Failure:
    """Why a launch failed: one class (see failures.py), the lines that show it, and what to do.

    `retry`: the very same launch may well succeed when it is tried again. False also where nobody knows.
    """

    category: str
    summary: str
    evidence: List[str] = field(default_factory=list)
    advice: str = ""
    exit_status: Optional[str] = None
    retry: bool = False


@record(frozen=True)
class OrderResult:
    """How an order ended. `exit_code` is the operator's (README's table); `service` tells what serves now."""

    order_id: str
    state: str
    exit_code: int
    summary: str
    service: str
    failure: Optional[Failure] = None
    next_step: Optional[str] = None
    baseline: Optional[DecodeTiming] = None
    measured: Optional[DecodeTiming] = None
    dark_seconds: Optional[float] = None
    """Last good answer of the old server to first good answer of the one that serves now; to the order's end where none does."""
    lost_requests: Optional[int] = None
    launch_id: Optional[str] = None
    verdicts: List[Verdict] = field(default_factory=list)
    failed_launch_id: Optional[str] = None
    """The launch that was begun and did not come to serve, whose log says why."""
    staged: bool = False
    """Whether what serves now had been started beside the server before it."""
    saved_seconds: Optional[float] = None
    """How long a staged server took to its gate, while the one before it answered."""
    dark_phases: Dict[str, float] = field(default_factory=dict)
    """Seconds of each phase of its load in which nothing answered (:class:`phases.Phase`), as far as its log tells."""
    estimate: Optional[DarkEstimate] = None
    """What the plan expected of `dark_seconds`."""
    held_seconds: Optional[float] = None
    """From the server's removal from its router until that had its successor in: so long a router without another one holds requests."""


@record(frozen=True)
class Submitted:
    """The supervisor runs. `holder` is its unit or session."""

    order_id: str
    holder: str


@record(frozen=True)
class LogEnd:
    """The end of a log request: which launch it was and where its file lies."""

    launch_id: str
    path: str


@record(frozen=True)
class Collected:
    """What an order left on the box, secrets scrubbed: file name -> text (long logs: their head and tail)."""

    files: Dict[str, str]
    truncated: List[str] = field(default_factory=list)
