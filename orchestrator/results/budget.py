"""Where the time of a decode step goes: what reading must take, what was timed of it alone, and what is left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.agent.wire_budget import AllReduceTiming, BudgetReport, Format, Gemm, GemmTiming
from orchestrator.agent.wire_measure import MeasureReport
from orchestrator.results.account import Account
from orchestrator.results.floor import Floor, Given, floor
from orchestrator.results.weight_formats import BF16, NotCountableError


@dataclass(frozen=True)
class GemmPart:
    """One multiplication's share of a step, over all its layers; seconds, None where it could not be timed in any format.

    Attributes:
        format: that of the timing.
        how: what else than the multiplication itself was timed; an estimate says from what.
        estimated: scaled by bytes from another format than the model's.
    """

    gemm: Gemm
    seconds: float | None
    format: str = ""
    how: str = ""
    estimated: bool = False


@dataclass(frozen=True)
class StepBudget:
    """One batch size. `step` is the measured time per output token, seconds; `floor_problem` says why there is no floor."""

    batch_size: int
    step: float
    parts: tuple[GemmPart, ...]
    all_reduce: AllReduceTiming | None
    floor: Floor | None
    floor_problem: str = ""

    @property
    def gemm(self) -> float:
        return sum(part.seconds or 0.0 for part in self.parts)

    @property
    def reduced(self) -> float:
        """Of all sums over the ranks."""
        found = self.all_reduce
        return 0.0 if found is None or found.seconds is None else found.seconds * found.all_reduce.count

    @property
    def residual(self) -> float:
        """What of the step is neither: attention, norms, routing, sampling, and whatever the host leaves the GPU waiting for."""
        return self.step - self.gemm - self.reduced

    @property
    def cache_floor(self) -> float | None:
        """What reading the KV cache must take, which is in the residual."""
        if self.floor is None:
            return None
        found = [read.bytes for read in self.floor.reads if read.name == "KV cache"]
        return sum(found) / self.floor.bandwidth if found else None

    @property
    def missing(self) -> list[str]:
        """What is not in the sums although it belongs there."""
        names = [part.gemm.name for part in self.parts if part.seconds is None]
        unsummed = self.all_reduce is not None and self.all_reduce.seconds is None
        return [*names, *(["all-reduce"] if unsummed else [])]


@dataclass(frozen=True)
class Budgeted(Account):
    """The parts that were timed, and the sums for each batch size. What speaks against the measured step speaks against it too."""

    timed: BudgetReport
    steps: Sequence[StepBudget]


def step_budgets(measured: MeasureReport, timed: BudgetReport, given: Given) -> list[StepBudget]:
    """A budget for each batch size that was measured and whose parts were timed."""
    budgets = []
    for batch in measured.batches:
        if batch.time_per_output_token is not None:
            found, problem = _floor(measured, given, batch.batch_size)
            budgets.append(step_budget(batch.batch_size, batch.time_per_output_token.median, timed, found, problem))
    return [budget for budget in budgets if budget is not None]


def step_budget(batch_size: int, step: float, timed: BudgetReport, found: Floor | None, problem: str) -> StepBudget | None:
    """The budget of one batch size; None where none of its parts was timed.

    Args:
        batch_size: the batch size.
        step: the measured time per output token, seconds.
        timed: the parts of all batch sizes.
        found: its floor.
        problem: why there is none.
    """
    parts = gemm_parts([item for item in timed.gemms if item.gemm.batch_size == batch_size])
    if not parts:
        return None
    reduce = next((item for item in timed.all_reduces if item.all_reduce.batch_size == batch_size), None)
    return StepBudget(batch_size, step, parts, reduce, found, problem)


def gemm_parts(timings: Sequence[GemmTiming]) -> tuple[GemmPart, ...]:
    """For each multiplication the timing in the model's own format, else that in BF16 scaled by the bytes."""
    by_gemm: dict[tuple[str, int, int, int, int], list[GemmTiming]] = {}
    for item in timings:
        gemm = item.gemm
        by_gemm.setdefault((gemm.name, gemm.rows, gemm.inputs, gemm.outputs, gemm.groups), []).append(item)
    return tuple(_part(found) for found in by_gemm.values())


def _part(timings: Sequence[GemmTiming]) -> GemmPart:
    gemm = timings[0].gemm
    times = {item.format: item for item in timings if item.seconds is not None}
    own = times.get(gemm.format)
    if own is not None and own.seconds is not None:
        return GemmPart(gemm, own.seconds * gemm.count, gemm.format, own.how)
    plain = times.get(Format.BF16)
    if plain is None or plain.seconds is None:
        return GemmPart(gemm, None, how="; ".join(dict.fromkeys(item.problem for item in timings if item.problem)))
    share = gemm.bytes / (gemm.groups * gemm.inputs * gemm.outputs * BF16.bytes_per_value)
    said = "; ".join(filter(None, [f"not timed in {gemm.format}: estimated from BF16 by its bytes", plain.how]))
    return GemmPart(gemm, plain.seconds * gemm.count * share, Format.BF16, said, estimated=True)


def _floor(measured: MeasureReport, given: Given, batch_size: int) -> tuple[Floor | None, str]:
    try:
        return floor(measured.floor, given, batch_size, measured.input_tokens + measured.output_tokens // 2), ""
    except NotCountableError as error:
        return None, str(error)


def budget_remarks(found: StepBudget) -> list[str]:
    """What a reader of the sums must know."""
    lines = [f"not in the sums, as it could not be timed: {', '.join(found.missing)}"] if found.missing else []
    if found.residual < 0:
        lines.append(
            "the parts take longer alone than the whole step: the server's own kernels are faster, or overlap, or several tokens a step"
        )
    estimated = [part.gemm.name for part in found.parts if part.estimated]
    lines += [f"estimated from BF16 by their bytes: {', '.join(estimated)}"] if estimated else []
    other = [part.gemm.name for part in found.parts if part.how and not part.estimated and part.seconds is not None]
    lines += [f"timed as something close to it: {', '.join(other)}"] if other else []
    if found.floor is not None and given_by_hand(found.floor):
        lines.append("the floor is of bytes that somebody has written down, the multiplications are counted from the config")
    return lines


def given_by_hand(found: Floor) -> bool:
    """Whether a floor's bytes are not counted from the model's config."""
    return [read.name for read in found.reads] == ["all"]
