"""A report whose figures are chosen, for tests that look at what becomes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from orchestrator.agent.wire_budget import AllReduce, AllReduceTiming, BudgetReport, Format, Gemm, GemmTiming, ProfileReport
from orchestrator.results.budget import Budgeted, step_budget
from orchestrator.results.course import read_course
from orchestrator.results.floor import Floor
from orchestrator.results.kept_runs import Accounted, Ending, KeptRun, RunRecord, read_run
from orchestrator.results.measurements import Measurement
from orchestrator.results.model_reads import Read, Step
from orchestrator.results.profile import ClassTime, Profiled, RankProfile
from orchestrator.results.report_data import AccountedRun, Change, Report, ServiceReport, Timing
from tests.unit.results.kept_samples import LAB_RUNS, RELAUNCHED, RESTORED, doubted, timed

LONG = "flashinfer_cutlass+piecewise_cuda_graph+single_batch_overlap"
DOUBT = "others: 3 requests ran at once, 2 were ours"


def chosen() -> list[Measurement]:
    """Three backends; the last one's only timing is not to be believed."""
    return [
        timed("one", "flashinfer_trtllm", [(1, 20.0), (4, 24.0)]),
        timed("two", "flashinfer_cutedsl", [(1, 10.0), (4, 12.0)], sglang="0.5.22"),
        timed("three", "flashinfer_cutedsl", [(1, 12.0), (4, 12.0)], began=2000.0),
        doubted(timed("four", LONG, [(1, 15.0), (4, 18.0)], began=3000.0)),
    ]


def service_of(timings: Sequence[Measurement], changes: Sequence[str] = (RESTORED, RELAUNCHED)) -> ServiceReport:
    numbered = [Timing(number, item, (DOUBT,) if item.report.invalid else ()) for number, item in enumerate(timings, 1)]
    runs = [read_run(LAB_RUNS / name) for name in changes]
    return ServiceReport("glm5", "gpu1/101", tuple(numbered), tuple(Change(run, read_course(run)) for run in runs))


def budgeted(text: str = "NVIDIA H200", doubts: Sequence[str] = ()) -> Budgeted:
    """A step of 5 ms: 1.6 ms are its floor, 1.2 ms its multiplications, 0.4 ms its sums over two ranks."""
    gemm = Gemm("o_proj", 4, 1, 1000, 2000, count=60)
    sums = AllReduceTiming(AllReduce(4, 8192, 40), 10e-6, 9e-6, 12e-6, 15)
    timed = BudgetReport([GemmTiming(gemm, Format.BF16, 20e-6, 19e-6, 21e-6, 15)], [sums], "2.9.1", text, 2)
    reads = (Read("weights", 2.5e9, "BF16"), Read("KV cache", 0.3e9, "BF16"))
    step = step_budget(4, 5e-3, timed, Floor(Step(4, 1000, 2), reads, "config.json", 1.75e12, "a data sheet"), "")
    assert step is not None
    return Budgeted(doubts=doubts, timed=timed, steps=[step])


def profiled(
    text: str = "nvjet_tst_128x8", doubts: Sequence[str] = ("steps of batch 9 are in the trace: others' requests ran",)
) -> Profiled:
    """A step of 1 ms that is busy for 0.6 ms of it, in two ranks."""
    classes = {"GEMM": ClassTime(4e-4, 3, (text,)), "other": ClassTime(2e-4, 1, (text, "mystery"))}
    ranks = [RankProfile(name, True, "SGLang's marks", (1e-3, 1.2e-3), 1e-3, 6e-4, 0.0, 4e-4, classes) for name in (text, "1-TP-1.json.gz")]
    return Profiled(doubts=doubts, report=ProfileReport([], "0.5.23", 4, 2, ranks=2), ranks=ranks)


def accounted(account: Budgeted | Profiled | None, verb: str, problem: str = "") -> AccountedRun:
    record = RunRecord(verb, ("gpu1", "glm5"), 1_796_050_000.0, "kim@laptop", ("fab", verb), "0.1.0")
    ending = Ending(0, "accounted") if account is None or account.valid else Ending(9, "not believed")
    return AccountedRun(
        KeptRun(Path(f"20261201T000000Z-{verb}-gpu1-glm5"), record, account=Accounted(ending, "gpu1/101")), account, problem
    )


def sample_report() -> Report:
    accounts = (accounted(budgeted(), "budget"), accounted(profiled(), "profile"), accounted(None, "budget", "budget.json is no JSON"))
    return Report(
        (dataclasses.replace(service_of(chosen()), accounts=accounts),), 1_796_100_000.0, "0.1.0", (("notes", "run.json: No such file"),)
    )


def hostile_report(text: str) -> Report:
    """Every text of a run that a box or a person has a say in is `text`."""
    item = timed("one", text, [(1, 20.0)], sglang=text, requested_kernels={text: text})
    item = dataclasses.replace(item, label=text)
    other = dataclasses.replace(timed("two", "auto", [(1, 10.0)]), label=text)
    report = service_of([item, other], changes=())
    run = read_run(LAB_RUNS / RESTORED)
    assert run.result is not None
    assert run.result.failure is not None
    failure = dataclasses.replace(run.result.failure, summary=text, evidence=[text], advice=text, category=text)
    run = dataclasses.replace(
        run,
        result=dataclasses.replace(run.result, failure=failure, service=text),
        record=dataclasses.replace(run.record, operator=text, verb=text),
        plan={"launch": {"backend": text}, "place": text, "host": text, "service": text},
    )
    course = read_course(run)
    assert course is not None
    step = course.steps[0]
    course = dataclasses.replace(course, steps=(dataclasses.replace(step, reason=text, span=dataclasses.replace(step.span, name=text)),))
    timings = tuple(dataclasses.replace(timing, doubts=(text,)) for timing in report.timings)
    accounts = (
        accounted(budgeted(text, [text]), text),
        accounted(profiled(text, [text]), "profile"),
        accounted(None, "budget", text),
    )
    report = dataclasses.replace(report, service=text, place=text, changes=(Change(run, course),), timings=timings, accounts=accounts)
    return Report((report,), 1_796_100_000.0, text, ((text, text),))
