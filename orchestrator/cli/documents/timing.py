"""Answers of the verbs that time decoding."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.agent.wire_budget import BudgetReport, ProfileReport
from orchestrator.agent.wire_measure import MeasureReport
from orchestrator.results.floor import Floor, Given
from orchestrator.results.model_reads import Read
from orchestrator.results.profile import RankProfile


@dataclass(frozen=True)
class BatchFloor:
    """What reading the weights and the cache must take at one batch size.

    Attributes:
        context: tokens that each stream had, half-way.
        seconds: the shortest time of a step that the memory allows.
        bytes: read by one GPU in a step.
        bandwidth: bytes a second of one GPU.
        efficiency: the floor over the measured time.
    """

    batch_size: int
    context: int
    ranks: int
    seconds: float
    bytes: float
    reads: list[Read]
    reads_source: str
    bandwidth: float
    bandwidth_source: str
    efficiency: float
    remarks: list[str]


@dataclass(frozen=True)
class FloorFound:
    """The floor of each batch size, or the `problem` for which there are none; `given` is what the service's file says of it."""

    batches: list[BatchFloor]
    problem: str | None
    given: Given


@dataclass(frozen=True)
class Measured:
    """Decode timings of the server that runs. `valid` is whether they are to be believed; why not is ``report.invalid``."""

    host: str
    place: str
    service: str
    valid: bool
    report: MeasureReport
    floor: FloorFound


@dataclass(frozen=True)
class BudgetStep:
    """A decode step at one batch size and its parts, in seconds.

    Attributes:
        step: the measured time per output token.
        floor: what the memory's speed allows; null where `floor_problem` says why not.
        floor_inputs: what that is made of.
        gemm: of all matrix multiplications.
        all_reduce: of all sums over the ranks; null where there are none.
        residual: the rest.
    """

    batch_size: int
    step: float
    floor: float | None
    floor_problem: str | None
    floor_inputs: Floor | None
    gemm: float
    all_reduce: float | None
    residual: float
    remarks: list[str]


@dataclass(frozen=True)
class BudgetAccount:
    """Where a step's time goes, by timing its parts alone: `timed`. `not_believed` is what speaks against it."""

    steps: list[BudgetStep]
    not_believed: list[str]
    timed: BudgetReport


@dataclass(frozen=True)
class ProfileAccount:
    """Kernel time of a decode step by class, by rank. `not_believed` is what speaks against it."""

    ranks: list[RankProfile]
    not_believed: list[str]
    report: ProfileReport


@dataclass(frozen=True)
class Budgeted(BudgetAccount):
    """Where a step's time goes. `measured_run` is the run folder whose steps these are, null where they were measured by this call."""

    host: str
    place: str
    service: str
    valid: bool
    measured_run: str | None


@dataclass(frozen=True)
class Profiled(ProfileAccount):
    """Kernel time of a decode step by class, by rank."""

    host: str
    place: str
    service: str
    valid: bool
