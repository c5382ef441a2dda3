"""Following a server's log: lines as they come, the phase of a load, figures worth keeping. Nothing here decides readiness.

Texts are SGLang's, 0.5.6 to 0.5.23: a line is ``[2026-11-29 12:18:55 TP0] text`` (milliseconds and ranks optional), but
tracebacks, warnings and progress bars have no prefix, bars end in a carriage return and may be glued to the next line.
"""

import codecs
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?)((?: [A-Z_]+\d+)*)\] ?(.*)$", re.DOTALL)
_GLUED = re.compile(r"(?<=.)(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_LONGEST_PARTIAL = 1 << 20


@dataclass(frozen=True)
class LogLine:
    """One line without its prefix, colours and carriage returns. `stamp` is None where there was no prefix."""

    text: str
    ranks: Tuple[str, ...] = ()
    stamp: Optional[str] = None

    @property
    def leads(self) -> bool:
        """Whether a rank 0, or a process without a rank, wrote it: the one whose phase is shown."""
        return all(rank.rstrip("0123456789") + "0" == rank for rank in self.ranks)


def parse_line(raw: str) -> LogLine:
    """Take one line apart."""
    text = _ANSI.sub("", raw).rstrip()
    match = _PREFIX.match(text)
    if match is None:
        return LogLine(text)
    stamp, ranks, rest = match.groups()
    return LogLine(rest, tuple(ranks.split()), stamp)


def split_lines(text: str) -> List[str]:
    """Lines of a log; carriage returns end one too, and a log line glued to a progress bar is one of its own."""
    lines: List[str] = []
    for piece in re.split(r"\r?\n|\r", text):
        lines.extend(_GLUED.split(piece))
    return lines


_MOST_AT_ONCE = 1 << 20
_MOST_BEHIND = 1 << 24
"""Bytes. Who reads a log that is written in a loop to its end never comes to anything else; beyond this the middle is left out."""


class LogFollower:
    """Reads what is appended to a log file, through rotation (by renaming or by truncation) and before it exists."""

    def __init__(self, path: Path, from_end: bool = False) -> None:
        self._path = path
        self._descriptor: Optional[int] = None
        self._offset = 0
        self._inode: Tuple[int, int] = (0, 0)
        self._partial = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if from_end:
            self._skip_to_end()

    def _skip_to_end(self) -> None:
        if self._open():
            self._offset = os.fstat(self._descriptor).st_size if self._descriptor is not None else 0

    @property
    def partial(self) -> str:
        """What came after the last line end: a progress bar that is being drawn stands here."""
        return self._partial

    def read(self) -> List[LogLine]:
        """The complete lines that were added since the last call."""
        raw = self._read_all()
        if not raw:
            return []
        pieces = split_lines(self._partial + self._decoder.decode(raw))
        self._partial = pieces.pop()[-_LONGEST_PARTIAL:]
        return [parse_line(piece) for piece in pieces if piece.strip()]

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read_all(self) -> bytes:
        if self._descriptor is None and not self._open():
            return b""
        raw = self._read_open_file()
        if self._was_renamed():
            self.close()
            if self._open():
                raw += self._read_open_file()
        return raw

    def _read_open_file(self) -> bytes:
        if self._descriptor is None:
            return b""
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:
            self._offset = 0
        pieces: List[bytes] = []
        if size - self._offset > _MOST_BEHIND:
            self._offset = size - _MOST_AT_ONCE
            pieces.append(b"\n")
        while sum(map(len, pieces)) < _MOST_AT_ONCE:
            piece = os.pread(self._descriptor, 1 << 18, self._offset)
            if not piece:
                break
            pieces.append(piece)
            self._offset += len(piece)
        return b"".join(pieces)

    def _open(self) -> bool:
        try:
            self._descriptor = os.open(str(self._path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        status = os.fstat(self._descriptor)
        self._inode = (status.st_dev, status.st_ino)
        self._offset = 0
        return True

    def _was_renamed(self) -> bool:
        try:
            status = os.stat(str(self._path))
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) != self._inode


class Phase:
    """The phases of a load, in their usual order (0.5.18+ may load real weights after graph capture)."""

    IMPORTS = "imports"
    DISTRIBUTED = "distributed"
    GATE = "gate"
    """A staged server says that it waits to be activated, which proves nothing: one that could not bind its gate's port says so too."""
    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    AUTOTUNE = "autotune"
    GRAPH_CAPTURE = "graph_capture"
    WARM_UP = "warm_up"
    READY = "ready"
    """The log says so, which proves nothing: a server that failed to bind its port says it too."""


FACT_PREFIX = "phase."
"""Of the names of the facts that tell how long each phase of a load took."""
BEYOND_GATE = frozenset({Phase.WEIGHTS, Phase.KV_CACHE, Phase.AUTOTUNE, Phase.GRAPH_CAPTURE, Phase.WARM_UP, Phase.READY})
"""The phases that a server comes to only when it was activated, or has no gate."""


_STARTS: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    (Phase.DISTRIBUTED, re.compile(r"Init (?:torch distributed|parallel) begin\.")),
    (Phase.GATE, re.compile(r"Gated launch waiting for activation")),
    (Phase.WEIGHTS, re.compile(r"Gated launch activated|Load weight begin\.|^(?:Loading|Multi-thread loading)[^:]*shards[^:]*: +\d+%")),
    (Phase.KV_CACHE, re.compile(r"Using KV cache dtype:|(?:KV|Mamba) Cache is allocated|KV Cache VA upper bound")),
    (Phase.AUTOTUNE, re.compile(r"Running FlashInfer autotune")),
    (Phase.GRAPH_CAPTURE, re.compile(r"Capture .*graph begin|^(?:Capturing|Compiling) (?:num tokens|batches)", re.IGNORECASE)),
    (Phase.WARM_UP, re.compile(r"Application startup complete|Uvicorn running on")),
    (Phase.READY, re.compile(r"The server is fired up and ready to roll!")),
)

_BARS: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    ("shards", re.compile(r"(?:Loading|Multi-thread loading)[^:]*(?:shards|loader|Streamer|InstantTensor)[^:]*: +\d+%.*?(\d+)/(\d+)")),
    ("prefill sizes", re.compile(r"(?:Capturing|Compiling) num tokens.*?(\d+)/(\d+) \[")),
    ("batch sizes", re.compile(r"Capturing batches.*?(\d+)/(\d+) \[")),
    ("DeepGEMM kernels", re.compile(r"DeepGEMM warmup: +\d+%.*?(\d+)/(\d+)")),
)

