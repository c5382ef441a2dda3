"""A preflight is the first step of a relaunch by itself; and what --force overrules reaches the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_host import DoctorReport
from orchestrator.errors import RefusedError
from orchestrator.flows.order import Options
from orchestrator.flows.preflight import preflight
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.target import Target
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer
from tests.unit.flows.samples import DRIFT, OUR_DIFFERENCE, healthy_agent
from tests.unit.flows.samples import preflight as report

RED = wire.Verdict("compute_capability", wire.Outcome.REFUSE, "not made for 12.0", next_step="fab backends")
LOCK = wire.Verdict("rights", wire.Outcome.REFUSE, "not yours to signal")


def check(agent: FakeAgent, target: Target, heard: Heard, options: Options | None = None, **box: Any) -> Any:
    made = FakeBox(agent, **box)
    profiles = target.inventory.backends_named("flashinfer_cutedsl")
    return preflight(target, profiles, "flashinfer_cutedsl", options or Options(), heard, made.connect, made.open)


def test_it_shows_the_plan_of_a_relaunch_and_submits_nothing(target: Target) -> None:
    agent, heard = healthy_agent(), Heard()
    outcome = check(agent, target, heard)
    again = Heard()
    box = FakeBox(healthy_agent())
    profiles = target.inventory.backends_named("flashinfer_cutedsl")
    asked = relaunch(target, profiles, Options(plan_only=True), again, lambda plan: True, box.connect, box.open)
    assert outcome.result is None
    assert [item for item, _ in agent.asked] == [item for item, _ in box.agent.asked]
    assert "submit" not in {item for item, _ in agent.asked}
    assert (outcome.plan.verb, outcome.plan.verdicts, outcome.plan.remarks) == (asked.plan.verb, asked.plan.verdicts, asked.plan.remarks)
    assert heard.notes[-1].endswith("fab relaunch --host gpu1 --service glm5 --backend flashinfer_cutedsl")


def test_what_speaks_against_it_is_a_refusal(target: Target) -> None:
    agent, heard = healthy_agent(preflight=[answer(report(verdicts=[RED]))]), Heard()
    with pytest.raises(RefusedError) as refusal:
        check(agent, target, heard)
    assert refusal.value.exit_code == 3
    assert refusal.value.evidence == ["compute_capability: not made for 12.0"]
    assert refusal.value.next_step == "fab backends"
    assert len(heard.plans) == 1


def test_a_red_of_the_hosts_diagnosis_is_one_too(target: Target) -> None:
    host = FakeAgent(doctor=[answer(DoctorReport([wire.Verdict("gpu_on_bus", wire.Outcome.REFUSE, "fallen off the bus")], []))])
    with pytest.raises(RefusedError) as refusal:
        check(healthy_agent(), target, Heard(), host=host)
    assert refusal.value.evidence == ["gpu1: gpu_on_bus: fallen off the bus"]


def test_with_force_it_tells_what_would_be_overruled(target: Target) -> None:
    heard = Heard()
    outcome = check(healthy_agent(preflight=[answer(report(verdicts=[RED]))]), target, heard, Options(force=True))
    assert outcome.plan.overruled == ["compute_capability: not made for 12.0"]
    assert heard.notes[-1].endswith("--backend flashinfer_cutedsl --force")
    with pytest.raises(RefusedError) as refusal:
        check(healthy_agent(preflight=[answer(report(verdicts=[RED, LOCK]))]), target, Heard(), Options(force=True))
    assert refusal.value.evidence == ["rights: not yours to signal"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(force=True, accept_drift=True), ["compute_capability: not made for 12.0", "the running server differs"]),
        (Options(accept_drift=True), None),
        (Options(force=True), None),
    ],
)
def test_what_was_overruled_is_written_into_the_order(target: Target, options: Options, expected: list[str] | None) -> None:
    agent = healthy_agent(preflight=[answer(report(verdicts=[RED], differences=[DRIFT, OUR_DIFFERENCE]))])
    box = FakeBox(agent)
    profiles = target.inventory.backends_named("flashinfer_cutedsl")
    if expected is None:
        with pytest.raises(RefusedError):
            relaunch(target, profiles, options, Heard(), lambda plan: True, box.connect, box.open)
        return
    relaunch(target, profiles, options, Heard(), lambda plan: True, box.connect, box.open)
    (order,) = agent.requests("submit")
    assert [found.startswith(words) for found, words in zip(order.overruled, expected, strict=True)] == [True, True]


def test_an_order_without_force_overrules_nothing(target: Target) -> None:
    agent = healthy_agent()
    box = FakeBox(agent)
    relaunch(target, target.inventory.backends_named("auto"), Options(force=True), Heard(), lambda plan: True, box.connect, box.open)
    (order,) = agent.requests("submit")
    assert order.overruled == []


def test_profiles_that_are_told_apart_by_source_are_asked_for_it(target: Target, tmp_path: Path) -> None:
    profile = target.inventory.backends["flashinfer_cutedsl"]
    [variant] = profile.variants
    old = variant.model_copy(update={"lacks": ["sglang.new"], "arguments": {"--moe-runner-backend": "old"}})
    new = variant.model_copy(update={"has": ["sglang.new"], "arguments": {"--moe-runner-backend": "new"}})
    told = profile.model_copy(update={"variants": [old, new]})
    agent, heard = healthy_agent(signs=[answer(wire.SignsReport({"sglang.new": True}))]), Heard()
    box = FakeBox(agent)
    outcome = preflight(target, [told], "flashinfer_cutedsl", Options(), heard, box.connect, box.open)
    (asked,) = agent.requests("signs")
    assert (asked.names, asked.python) == (["sglang.new"], "/opt/sglang/bin/python")
    (checked,) = agent.requests("preflight")
    assert checked.launch.arguments[-1] == "new"
    assert (outcome.plan.verdicts[0].check, outcome.plan.verdicts[0].outcome) == ("profile", "warn")
    assert "its source has sglang.new" in outcome.plan.verdicts[0].detail
