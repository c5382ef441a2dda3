"""What crosses for the verb ``measure``: a decode timing of a server that runs, by batch size, with what it depends on.

Times are seconds, rates tokens a second, unless said otherwise. Loaded for this verb only (see :mod:`wire` for the rest, whose rules hold
here too).
"""

from typing import Any, Dict, List, Optional

from orchestrator.agent.codec import field, record
from orchestrator.agent.wire_base import Fact
from orchestrator.agent.wire_host import KnobResult, KnobSetting
from orchestrator.agent.wire_policy import Expectation, Policy

SCHEMA = "orchestrator.measure/1"
"""Of the file ``measure.json`` in a run folder."""


class Endpoint:
    """The values of :attr:`MeasureReport.endpoint`: which stream was timed."""

    GENERATE = "/generate"
    """With incremental streaming on: each event holds what is new, and a meta_info."""
    COMPLETIONS = "/v1/completions"
    """Each event holds what is new, and with ``continuous_usage_stats`` how many tokens there are."""
    CUMULATIVE = "/generate, cumulative"
    """Where nothing better is there: each event repeats the whole text so far."""


class Reason:
    """The values of :attr:`Invalid.reason`."""

    OUTPUT = "output"
    """What the server answers is wrong, changed while it was timed, or is not what the launch verified before it answered."""
    SHORT = "short"
    """Fewer tokens came than were asked for."""
    COARSE = "coarse"
    """Tokens came in so few events that no time per token can be told, or the streams never decoded all at once."""
    CACHED = "cached"
    """Part of a prompt came from the radix cache."""
    RETRACTED = "retracted"
    ABORTED = "aborted"
    BROKEN = "broken"
    """A stream was refused, broke off, or did not end in time."""
    NO_GRAPH = "no_graph"
    """Decode ran without a captured graph, although the server has them."""
    OTHERS = "others"
    """Other clients' requests ran or were queued in the window."""
    THROTTLED = "throttled"
    """A GPU's clocks were held down by heat, power brake or the hardware's own protection."""
    LINK = "link"
    """A GPU's PCIe link was narrower than it can be."""
    CAPACITY = "capacity"
    """max_total_num_tokens is below that of the launch to compare with."""
    STOOD_STILL = "stood_still"
    """This place was frozen or the machine slept meanwhile."""
    RESTARTED = "restarted"
    """Another process serves at the end than at the beginning."""
    INCOMPLETE = "incomplete"
    """The time ran out before every repeat was made."""


@record(frozen=True)
class MeasureRequest:
    """Time decode of the server on `port` by batch size. Reads only, apart from the requests that it sends.

    The key is taken from the box's own record of the launch or from the command line of the server; it never crosses.
    """

    service: str
    state_root: str
    port: int
    batch_sizes: List[int] = field(default_factory=lambda: [1, 4, 16])
    input_tokens: int = 256
    output_tokens: int = 256
    repeats: int = 6
    """Six are the fewest for which the lowest and the highest hold the median between them in 95 % of cases."""
    seconds: float = 900.0
    """Bound on the whole, warm-up included."""
    temperature: float = 0.0
    """Of the warm-up and of what is timed."""
    policy: Policy = field(default_factory=Policy)
    """Its thresholds of likelihoods and of the KV cache's room count here."""
    expectations: List[Expectation] = field(default_factory=list)
    baseline_capacity: Optional[int] = None
    """The max_total_num_tokens to compare with; None: that of the launch verified before this one, where the box knows it."""
    knobs: List[KnobSetting] = field(default_factory=list)
    """Read in this place, never set."""


@record(frozen=True)
class Interval:
    """A median with the interval that holds it, distribution-free: two of the values, by their rank.

    `coverage` is the probability with which it does. Fewer than six values can't give 0.95: then `low` and `high` are the lowest and the
    highest, and `coverage` says how little that is.
    """

    median: float
    low: float
    high: float
    coverage: float
    count: int


@record(frozen=True)
class Gaps:
    """Times between one event of a stream and the next, in the window in which all streams decode; seconds."""

    p50: float
    p90: float
    p99: float
    max: float
    count: int