_NOTES: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    ("done in {} s", re.compile(r"(?:Load weight end|Capture .*graph end)\..*?elapsed[=:] ?([\d.]+) s", re.IGNORECASE)),
    ("{} tokens", re.compile(r"KV Cache is allocated\..*?#tokens: (\d+)")),
)

_FIGURES: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    ("max_total_num_tokens", re.compile(r"^max_total_num_tokens=(\d+)")),
    ("attention_backend", re.compile(r"Use (\w+) backend by default")),
    ("attention_backend", re.compile(r"Using (\w+) as attention backend")),
    ("moe_runner_backend", re.compile(r"Use (\w+) as MoE runner backend")),
)
"""Facts that the log tells in words of its own."""

_TRITON_MOE = re.compile(r"Using (?:default )?MoE kernel config")
"""Only the Triton kernels look such a file up (layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py)."""


@dataclass
class PhaseTracker:
    """Where a load stands. `history` holds each phase with the moment it began, by the clock that `feed` is given."""

    started: float = 0.0
    phase: str = Phase.IMPORTS
    detail: str = ""
    figures: Dict[str, str] = field(default_factory=dict)
    history: List[Tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history.append((self.phase, self.started))

    @property
    def entered(self) -> float:
        """When the current phase began."""
        return self.history[-1][1]

    def feed(self, line: LogLine, now: float) -> bool:
        """Take one line in; whether phase or detail changed."""
        before = (self.phase, self.detail)
        self._note_figures(line.text)
        if line.leads:
            self._note_phase(line.text, now)
            self._note_detail(line.text)
        return (self.phase, self.detail) != before

    def feed_partial(self, text: str) -> bool:
        """Take in a progress bar that has no line end yet; whether the detail changed."""
        before = self.detail
        self._note_detail(_ANSI.sub("", text))
        return self.detail != before

    def seconds(self, now: float) -> Dict[str, float]:
        """How long each phase took; one that came twice is summed, the current one lasts until `now`."""
        ends = [moment for _, moment in self.history[1:]] + [now]
        totals: Dict[str, float] = {}
        for (phase, begun), ended in zip(self.history, ends):  # noqa: B905 - Python 3.9 has no strict=
            totals[phase] = totals.get(phase, 0.0) + ended - begun
        return totals

    def _note_phase(self, text: str, now: float) -> None:
        for phase, pattern in _STARTS:
            if phase != self.phase and pattern.search(text):
                self.phase, self.detail = phase, ""
                self.history.append((phase, now))
                return

    def _note_detail(self, text: str) -> None:
        for name, pattern in _BARS:
            found = pattern.search(text)
            if found:
                self.detail = f"{name} {found.group(1)}/{found.group(2)}"
                return
        for form, pattern in _NOTES:
            found = pattern.search(text)
            if found:
                self.detail = form.format(found.group(1))
                return

    def _note_figures(self, text: str) -> None:
        for name, pattern in _FIGURES:
            found = pattern.search(text)
            if found:
                self.figures[name] = found.group(1)
        if _TRITON_MOE.search(text):
            self.figures["moe_kernels"] = "triton"


@dataclass(frozen=True)
class BatchLine:
    """A ``Decode batch`` or ``Prefill batch`` line: its fields by name, as printed."""

    kind: str
    fields: Dict[str, str]

    def number(self, name: str) -> Optional[float]:
        """One field as a number; None where it is absent or no number."""
        try:
            return float(self.fields[name])
        except (KeyError, ValueError):
            return None

    @property
    def graph(self) -> Optional[bool]:
        """Whether the batch ran from a captured graph (``cuda graph``, ``cpu graph``, ...)."""
        for name, value in self.fields.items():
            if name.endswith(" graph"):
                return value == "True"
        return None


_BATCH = re.compile(r"^(Decode|Prefill) batch(?: \[\d+\])?, (.*)$")


def parse_batch(text: str) -> Optional[BatchLine]:
    """Read a batch line of any version as comma-separated ``key: value``."""
    match = _BATCH.match(text)
    if match is None:
        return None
    return BatchLine(match.group(1).lower(), dict(_fields(match.group(2))))


def _fields(text: str) -> Iterator[Tuple[str, str]]:
    for item in text.split(", "):
        name, separator, value = item.partition(": ")
        if separator:
            yield name.strip(), value.strip().rstrip(",")
