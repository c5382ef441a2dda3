"""What crosses for the verbs ``budget`` and ``profile``: where the time of a decode step goes.

Times are seconds, sizes bytes, unless said otherwise. Loaded for these verbs only (see :mod:`wire`, whose rules hold here too).
"""

from typing import Dict, List, Optional

from orchestrator.agent.codec import field, record

SCHEMA = "orchestrator.budget/1"
"""Of the file ``budget.json`` in a run folder."""
PROFILE_SCHEMA = "orchestrator.profile/1"
"""Of the file ``profile.json`` in a run folder."""


BESIDE_WEIGHTS = 1 << 30
"""Bytes of each GPU beside the weights of a multiplication that is timed: CUDA's own, PyTorch's and NCCL's."""
LEFT_TO_SERVER = 1 << 30
"""Bytes of each GPU that stay free beside a server, which takes more only when its largest batch so far is outdone."""


class Format:
    """The values of :attr:`Gemm.format` and :attr:`GemmTiming.format` that can be timed."""

    BF16 = "BF16"
    FP8 = "FP8"
    NVFP4 = "NVFP4"


@record(frozen=True)
class Gemm:
    """A matrix multiplication of one GPU in a decode step: `groups` times ``[rows, inputs] x [inputs, outputs]``, in `count` layers.

    `format` is what the model keeps its weights in, `bytes` what those of one layer take in it with their scales.
    """

    name: str
    batch_size: int
    rows: int
    """Tokens for each group."""
    inputs: int
    outputs: int
    groups: int = 1
    """Experts that the step needs, or heads."""
    count: int = 1
    format: str = Format.BF16
    bytes: float = 0.0


@record(frozen=True)
class AllReduce:
    """A sum over all ranks of `bytes`, `count` times in a step."""

    batch_size: int
    bytes: int
    count: int


@record(frozen=True)
class BudgetRequest:
    """Time these on the service's GPUs with its own Python. Runs beside the server, which must be idle, or where none runs.

    `devices` are CUDA's numbers in the server's environment, one a rank.
    """

    service: str
    state_root: str
    port: int
    python: str
    environment: Dict[str, str] = field(default_factory=dict)
    user: Optional[str] = None
    gemms: List[Gemm] = field(default_factory=list)
    all_reduces: List[AllReduce] = field(default_factory=list)
    devices: List[int] = field(default_factory=lambda: [0])
    seconds: float = 240.0
    """Bound on the whole, PyTorch's import included."""
    memory: int = 1 << 30
    """Of each GPU, for weights; :data:`BESIDE_WEIGHTS` come on top."""
    device: str = "cuda"
    """``cpu`` where there is no GPU: it shows that it works, not how fast a GPU is."""


@record(frozen=True)
class GemmTiming:
    """One multiplication in one format: the median over samples, of the slowest GPU. `problem` says why there is no time."""

    gemm: Gemm
    format: str
    seconds: Optional[float] = None
    low: Optional[float] = None
    high: Optional[float] = None
    samples: int = 0
    how: str = ""
    """What was run where it is not simply the multiplication: a part of it, a matrix in place of a group."""
    problem: Optional[str] = None


@record(frozen=True)
class AllReduceTiming:
    """One sum over the ranks, as the rank saw it that waited least for the others to begin."""

    all_reduce: AllReduce
    seconds: Optional[float] = None
    low: Optional[float] = None
    high: Optional[float] = None
    samples: int = 0
    problem: Optional[str] = None


@record(frozen=True)
class BudgetReport:
    """The answer to a :class:`BudgetRequest`. `disturbed` says why the times are not to be believed; they are kept all the same."""

    gemms: List[GemmTiming]
    all_reduces: List[AllReduceTiming]
    torch: str = ""
    device_name: str = ""
    ranks: int = 1
    seconds: float = 0.0
    disturbed: List[str] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)


@record(frozen=True)
class ProfileRequest:
    """Have the server on `port` trace a few decode steps under a load of `batch_size` streams of ours."""

    service: str
    state_root: str
    port: int
    batch_size: int = 1
    steps: int = 8
    input_tokens: int = 256
    seconds: float = 240.0
    """Bound on the whole."""
    most_bytes: int = 64 << 20
    """Of one rank's compressed trace; a larger one is left out and told."""
    most_ranks: int = 16


@record(frozen=True)
class FilePiece:
    """A piece of a file, base64, in order; the event of kind ``file``."""

    name: str
    data: str
    last: bool = False


@record(frozen=True)
class ProfileReport:
    """The answer to a :class:`ProfileRequest`; the files came before it, as :class:`FilePiece`."""

    files: List[str]
    sglang: Optional[str] = None
    batch_size: int = 1
    steps: int = 0
    activities: List[str] = field(default_factory=list)
    ranks: int = 1
    seconds: float = 0.0
    disturbed: List[str] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
