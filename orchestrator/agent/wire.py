"""The one set of types that crosses between the operator's end and the agent.

The operator's end sends one :class:`Request`; the agent answers with :class:`Event` objects, one framed JSON line each,
the last of which has the kind ``result`` or ``error``. The agent decodes with :func:`codec.from_json`; the operator's end
validates the same data classes with pydantic's TypeAdapter. All times are seconds; wall-clock times are Unix time.

Annotations are read at run time by Python 3.9, so they use typing's spelling.
"""

from dataclasses import field
from typing import Any, Dict, List, Optional

from orchestrator.agent.codec import WireError, from_json, record, to_json

__all__ = ["PROTOCOL", "WireError", "from_json", "to_json"]  # the types are all the other names here

PROTOCOL = 1
"""Raised whenever a type here changes its meaning; both ends refuse another number."""


@record(frozen=True)
class Request:
    """One phase's question to the agent. `verb` names an entry of the agent's dispatch table (main.py)."""

    verb: str
    body: Dict[str, Any]
    protocol: int = PROTOCOL


class EventKind:
    """The values of :attr:`Event.kind`."""

    STATE = "state"
    """data is a :class:`StateEntry`: one line of the journal."""
    PROGRESS = "progress"
    """data is a :class:`Progress`."""
    LOG = "log"
    """data is ``{"text": str}``: server log lines, secrets scrubbed."""
    COLLECTED = "collected"
    """data is a :class:`Collected`: what an order left, just before the result of following it."""
    RESULT = "result"
    """data is the verb's answer (see the table in main.py). Always the last event."""
    ERROR = "error"
    """data is a :class:`AgentFailure`. Always the last event."""


@record(frozen=True)
class Event:
    """One framed line from the agent."""

    kind: str
    data: Dict[str, Any]


@record(frozen=True)
class AgentFailure:
    """Why the agent could not answer.

    `category` is one of: ``python`` (too old or lacks a package), ``kernel``, ``rights``, ``disk_full``, ``request``
    (does not fit the protocol), ``refused`` (the agent will not do it, see message), ``locked``, ``traceback``.
    """

    category: str
    message: str
    evidence: List[str] = field(default_factory=list)
    next_step: Optional[str] = None


@record(frozen=True)
class PingRequest:
    """Who and where are you? Nothing to say with it."""


@record(frozen=True)
class PlaceFacts:
    """The answer to a ping. `container` is its kind (``lxc``), None on a bare host or where nobody says."""

    python: str
    kernel: str
    host_name: str
    user_id: int
    container: Optional[str] = None


class Outcome:
    """The values of :attr:`Verdict.outcome`."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    REFUSE = "refuse"
    UNKNOWN = "unknown"


@record(frozen=True)
class Verdict:
    """The answer of one check: what was asked, what came out, what was seen, what to type next."""

    check: str
    outcome: str
    detail: str
    evidence: List[str] = field(default_factory=list)
    next_step: Optional[str] = None


@record(frozen=True)
class Fact:
    """One thing that is true of a place, with how it is known (a path or a command)."""

    name: str
    value: Any
    source: str


@record(frozen=True)
class Launch:
    """One start of one service, whole: what is to run, where, as whom.

    The argument vector is ``[python, *entry, *arguments]`` (plus ``--config FILE`` when there are `secrets`). `arguments`
    holds everything, ``--host`` and ``--port`` included. `secrets` maps SGLang argument names (``api-key``) to values: they
    reach the server by a file of mode 600 only. `backend_flags` and `backend_environment` name what the backend
    profile set, so that a comparison can tell the profile's differences from anybody's.
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
    user: Optional[str] = None
    directory: Optional[str] = None


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
class SurveyReport:
    """The answer to a survey. `order` is the newest relaunch in the state folder: its id, last state and whether it is live."""

    facts: List[Fact]
    sglang_version: Optional[str]
    server: Optional[ServerInfo]
    health: str
    """``serving``, ``starting``, ``unhealthy``, ``silent`` or ``down``."""
    gpus: List[Gpu]
    verdicts: List[Verdict] = field(default_factory=list)
    order: Optional["OrderStatus"] = None
    others: List[ServerInfo] = field(default_factory=list)
    """Other SGLang servers in the place, which nothing here will touch."""


