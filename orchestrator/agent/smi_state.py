"""The state of each GPU as nvidia-smi reports it, asked so that a field which this driver doesn't know costs that field only.

An unknown field makes nvidia-smi refuse the whole question with status 2 and name the field on its output (driver 580.159.04); a known one
that the GPU doesn't have is answered with ``[N/A]``.
"""

import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.command import Output
from orchestrator.agent.gpu import SECONDS
from orchestrator.agent.xid import pci_address

Ask = Callable[[Sequence[str], float], Output]
"""Runs a program with a bound (:meth:`doctor_context.Commands.run`)."""

SOURCE = "nvidia-smi --query-gpu"

RECOVERY_ACTION = "gpu_recovery_action"
UNCORRECTED = "ecc.errors.uncorrected.volatile.total"
REMAP_PENDING = "remapped_rows.pending"
REMAP_FAILURE = "remapped_rows.failure"
MIG_MODE = "mig.mode.current"
COMPUTE_MODE = "compute_mode"
FABRIC_STATE = "fabric.state"
FABRIC_STATUS = "fabric.status"

OPTIONAL = (COMPUTE_MODE, UNCORRECTED, REMAP_PENDING, REMAP_FAILURE, MIG_MODE, FABRIC_STATE, FABRIC_STATUS, RECOVERY_ACTION)
"""The youngest last. A driver may know any part of them."""

_FIRST = ("index", "pci.bus_id", "uuid", "name", "memory.used", "memory.total")
_UNKNOWN_FIELD = re.compile(r'Field "([^"]*)" is not a valid field')
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", re.IGNORECASE)
_ABSENT = ("", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d{1,4})")
_SAID_LINES = 6


@dataclass(frozen=True)
class GpuState:
    """One GPU. `values` holds the optional fields that it answered; memory in MiB, None where it isn't told."""

    index: int
    address: str
    uuid: str
    name: str
    memory_used: Optional[int]
    memory_total: Optional[int]
    values: Mapping[str, str] = field(default_factory=dict)
    requires_reset: bool = False
    """nvidia-smi says ``[GPU requires reset]`` in place of a value."""

    @property
    def label(self) -> str:
        return f"GPU {self.index} ({self.address})"

    def count(self, name: str) -> int:
        """A number, 0 where it isn't told."""
        value = self.values.get(name, "")
        return int(value) if value.isascii() and value.isdigit() else 0


class StateReading(NamedTuple):
    """What nvidia-smi said. `problem`: why there may be no GPU in it. `said`: lines that were no rows; `unknown`: fields not known."""

    gpus: List[GpuState]
    problem: Optional[str] = None
    said: Sequence[str] = ()
    unknown: Sequence[str] = ()


def ask_states(ask: Ask, seconds: float = SECONDS) -> StateReading:
    """Ask for everything at once, and again without a field that the driver doesn't know."""
    answer = ask_known(ask, _FIRST, OPTIONAL, seconds)
    return _reading(answer.output, answer.known, answer.unknown)


class KnownAnswer(NamedTuple):
    """What nvidia-smi answered to the fields that it knows: the first ones and `known`, in that order."""

    output: Output
    known: List[str]
    unknown: List[str]


def ask_known(ask: Ask, first: Sequence[str], optional: Sequence[str], seconds: float = SECONDS) -> KnownAnswer:
    """Ask for GPU fields, and again without each of the optional ones that the driver doesn't know."""
    known = list(optional)
    unknown: List[str] = []
    while True:
        output = ask(["nvidia-smi", f"--query-gpu={','.join((*first, *known))}", "--format=csv,noheader,nounits"], seconds)
        named = _UNKNOWN_FIELD.search(output.text + output.errors)
        if output.good or named is None or named[1] not in known:
            return KnownAnswer(output, known, unknown)
        known.remove(named[1])
        unknown.append(named[1])


def _reading(output: Output, optional: Sequence[str], unknown: Sequence[str]) -> StateReading:
    if output.status is None:
        return StateReading([], output.errors, (), unknown)
    gpus = parse_states(output.text, optional)
    said = [line.strip() for line in (output.text + "\n" + output.errors).splitlines() if line.strip() and not _is_row(line, optional)]
    problem = None if output.good else f"nvidia-smi ended with status {output.status}"
    return StateReading(gpus, problem, said[:_SAID_LINES], unknown)


def parse_states(text: str, optional: Sequence[str] = OPTIONAL) -> List[GpuState]:
    """Parse ``--query-gpu`` output (csv, noheader, nounits) of the fields asked for; lines that are no rows are left out."""
    return [_state(line, optional) for line in text.splitlines() if _is_row(line, optional)]


def _is_row(line: str, optional: Sequence[str]) -> bool:
    row = _cells(line)
    return len(row) == len(_FIRST) + len(optional) and _number(row[0]) is not None and _ADDRESS.fullmatch(row[1]) is not None


def _state(line: str, optional: Sequence[str]) -> GpuState:
    row = _cells(line)
    named = zip(optional, row[len(_FIRST) :])  # noqa: B905 - strict= came with Python 3.10
    values = {name: value for name, value in named if value not in _ABSENT}
    return GpuState(
        index=_number(row[0]) or 0,
        address=pci_address(row[1]),
        uuid=_known(row[2]),
        name=_known(row[3]),
        memory_used=_number(row[4]),
        memory_total=_number(row[5]),
        values=values,
        requires_reset=any("requires reset" in value for value in row),
    )


def as_wire(states: Sequence[GpuState]) -> List[wire.Gpu]:
    """The same GPUs for checks that want what crosses the wire; the compute capability was not asked."""
    return [wire.Gpu(state.index, state.uuid, state.name, "", state.memory_used or 0, state.memory_total or 0) for state in states]


def parse_p2p(text: str) -> Dict[Tuple[int, int], str]:
    """Parse ``nvidia-smi topo -p2p r``: the status from one GPU to another (``OK``, ``NS``...), by their indexes; not to themselves.

    The first line is underlined with terminal escapes even into a pipe. Rows shorter or longer than it are left out.
    """
    columns: List[int] = []
    found: Dict[Tuple[int, int], str] = {}
    for line in _ESCAPE.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.split("\t") if cell.strip()]
        indexes = [_gpu_index(cell) for cell in cells]
        if cells and all(index is not None for index in indexes) and not columns:
            columns = [index for index in indexes if index is not None]
        elif columns and len(cells) == len(columns) + 1 and indexes[0] is not None:
            row = dict(zip(columns, cells[1:]))  # noqa: B905 - strict= came with Python 3.10
            found.update({(indexes[0], column): cell for column, cell in row.items() if column != indexes[0]})
    return found


def _gpu_index(cell: str) -> Optional[int]:
    match = _GPU.fullmatch(cell)
    return int(match[1]) if match is not None else None


def _cells(line: str) -> List[str]:
    return [cell.strip() for cell in line.split(",")]


def _known(value: str) -> str:
    return "" if value in _ABSENT else value


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() else None
