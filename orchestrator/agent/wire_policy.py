"""What an order allows itself: deadlines and thresholds, and what a service's owner expects of its answers. Part of :mod:`wire`."""

from typing import Dict, List, Optional

from orchestrator.agent.codec import field, record
from orchestrator.agent.wire_staging import Staging


class DrainEnd:
    """The values of :attr:`Policy.drain_end`."""

    ABORT = "abort"
    STOP = "stop"


class Garbage:
    """The values of :attr:`Policy.garbage`."""

    FAIL = "fail"
    WARN = "warn"


@record(frozen=True)
class PhaseLimits:
    """Deadlines of one phase of a load, seconds; None is the default (:mod:`load_limits`).

    `total` and `stall` hold with cold caches too, unless `cold_total` and `cold_stall` say otherwise.
    """

    total: Optional[float] = None
    """For the phase as a whole."""
    stall: Optional[float] = None
    """Without progress in it."""
    cold_total: Optional[float] = None
    """For the phase as a whole, while caches of compiled kernels are cold."""
    cold_stall: Optional[float] = None
    """Without progress in it, while they are."""


@record(frozen=True)
class Policy:
    """Deadlines and thresholds of one order, seconds unless said otherwise."""

    drain: float = 30.0
    """After SIGTERM, how long running and queued requests may take to reach zero."""
    drain_end: str = DrainEnd.ABORT
    """What happens to those that are left then: ``abort`` them, or ``stop`` anyway: they may use the grace and are cut with the server."""
    grace: float = 25.0
    """From SIGTERM until SIGKILL, counted once the drain has ended. SGLang: 5 s poll + 15 s for its schedulers."""
    clean: float = 60.0
    """For port, processes, shared memory and GPU memory to come free."""
    load_total: Optional[float] = None
    """For a whole load; None: the default, longer with cold caches (:mod:`load_limits`)."""
    load_stall: Optional[float] = None
    """Without log growth, CPU time or compiler children, in every phase that has no limit of its own; None: each phase's default."""
    phases: Dict[str, PhaseLimits] = field(default_factory=dict)
    """By the phase's name (:class:`phases.Phase`)."""
    staging: str = Staging.AUTO
    """Whether the next server may start beside the old one, up to its gate."""
    headroom: float = 3.0
    """GiB that must stay free on each GPU beside the old server and a staged one: the old one activates in it."""
    stage_total: Optional[float] = None
    """For a staged server to come to its gate; None: the limits of the phases up to there (:mod:`load_limits`)."""
    warm_rate: float = 2000.0
    """MB/s at most at which the checkpoint's files are read while the old server serves; 0: they are not."""
    generations: int = 3
    """Good generations in a row that prove the server ready."""
    capacity_warn: float = 0.95
    """Fraction of the last verified launch's max_total_num_tokens below which the new server's is told."""
    capacity_fail: float = 0.80
    """The same, below which the launch fails."""
    likelihood_tolerance: float = 0.05
    """Largest accepted change of the mean log-likelihood per token of the fixed texts, in nats."""
    likelihood_floor: float = -7.0
    """Below this mean log-likelihood per token, in nats, a server computes garbage, whatever the old one did."""
    garbage: str = Garbage.FAIL
    """What garbage in greedy output does where no old server's output says better: ``fail`` the launch or ``warn``."""
    verify: float = 300.0
    """For scoring, greedy output and expectations in all, once for the old and once for the new server."""
    measure: bool = True
    """Whether decoding is timed before and after."""
    measure_input_tokens: int = 256
    """Tokens of the prompt of a timing."""
    measure_output_tokens: int = 128
    """Tokens of its answer."""
    measure_repeats: int = 5
    """Repeats, of which the median is told."""
    measure_seconds: float = 120.0
    """Bound on one whole decode timing, warm-up included."""


@record(frozen=True)
class Expectation:
    """What a service's owner expects of the greedy answer to a prompt: all of `contains` in it, and `matches` (a regular expression).

    With `chat` the prompt is a user's message, so that the model's chat template is used.
    """

    prompt: str
    """What is asked."""
    contains: List[str] = field(default_factory=list)
    """Texts that must all be in the answer."""
    matches: Optional[str] = None
    """A regular expression that must match somewhere in it."""
    chat: bool = False
    """Whether the prompt is a user's message, put through the model's chat template."""
    max_tokens: int = 64
    """How long the answer may get."""
