"""``fab budget`` over a scripted agent: the screen, the run folder, the document and the exit codes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.wire_budget import AllReduceTiming, BudgetReport, BudgetRequest, Format, GemmTiming
from orchestrator.agent.wire_measure import FloorInputs, Invalid, MeasureReport, Reason
from orchestrator.results.kept_runs import Ending, read_run
from tests.unit.cli.test_measure import REPORT, batch
from tests.unit.cli.test_verbs import Box, box
from tests.unit.flows.fake_agent import FakeAgent, answer
from tests.unit.flows.samples import healthy_agent
from tests.unit.results.test_model_reads import DENSE

__all__ = ["box"]

INPUTS = FloorInputs(config=DENSE, config_source="/models/tiny/config.json", tensor_parallel=2, gpu_names=["NVIDIA H200"])
MEASURED = dataclasses.replace(REPORT, batches=[batch(1), batch(4)], floor=INPUTS)


class TimingAgent(FakeAgent):
    """Answers `budget` about just what it was asked."""

    def call(self, verb: str, request: Any, timeout: float | None = None) -> Any:
        if verb == "budget":
            self.asked.append((verb, request))
            yield from answer(timed(request))
        else:
            yield from super().call(verb, request, timeout)


def timed(request: BudgetRequest, **more: Any) -> BudgetReport:
    gemms = [
        GemmTiming(gemm, kind, seconds, seconds, seconds, 15 if seconds else 0, problem=None if seconds else "this build has none")
        for gemm in request.gemms
        for kind, seconds in ((Format.BF16, 20e-6), (Format.NVFP4, None))
    ]
    sums = [AllReduceTiming(item, 10e-6, 9e-6, 12e-6, 15) for item in request.all_reduces]
    return BudgetReport(gemms, sums, "2.9.1", "NVIDIA H200", len(request.devices), 9.0, **more)


def agent(report: MeasureReport = MEASURED) -> FakeAgent:
    healthy = healthy_agent(measure=[answer(report)])
    return TimingAgent(**healthy._scripts)


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_step_is_measured_first_and_accounted_for(box: Box) -> None:
    asked = agent()

    ended = box.run(asked, "budget", "--batch", "1,4")

    assert ended.code == 0
    [request] = asked.requests("budget")
    assert (request.devices, request.device, request.python) == ([0, 1], "cuda", "/opt/sglang/bin/python")
    assert {gemm.batch_size for gemm in request.gemms} == {1, 4}
    # 4 x 32 multiplications and the head, 20 us each: 2.58 ms; 65 sums of 10 us: 0.65 ms; of 10 ms
    assert "1 measured 10.000 100.0 %" in words(ended.out)
    assert "GEMM 2.580 25.8 %" in words(ended.out)
    assert "all-reduce 0.650 6.5 %" in words(ended.out)
    assert "residual 6.770 67.7 %" in words(ended.out)
    assert "NVFP4 not timed for qkv_proj, o_proj, dense gate_up, dense down, lm_head: this build has none" in words(ended.out)
    assert "nothing speaks against it" in ended.out
    [folder] = box.runs
    assert {path.name for path in folder.iterdir()} >= {"budget.json", "measure.json"}
    kept = json.loads((folder / "budget.json").read_text(encoding="utf-8"))
    assert kept["steps"][0]["residual"] == pytest.approx(6.77e-3)
    assert read_run(folder).ending == Ending(0, "accounted")


def own_lines(screen: str) -> str:
    """The verb's own part of a screen."""
    lines = screen.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("a decode step of"))
    return "\n".join(lines[first : lines.index("nothing speaks against it", first) + 1])


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA T4"], ids=["with a floor", "without one"])
@pytest.mark.parametrize("kept", [False, True], ids=["measured first", "of a kept timing"])
def test_show_has_it_as_the_verb_has_shown_it(box: Box, gpu: str, kept: bool) -> None:
    measured = dataclasses.replace(MEASURED, floor=dataclasses.replace(INPUTS, gpu_names=[gpu]))
    if kept:
        box.run(agent(measured), "measure")
    of = ("--measured", box.runs[0].name) if kept else ()
    told = own_lines(box.run(agent(measured), "budget", *of).out)
    folder = next(path for path in box.runs if "-budget-" in path.name)

    shown = box.run(agent(), "show", folder.name)

    assert ("the memory bandwidth of NVIDIA T4 is not known" in words(told)) == (gpu == "NVIDIA T4")
    assert "residual" in told
    assert own_lines(shown.out) == told
    assert ("decode of glm5" in shown.out) != kept


