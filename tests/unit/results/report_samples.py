"""A report whose figures are chosen, for tests that look at what becomes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from orchestrator.results.course import read_course
from orchestrator.results.kept_runs import read_run
from orchestrator.results.measurements import Measurement
from orchestrator.results.report_data import Change, Report, ServiceReport, Timing
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


def sample_report() -> Report:
    return Report((service_of(chosen()),), 1_796_100_000.0, "0.1.0", (("notes", "run.json: No such file"),))


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
    report = dataclasses.replace(report, service=text, place=text, changes=(Change(run, course),), timings=timings)
    return Report((report,), 1_796_100_000.0, text, ((text, text),))
