"""The sums of a decode budget, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.agent.wire_budget import AllReduce, AllReduceTiming, BudgetReport, Format, Gemm, GemmTiming
from orchestrator.agent.wire_measure import BatchTiming, Covariates, FloorInputs, Interval, MeasureReport
from orchestrator.results.budget import StepBudget, budget_remarks, gemm_parts, step_budgets
from orchestrator.results.floor import Given

GEMM = Gemm("o_proj", 1, 1, 1000, 2000, count=10, format=Format.BF16, bytes=4e6)
FOUR = dataclasses.replace(GEMM, name="gate_up", format=Format.NVFP4, bytes=1.125e6)
SUM = AllReduceTiming(AllReduce(1, 8192, 21), 20e-6, 19e-6, 22e-6, 15)


def timing(gemm: Gemm, kind: str, microseconds: float | None, how: str = "") -> GemmTiming:
    seconds = None if microseconds is None else microseconds * 1e-6
    return GemmTiming(gemm, kind, seconds, seconds, seconds, 15, how, None if microseconds else "this build has none")


def measured(milliseconds: float) -> MeasureReport:
    value = milliseconds / 1000
    batch = BatchTiming(1, time_per_output_token=Interval(value, value, value, 0.97, 6))
    return MeasureReport("/generate", 256, 128, {}, 0.0, 1.0, [batch], [], Covariates(), FloorInputs())


def only(timings: list[GemmTiming], milliseconds: float = 5.0, sums: list[AllReduceTiming] | None = None) -> StepBudget:
    report = BudgetReport(timings, [SUM] if sums is None else sums)
    (found,) = step_budgets(measured(milliseconds), report, Given(2.86, 1800.0))
    return found


def test_the_parts_and_the_rest_make_the_step() -> None:
    found = only([timing(GEMM, Format.BF16, 50.0), timing(FOUR, Format.BF16, 70.0), timing(FOUR, Format.NVFP4, 30.0)])

    assert found.gemm == pytest.approx(10 * 50e-6 + 10 * 30e-6)
    assert found.reduced == pytest.approx(21 * 20e-6)
    assert found.residual == pytest.approx(5e-3 - 0.8e-3 - 0.42e-3)
    assert found.floor is not None
    assert found.floor.seconds == pytest.approx(2.86 / 1800)
    assert not [line for line in budget_remarks(found) if "estimated" in line or "not in the sums" in line]


def test_a_format_that_the_build_has_not_is_estimated_from_bf16_by_bytes_and_says_so() -> None:
    (part,) = gemm_parts([timing(FOUR, Format.BF16, 80.0), timing(FOUR, Format.NVFP4, None)])

    assert part.estimated
    assert part.seconds == pytest.approx(10 * 80e-6 * 0.5625 / 2)
    assert "estimated from BF16 by their bytes: gate_up" in budget_remarks(only([timing(FOUR, Format.BF16, 80.0)]))


def test_what_could_not_be_timed_at_all_is_named_and_not_in_the_sums() -> None:
    found = only(
        [timing(GEMM, Format.BF16, 50.0), timing(FOUR, Format.BF16, None)], sums=[AllReduceTiming(SUM.all_reduce, problem="hangs")]
    )

    assert found.gemm == pytest.approx(500e-6)
    assert (found.reduced, found.missing) == (0.0, ["gate_up", "all-reduce"])
    assert budget_remarks(found)[0] == "not in the sums, as it could not be timed: gate_up, all-reduce"


def test_parts_that_take_longer_than_the_step_are_said() -> None:
    assert any("longer alone than the whole step" in line for line in budget_remarks(only([timing(GEMM, Format.BF16, 900.0)])))


def test_without_a_bandwidth_there_is_no_floor_and_the_rest_stands() -> None:
    (found,) = step_budgets(measured(5.0), BudgetReport([timing(GEMM, Format.BF16, 50.0)], []), Given())

    assert (found.floor, found.floor_problem) == (None, "the memory bandwidth of the GPU is not known")
    assert found.residual == pytest.approx(4.5e-3)


def test_a_batch_size_that_was_not_measured_is_left_out() -> None:
    other = dataclasses.replace(GEMM, batch_size=4)
    assert step_budgets(measured(5.0), BudgetReport([timing(other, Format.BF16, 50.0)], []), Given()) == []