def test_the_report_has_it_beside_the_timing(box: Box) -> None:
    box.run(agent(), "budget")
    out = box.folder / "page.html"

    made = box.run(agent(), "report", "--out", str(out), "--json").document

    assert (made["timings"], made["changes"], made["accounts"]) == (1, 0, 1)
    assert "parts timed alone on 2 x NVIDIA H200" in out.read_text(encoding="utf-8")
    assert "1 timing, 0 changes and 1 account are in" in box.run(agent(), "report", "--out", str(out)).out


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"orchestrator.budget/1"', '"orchestrator.budget/0"', "budget.json has the schema orchestrator.budget/0"),
        ('"timed"', '"timid"', "budget.json can't be understood: 'timed' is missing"),
        ('"bandwidth":', '"width":', "budget.json can't be understood: "),
    ],
)
def test_what_can_not_be_understood_any_more_is_told(box: Box, old: str, new: str, says: str) -> None:
    box.run(agent(), "budget")
    path = box.runs[0] / "budget.json"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")

    ended = box.run(agent(), "show")

    assert ended.code == 0
    assert says in ended.out


def test_show_as_json_has_the_same_document(box: Box) -> None:
    document = box.run(agent(), "budget", "--json").document

    account = box.run(agent(), "show", "--json").document["account"]

    assert account["steps"] == document["steps"]
    assert account["timed"] == document["timed"]


def test_a_kept_timing_is_accounted_for_without_measuring_again(box: Box) -> None:
    assert box.run(agent(), "measure").code == 0
    asked, kept = agent(), box.runs[0].name

    ended = box.run(asked, "budget", "--measured", kept, "--json")

    assert ended.code == 0
    assert asked.requests("measure") == []
    assert ended.document["measured_run"] == kept
    assert [step["batch_size"] for step in ended.document["steps"]] == [1, 4]


def test_a_step_that_is_not_to_be_believed_makes_its_budget_so(box: Box) -> None:
    ended = box.run(agent(dataclasses.replace(MEASURED, invalid=[Invalid(Reason.OTHERS, "3 requests", 4)])), "budget")

    assert ended.code == 9
    assert "the measured step: others: 3 requests [batch 4]" in words(ended.out)


def test_a_model_that_is_not_understood_is_refused(box: Box) -> None:
    asked = agent(dataclasses.replace(MEASURED, floor=dataclasses.replace(INPUTS, config={})))

    ended = box.run(asked, "budget")

    assert ended.code == 3
    assert asked.requests("budget") == []
    assert "config.json could not be read" in words(ended.err)


def test_one_rank_has_no_all_reduce(box: Box) -> None:
    ended = box.run(agent(dataclasses.replace(MEASURED, floor=dataclasses.replace(INPUTS, tensor_parallel=1))), "budget")

    assert ended.code == 0
    assert "one rank, no all-reduce" in ended.out


def test_a_run_of_another_service_is_no_measure_of_this_one(box: Box) -> None:
    box.run(agent(), "measure")
    path: Path = box.runs[0] / "measure.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"service": "glm5"', '"service": "other"'), encoding="utf-8")

    assert box.run(agent(), "budget", "--measured", box.runs[0].name).code == 2
