"""What measure asks of the service's place and of its host, and what becomes of the answer."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, PlaceKind, TuneReport
from orchestrator.agent.wire_measure import Covariates, FloorInputs, Invalid, MeasureReport, Reason
from orchestrator.errors import ConnectError
from orchestrator.flows.measure import KNOBS, MeasureOptions, measure, reasons, told_knobs
from orchestrator.flows.target import Target
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer, progress
from tests.unit.flows.samples import healthy_agent

NUMA = KnobSetting("sysctl", "kernel.numa_balancing")
SEEN_INSIDE = KnobResult(NUMA, KnobOutcome.OBSERVED, {"": "0"}, {"": "0"})
ON_THE_HOST = KnobResult(NUMA, KnobOutcome.OBSERVED, {"": "1"}, {"": "1"})
REPORT = MeasureReport("/v1/completions", 256, 256, {}, 1000.0, 60.0, [], [], Covariates(knobs=[SEEN_INSIDE]), FloorInputs())


def box(report: MeasureReport = REPORT) -> FakeBox:
    agent = healthy_agent(measure=[[progress("MEASURE", "timing", 1.0, "batch 1"), *answer(report)]])
    return FakeBox(agent, host=FakeAgent(tune=[answer(TuneReport([ON_THE_HOST], []))]))


def test_the_services_own_thresholds_go_with_it(target: Target) -> None:
    asked = box()
    heard = Heard()

    found = measure(target, MeasureOptions([1, 8], 64, 32, 3, 100.0), heard, asked.connect, asked.open)

    [request] = asked.agent.requests("measure")
    assert (request.batch_sizes, request.input_tokens, request.output_tokens, request.repeats, request.seconds) == (
        [1, 8],
        64,
        32,
        3,
        100.0,
    )
    assert (request.service, request.port) == (target.service.name, target.service.port)
    assert request.policy.likelihood_floor == target.service.policy.likelihood_floor
    assert heard.phases == ["timing"]
    assert (found.valid, found.exit_code) == (True, 0)


def test_the_hosts_own_knobs_count(target: Target) -> None:
    asked = box()

    found = measure(target, MeasureOptions(), Heard(), asked.connect, asked.open)

    assert found.report.covariates.knobs == [ON_THE_HOST]
    assert asked.opened == [PlaceKind.HOST]
    assert isinstance(asked.host, FakeAgent)
    [request] = asked.host.requests("tune")
    assert (request.settings, request.write) == (list(KNOBS), False)
    assert all(setting.value is None for setting in KNOBS)


def test_a_host_that_can_not_be_asked_is_a_remark(target: Target) -> None:
    asked = box()
    asked.host = ConnectError("gpu1: no route")

    found = measure(target, MeasureOptions(), Heard(), asked.connect, asked.open)

    assert found.report.covariates.knobs == [SEEN_INSIDE]
    assert "no route" in found.report.remarks[-1]


def test_what_is_not_to_be_believed_exits_with_9(target: Target) -> None:
    asked = box(dataclasses.replace(REPORT, invalid=[Invalid(Reason.OTHERS, "3 ran, 2 were ours", 2, 0)]))

    assert measure(target, MeasureOptions(), Heard(), asked.connect, asked.open).exit_code == 9


def test_a_reason_that_holds_several_times_is_told_once() -> None:
    many = [Invalid(Reason.NO_GRAPH, "cuda graph: False", size, place) for size in (1, 4) for place in range(3)]

    assert reasons([*many, Invalid(Reason.OUTPUT, "garbage")]) == [
        "no_graph: cuda graph: False [batch 1, batch 4] (6 times)",
        "output: garbage",
    ]


@pytest.mark.parametrize(
    ("values", "told"), [({"a": "x", "b": "x"}, ["cpu_governor x"]), ({"a": "x", "b": "y"}, ["cpu_governor x | y"]), ({}, [])]
)
def test_a_knob_is_told_by_its_values(values: dict[str, str], told: list[str]) -> None:
    assert told_knobs([KnobResult(KnobSetting("cpu_governor"), KnobOutcome.OBSERVED, values, values)]) == told