@record(frozen=True)
class OrderStatus:
    """Where an order stands. `state` reads ``INTERRUPTED(STATE)`` without a live holder and a final state."""

    order_id: str
    kind: str
    state: str
    live: bool
    since: float
    operator: str
    reason: str = ""
    """What the operator gave as the reason for it."""


@record(frozen=True)
class Difference:
    """One argument or environment variable that differs between the running server and the candidate.

    `origin`: ``backend`` (the profile's doing), ``ours`` (marker, log and loopback settings of this program), ``inherited``
    (a variable that the old server got from the login it was started in and that steers nothing that is known), ``drift``
    (anything else: a change by hand or an older service file). `old` and `new` are None where unset; secret values are masked.
    """

    kind: str
    name: str
    old: Optional[str]
    new: Optional[str]
    origin: str


@record(frozen=True)
class Requirements:
    """What a backend profile needs, as the agent can check it. Empty lists ask for nothing.

    `compute_capability` are those where it is known to work, `compute_capability_unproven` those where nobody has shown
    it (a warning); any other is refused. `quantization` are the values of ``--quantization`` that SGLang accepts with it
    (``None`` in the list: unset is fine). `python_modules` must be importable by the service's Python.
    """

    compute_capability: List[str] = field(default_factory=list)
    compute_capability_unproven: List[str] = field(default_factory=list)
    quantization: List[str] = field(default_factory=list)
    python_modules: List[str] = field(default_factory=list)
    gpu_count: Optional[int] = None
    note: str = ""


@record(frozen=True)
class PreflightRequest:
    """Check a candidate while the old server serves."""

    launch: Launch
    state_root: str
    requirements: List[Requirements] = field(default_factory=list)
    expected_gpus: Optional[int] = None
    """How many GPUs there must be, None when any number is fine."""


@record(frozen=True)
class PreflightReport:
    """`verdicts` in the order they were reached. `differences` is empty when there is no old server."""

    verdicts: List[Verdict]
    differences: List[Difference]
    server: Optional[ServerInfo]
    sglang_version: Optional[str]
    load: Optional[int] = None
    """Running and queued requests on the old server now, None when unknown."""


@record(frozen=True)
class Policy:
    """Deadlines and thresholds of one order, seconds unless said otherwise."""

    drain: float = 30.0
    """After SIGTERM, how long running and queued requests may take to reach zero."""
    grace: float = 25.0
    """From SIGTERM until SIGKILL, counted once the drain has ended. SGLang: 5 s poll + 15 s for its schedulers."""
    clean: float = 60.0
    """For port, processes, shared memory and GPU memory to come free."""
    load_total: float = 3600.0
    load_stall: float = 900.0
    """Without log growth, CPU time or compiler children."""
    generations: int = 3
    """Good generations in a row that prove the server ready."""
    capacity_warn: float = 0.95
    capacity_fail: float = 0.80
    """Fractions of the last verified launch's max_total_num_tokens."""
    likelihood_tolerance: float = 0.05
    """Largest accepted change of the mean log-likelihood per token of the fixed texts, in nats."""
    measure: bool = True
    measure_input_tokens: int = 256
    measure_output_tokens: int = 128
    measure_repeats: int = 5
    measure_seconds: float = 120.0
    """Bound on one whole decode timing, warm-up included."""


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


@record(frozen=True)
class OrderReference:
    """Names an order in a state folder. `after` is the last sequence number that the caller has seen."""

    service: str
    state_root: str
    order_id: str
    after: int = 0


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
    DRAINING = "DRAINING"
    STOPPING = "STOPPING"
    CLEAN = "CLEAN"
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

    `elapsed` counts from the state's start, `sequence` is that of the state's journal line.
    """

    state: str
    phase: str
    elapsed: float
    detail: str = ""
    sequence: int = 0


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
    """Why a launch failed: one class (see failures.py), the lines that show it, and what to do."""

    category: str
    summary: str
    evidence: List[str] = field(default_factory=list)
    advice: str = ""
    exit_status: Optional[str] = None


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
    """Last good answer of the old server to first good answer of the one that serves now."""
    lost_requests: Optional[int] = None
    launch_id: Optional[str] = None
    verdicts: List[Verdict] = field(default_factory=list)
    failed_launch_id: Optional[str] = None
    """The launch that was begun and did not come to serve, whose log says why."""


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