@record(frozen=True)
class Invalid:
    """Why a result is not to be believed. `reason` is a :class:`Reason`; without a batch size it holds for the whole."""

    reason: str
    detail: str
    batch_size: Optional[int] = None
    repeat: Optional[int] = None
    """Its place in the batch size's `repeats`; None where it holds for all of them, or for one that could not be timed."""


@record(frozen=True)
class RepeatTiming:
    """All streams of one batch size, started together.

    The window begins when the last stream has its first token and ends when the first stream has its last: all decode in it. The time per
    output token is that of one stream: the window's length over the tokens that a stream got in it, in the mean of all streams.
    """

    began: float
    """Unix time at which the first request was sent."""
    seconds: float
    """From the first request sent to the last byte received."""
    time_to_first_token: List[float]
    """Of each stream, from its own request."""
    time_per_output_token: float
    window: float
    """Length of the window, seconds."""
    window_tokens: int
    """Tokens that all streams got in it together."""
    gaps: Gaps
    tokens_per_second_per_stream: float
    tokens_per_second: float
    """Of all streams together, in the window."""
    events: int
    """Of all streams; fewer than tokens where a chunk holds several."""
    output_tokens: int
    """Of all streams together, to their ends."""
    input_tokens: int
    """Of all streams together."""
    late: float = 0.0
    """The longest time for which the one thread that reads was not yet back at reading: what our own side may have added to a gap."""
    waited: Optional[float] = None
    """For how long that thread wanted to run and had no processor, in all; None where the kernel doesn't tell."""


class Source:
    """The values of :attr:`OwnWord.source`: where the server says how fast it decodes."""

    STEP_TIME = "step_time_dict"
    """/server_info with SGLANG_RECORD_STEP_TIME=1: seconds per decode step of each log interval, by batch size."""
    LOG = "decode batch lines"
    METRICS = "metrics"
    META_INFO = "meta_info"


MOST_DIFFERENCE = 0.03
"""Of ours from the server's own word, before a result says so."""


@record(frozen=True)
class OwnWord:
    """The time per output token by the server's own account. `difference` is ours over the server's, less one."""

    source: str
    time_per_output_token: float
    count: int
    """Of the intervals or requests that it is the median of."""
    difference: float
    detail: str = ""


@record(frozen=True)
class BatchTiming:
    """One batch size. `skipped` says why there are no repeats in it. Intervals are over the repeats that are valid, or all if none is."""

    batch_size: int
    repeats: List[RepeatTiming] = field(default_factory=list)
    time_to_first_token: Optional[Interval] = None
    """Over repeats, of the median over the streams of each."""
    time_per_output_token: Optional[Interval] = None
    tokens_per_second_per_stream: Optional[Interval] = None
    tokens_per_second: Optional[Interval] = None
    own_words: List[OwnWord] = field(default_factory=list)
    disagreements: List[str] = field(default_factory=list)
    """Sentences about what differs from the server's own word by more than 3 %."""
    remarks: List[str] = field(default_factory=list)
    skipped: Optional[str] = None


@record(frozen=True)
class GpuSample:
    """One GPU at one moment. Megahertz, watts, degrees Celsius; None where the driver doesn't tell."""

    moment: float
    """Unix time."""
    index: int
    sm_clock: Optional[float] = None
    memory_clock: Optional[float] = None
    power: Optional[float] = None
    temperature: Optional[float] = None
    reasons: List[str] = field(default_factory=list)
    """Names of the clocks_event_reasons that were active (``sw_power_cap``)."""
    link_generation: Optional[int] = None
    link_width: Optional[int] = None
    utilization: Optional[float] = None


@record(frozen=True)
class GpuSeries:
    """One GPU during the run. Lowest, median and highest of what was sampled; `reasons` counts the samples that had each."""

    index: int
    uuid: str
    name: str
    samples: int
    sm_clock: Optional[List[float]] = None
    memory_clock: Optional[List[float]] = None
    power: Optional[List[float]] = None
    temperature: Optional[List[float]] = None
    reasons: Dict[str, int] = field(default_factory=dict)
    link_generation: Optional[List[float]] = None
    link_width: Optional[List[float]] = None
    most_link_generation: Optional[int] = None
    most_link_width: Optional[int] = None
    power_limit: Optional[float] = None
    most_sm_clock: Optional[float] = None


