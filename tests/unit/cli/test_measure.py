"""``fab measure`` over a scripted agent: the screen, the run folder, the document and the exit codes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting
from orchestrator.agent.wire_measure import (
    SCHEMA,
    BatchTiming,
    Covariates,
    FloorInputs,
    Gaps,
    GpuSeries,
    Interval,
    Invalid,
    MeasureReport,
    OwnWord,
    Reason,
    RepeatTiming,
    Source,
)
from orchestrator.cli.blocks import Line, Table
from orchestrator.cli.measure_text import covariate_lines, gpu_lines, measure_blocks
from orchestrator.flows.measure import Measured
from tests.unit.cli.test_verbs import Box, box
from tests.unit.flows.fake_agent import FakeAgent, answer
from tests.unit.flows.samples import healthy_agent

__all__ = ["box"]


def test_a_mistyped_list_of_batch_sizes_says_what_to_read(box: Box) -> None:
    ended = box.run(healthy_agent(), "measure", "--batch", "1;4")
    assert (ended.code, ended.err.splitlines()[-1]) == (2, "next: fab measure --help")


GAPS = Gaps(0.0099, 0.0101, 0.011, 0.02, 255)
REPEAT = RepeatTiming(1000.0, 3.0, [0.05], 0.01, 2.55, 255, GAPS, 100.0, 100.0, 256, 256, 256)
GPU = GpuSeries(0, "GPU-0", "NVIDIA B200", 9, sm_clock=[1900.0, 1980.0, 1980.0], power=[290.0, 300.0, 310.0])


def interval(median: float) -> Interval:
    return Interval(median, median * 0.99, median * 1.01, 0.96875, 6)


def batch(size: int, difference: float = 0.001) -> BatchTiming:
    word = OwnWord(Source.LOG, 0.01, 30, difference)
    said = ["batch 4: 5.0% more"] if abs(difference) > 0.03 else []
    return BatchTiming(
        batch_size=size,
        repeats=[REPEAT] * 6,
        time_to_first_token=interval(0.05),
        time_per_output_token=interval(0.01),
        tokens_per_second_per_stream=interval(100.0),
        tokens_per_second=interval(100.0 * size),
        own_words=[word],
        disagreements=said,
    )


REPORT = MeasureReport(
    "/v1/completions",
    256,
    256,
    {"temperature": 0.0},
    1000.0,
    60.0,
    [batch(1), batch(4)],
    [],
    Covariates(
        sglang="0.5.23",
        packages={"torch": "2.9.1+cu130", "flashinfer_python": "0.6.1"},
        kernel="6.8.12-pve",
        driver="580.159.04",
        backend="flashinfer_cutedsl",
        launch_id="LAUNCH",
        age=75.0,
        cold_caches=[],
        gpus=[GPU, dataclasses.replace(GPU, index=1)],
        knobs=[KnobResult(KnobSetting("sysctl", "kernel.numa_balancing"), KnobOutcome.OBSERVED, {"": "0"}, {"": "0"})],
        cpuset="0-15",
    ),
    FloorInputs(),
)
INVALID = dataclasses.replace(REPORT, invalid=[Invalid(Reason.OTHERS, "3 requests ran at once, 2 were ours", 4, 1)])


def agent(report: MeasureReport = REPORT) -> FakeAgent:
    return healthy_agent(measure=[answer(report)])


def text(report: MeasureReport) -> str:
    blocks = measure_blocks("glm5", "gpu1/101", Measured(report))
    lines = [block.text if isinstance(block, Line) else "\n".join(" ".join(row) for row in block.rows) for block in blocks]
    notes = [note for block in blocks if isinstance(block, Table) for note in block.notes]
    return "\n".join([*lines, *notes])


def test_the_screen_has_the_figures_what_they_depend_on_and_the_run_folder(box: Box) -> None:
    ended = box.run(agent(), "measure")

    assert ended.code == 0
    for words in ("10.00 (9.90-10.10)", "tok/s a stream", "SGLang 0.5.23", "driver 580.159.04", "nothing speaks against it"):
        assert words in ended.out
    [folder] = box.runs
    assert ended.out.splitlines()[-1] == f"kept in {folder}"
    kept = json.loads((folder / "measure.json").read_text(encoding="utf-8"))
    assert (kept["schema"], kept["valid"], kept["service"]) == (SCHEMA, True, "glm5")
    assert wire.from_json(MeasureReport, kept["report"]).batches == REPORT.batches


def test_what_is_not_to_be_believed_is_kept_and_exits_with_9(box: Box) -> None:
    ended = box.run(agent(INVALID), "measure", "--json")

    assert ended.code == 9
    assert ended.document["valid"] is False
    assert ended.document["exit_code"] == 9
    assert json.loads((box.runs[0] / "measure.json").read_text(encoding="utf-8"))["valid"] is False


def test_the_flags_reach_the_box(box: Box) -> None:
    asked = agent()

    flags = ("--batch", "1,8,8", "--input", "32", "--output", "64", "--repeats", "3", "--temperature", "0.8", "--limit", "60")
    assert box.run(asked, "measure", *flags).code == 0

    [request] = asked.requests("measure")
    assert (request.batch_sizes, request.input_tokens, request.output_tokens) == ([1, 8], 32, 64)
    assert (request.repeats, request.temperature, request.seconds) == (3, 0.8, 60.0)


@pytest.mark.parametrize("flags", [("--batch", ""), ("--batch", "1,x"), ("--batch", "0"), ("--output", "1"), ("--repeats", "none")])
def test_flags_that_make_no_sense(box: Box, flags: tuple[str, str]) -> None:
    asked = agent()

    assert box.run(asked, "measure", *flags).code == 2
    assert asked.asked == []


def test_a_disagreement_and_the_reasons_are_told() -> None:
    shown = text(dataclasses.replace(INVALID, batches=[batch(1), batch(4, 0.05)]))

    assert "batch 4: 5.0% more" in shown
    assert "not to be believed:" in shown
    assert "others: 3 requests ran at once, 2 were ours [batch 4]" in shown
    assert "+5.0% (decode batch lines)" in shown


def test_a_batch_size_that_was_left_out_says_why() -> None:
    shown = text(dataclasses.replace(REPORT, batches=[BatchTiming(64, skipped="the server runs 16 requests at once")]))

    assert "64 - - - -" in shown
    assert "the server runs 16 requests at once" in shown


def test_few_repeats_are_told() -> None:
    few = dataclasses.replace(batch(1), time_per_output_token=Interval(0.01, 0.009, 0.011, 0.75, 3))

    assert "of 3 repeats only in 75%" in text(dataclasses.replace(REPORT, batches=[few]))


def test_what_it_depends_on_is_a_line_each() -> None:
    lines = covariate_lines(REPORT.covariates)

    assert lines[0] == "SGLang 0.5.23, torch 2.9.1+cu130, flashinfer_python 0.6.1"
    assert lines[2] == "backend flashinfer_cutedsl, launch LAUNCH, 1 min 15 s after its start, warm caches"
    assert "GPU 0, 1 NVIDIA B200, 1980 MHz (1900-1980), 300 W (290-310)" in lines
    assert "knobs: kernel.numa_balancing 0" in lines


def test_a_gpu_that_is_held_back_is_named() -> None:
    lines: list[Any] = gpu_lines([GPU, dataclasses.replace(GPU, index=1, reasons={"sw_power_cap": 9, "gpu_idle": 1})])

    assert lines[-1] == "GPU 1: sw_power_cap in 9 of 9 samples"


def test_the_floor_is_beside_the_times_with_its_inputs(box: Box) -> None:
    service = box.folder / "inventory" / "services" / "glm5.yml"
    said = "floor: {gigabytes_per_token: 2.86, memory_bandwidth: 1800.0, tokens_per_second: 309.0}\n"
    service.write_text(service.read_text(encoding="utf-8") + said, encoding="utf-8")

    ended = box.run(agent(), "measure")

    words = " ".join(ended.out.split())
    assert "batch 1: floor 1.59 ms a token (629.4 tok/s a stream): 2.86 GB a GPU at 1800 GB/s" in words
    assert "measured 10.0 ms (100.00 tok/s): 15.9 % of the floor's speed" in words
    assert "309 tok/s was noted in floor: of the service glm5" in words
    assert "batch 4: floor 1.59 ms" in words
    kept = json.loads((box.runs[0] / "measure.json").read_text(encoding="utf-8"))
    assert kept["floor"]["gigabytes_per_token"] == 2.86


def test_the_floor_is_in_the_document_too(box: Box) -> None:
    service = box.folder / "inventory" / "services" / "glm5.yml"
    missing = box.run(agent(), "measure", "--json").document["floor"]
    said = "floor: {gigabytes_per_token: 2.86, memory_bandwidth: 1800.0}\n"
    service.write_text(service.read_text(encoding="utf-8") + said, encoding="utf-8")

    found = box.run(agent(), "measure", "--json").document["floor"]

    assert (missing["batches"], missing["problem"]) == ([], "the memory bandwidth of the GPU is not known")
    assert (found["problem"], found["given"]["memory_bandwidth"]) == (None, 1800.0)
    one = found["batches"][0]
    assert (one["batch_size"], one["bytes"], one["bandwidth"]) == (1, 2.86e9, 1.8e12)
    assert one["seconds"] == pytest.approx(1.589e-3, rel=1e-3)
    assert one["efficiency"] == pytest.approx(0.1589, rel=1e-3)
    assert one["reads"] == [{"name": "all", "bytes": 2.86e9, "how": "floor: of the service glm5"}]


def test_a_floor_that_nobody_can_tell_says_what_is_missing(box: Box) -> None:
    words = " ".join(box.run(agent(), "measure").out.split())

    assert "the memory bandwidth of the GPU is not known; floor: in the service's file can say" in words