@record(frozen=True)
class Covariates:
    """What a timing depends on. Text is as its source shows it, None where nobody says; keys are masked."""

    sglang: Optional[str] = None
    packages: Dict[str, str] = field(default_factory=dict)
    """Version by distribution: torch, flashinfer_python, triton, sgl_kernel, ..."""
    cuda: Optional[str] = None
    """That torch was built for."""
    driver: Optional[str] = None
    kernel: Optional[str] = None
    host_name: Optional[str] = None
    container: Optional[str] = None
    backend: Optional[str] = None
    """The profile that the launch was made with."""
    requested_kernels: Dict[str, str] = field(default_factory=dict)
    """What the command line asks for, by SGLang's argument name (``moe_runner_backend``)."""
    resolved_kernels: Dict[str, str] = field(default_factory=dict)
    """What the log says in words of its own, by the same names; absent where it doesn't."""
    echoed_kernels: Dict[str, str] = field(default_factory=dict)
    """What /server_info shows: the flag, not always the kernel."""
    arguments: List[str] = field(default_factory=list)
    variables: Dict[str, str] = field(default_factory=dict)
    """Environment variables that steer a server; secret values masked."""
    knobs: List[KnobResult] = field(default_factory=list)
    gpus: List[GpuSeries] = field(default_factory=list)
    gpu_problem: Optional[str] = None
    """Why nothing is known of the GPUs."""
    cpuset: Optional[str] = None
    """The processors that the server's scheduler may use (``0-15,32-47``)."""
    memory_nodes: Optional[str] = None
    launch_id: Optional[str] = None
    main_pid: Optional[int] = None
    started: Optional[float] = None
    """Unix time at which the server's main process started."""
    age: Optional[float] = None
    """Seconds from there to the beginning of the timing."""
    cold_caches: Optional[List[str]] = None
    """Why each cache of compiled kernels is cold now; empty: all warm; None: nobody can tell."""
    max_total_num_tokens: Optional[int] = None
    baseline_capacity: Optional[int] = None
    decode_log_interval: Optional[int] = None
    metrics: Dict[str, float] = field(default_factory=dict)
    """Growth of the server's counters from before to after (``generation_tokens_total``)."""
    facts: List[Fact] = field(default_factory=list)


@record(frozen=True)
class FloorInputs:
    """From what the bytes that are read for a token can be counted, each with its source. None or absent where nobody says."""

    model_path: Optional[str] = None
    config: Dict[str, Any] = field(default_factory=dict)
    """The model's config.json, without its lists of token ids; a model of several parts has its text part under ``text_config``."""
    config_source: str = ""
    weight_bytes: Optional[int] = None
    """Of all weights, by the index of the safetensors files or by their sizes."""
    weight_source: str = ""
    weight_gigabytes_per_gpu: Optional[float] = None
    """By /server_info's internal_states (memory_usage.weight)."""
    quantization: Optional[str] = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    kv_cache_dtype: Optional[str] = None
    gpu_names: List[str] = field(default_factory=list)
    facts: List[Fact] = field(default_factory=list)


@record(frozen=True)
class MeasureReport:
    """The answer to a :class:`MeasureRequest`. Valid is what has no entry in `invalid`; what is invalid is kept all the same."""

    endpoint: str
    input_tokens: int
    """As counted by the server, per stream; the median."""
    output_tokens: int
    sampling: Dict[str, Any]
    began: float
    seconds: float
    batches: List[BatchTiming]
    invalid: List[Invalid]
    covariates: Covariates
    floor: FloorInputs
    warm_up: List[float] = field(default_factory=list)
    """Seconds of each warm-up request; the first may hold minutes of compiling."""
    remarks: List[str] = field(default_factory=list)
