"""Rollback, adopt and boot against an agent that answers from a script."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent import wire
from orchestrator.agent.wire_launches import AdoptReport, BootAction, BootReport, KnownLaunch, LaunchesReport
from orchestrator.errors import RefusedError, UsageError
from orchestrator.flows.adopt import adopt, examine
from orchestrator.flows.boot import boot
from orchestrator.flows.order import Options, Outcome
from orchestrator.flows.plan import Plan
from orchestrator.flows.rollback import rollback
from orchestrator.flows.target import Target
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer
from tests.unit.flows.samples import BACKEND_DIFFERENCE, DRIFT, OLD, OUR_DIFFERENCE, done, healthy_agent, preflight

OLDER = wire.Launch("L1", "glm5", "auto", "/py", ["--port", "30000"], "127.0.0.1", 30000, secrets={"api-key": "***"})
NEWER = dataclasses.replace(OLDER, launch_id="L2", backend="flashinfer_cutedsl")
REPORT = LaunchesReport([KnownLaunch(OLDER, 1.0), KnownLaunch(NEWER, 2.0, serves=True)], OLD, previous="L1")


def yes(plan: Plan) -> bool:
    return True


def run(agent: FakeAgent, target: Target, to: str | None = None, options: Options | None = None) -> Outcome:
    box = FakeBox(agent)
    return rollback(target, to, options or Options(), Heard(), yes, box.connect, box.open)


def test_a_rollback_is_a_relaunch_whose_order_names_the_record_and_holds_nothing_of_it(target: Target) -> None:
    agent = healthy_agent(launches=[answer(REPORT)], preflight=[answer(preflight(differences=[DRIFT, BACKEND_DIFFERENCE]))])
    outcome = run(agent, target)
    assert outcome.result == done()
    assert outcome.plan.verb == "rollback"
    assert any("L1 again" in remark for remark in outcome.plan.remarks)
    (order,) = agent.requests("submit")
    assert (order.kind, order.copy_of, order.new, order.old) == ("relaunch", "L1", None, OLD.main)
    (checked,) = agent.requests("preflight")
    assert (checked.copy_of, checked.launch.launch_id) == ("L1", order.order_id)
    assert order.order_id not in ("L1", "L2")


def test_a_launch_can_be_named_unless_it_serves_or_is_not_there(target: Target) -> None:
    agent = healthy_agent(launches=[answer(dataclasses.replace(REPORT, previous=None, why="none is older"))])
    run(agent, target, "L1")
    with pytest.raises(RefusedError, match="L2 is what serves now"):
        run(agent, target, "L2")
    with pytest.raises(UsageError, match="remembers no launch 'L9'") as refused:
        run(agent, target, "L9")
    assert "L2 (flashinfer_cutedsl)" in refused.value.evidence
    with pytest.raises(RefusedError, match="nothing to go back to: none is older"):
        run(agent, target)
    assert len(agent.requests("submit")) == 1


def test_a_launch_that_would_change_nothing_or_was_on_another_port_is_refused(target: Target) -> None:
    same = healthy_agent(launches=[answer(REPORT)], preflight=[answer(preflight(differences=[OUR_DIFFERENCE]))])
    with pytest.raises(RefusedError) as refused:
        run(same, target)
    assert "nothing would change" in refused.value.evidence[0]
    moved = KnownLaunch(dataclasses.replace(OLDER, port=31000), 1.0)
    agent = healthy_agent(launches=[answer(dataclasses.replace(REPORT, launches=[moved]))])
    with pytest.raises(RefusedError) as elsewhere:
        run(agent, target)
    assert "it was on port 31000" in elsewhere.value.evidence[0]


def test_what_serves_comes_back_as_the_services_file_says(target: Target) -> None:
    for wanted in (None, True, False):
        agent = healthy_agent(launches=[answer(REPORT)])
        run(agent, dataclasses.replace(target, service=target.service.model_copy(update={"boot": wanted})))
        assert agent.requests("submit")[0].boot is wanted


def test_the_boot_unit_is_asked_for_by_name(target: Target) -> None:
    unit = wire.BootUnit("orchestrator-glm5.service", "L2", armed=True)
    agent = FakeAgent(boot=[answer(BootReport(unit))])
    assert boot(target, BootAction.ON, FakeBox(agent).connect).unit == unit
    (asked,) = agent.requests("boot")
    assert (asked.service, asked.port, asked.action) == ("glm5", 30000, "on")


def found(**changes: Any) -> AdoptReport:
    """A server in tmux, with a key on its command line and a token in its environment."""
    launch = wire.Launch(
        "",
        "x",
        "as found",
        "/venv/bin/python",
        ["--model-path", "/models/New", "--port", "30500"],
        "127.0.0.1",
        30500,
        secrets={"api-key": "***"},
    )
    server = dataclasses.replace(OLD, port=30500, launch_id=None, manager=wire.Manager(wire.ManagerKind.SESSION, "tmux"))
    report = AdoptReport(server, launch, "serving", "0.5.23", {"NCCL_DEBUG": "WARN"}, ["HOME"], ["HF_TOKEN"])
    return dataclasses.replace(report, **changes)


def adoption_of(report: AdoptReport, target: Target, name: str | None = None, **scripts: Any) -> tuple[Any, FakeAgent]:
    agent = FakeAgent(adopt=[answer(report), answer(dataclasses.replace(report, recorded="R"))], preflight=[answer(preflight(**scripts))])
    return examine(target.inventory, target.host, name, 30500, Heard(), FakeBox(agent).connect), agent


def test_a_server_is_written_down_once_the_box_has_proven_it(target: Target) -> None:
    adoption, agent = adoption_of(found(), target)
    assert adoption.path == target.inventory.directory / "services/new.yml"
    assert not adoption.path.exists(), "looking writes nothing"
    assert adoption.rollback is None
    answered = adopt(adoption, Heard(), FakeBox(agent).connect)
    assert answered is not None
    assert answered.recorded == "R"
    _, kept = agent.requests("adopt")
    assert (kept.service, kept.port, kept.expected) == ("new", 30500, OLD.main)
    assert yaml.safe_load(adoption.path.read_text())["secrets"] == {"api-key": "env:NEW_API_KEY"}


def test_a_server_that_does_not_serve_leaves_nothing(target: Target) -> None:
    adoption, _ = adoption_of(found(), target)
    refusing = FakeAgent(adopt=[[RefusedError("it is not proven to serve")]])
    with pytest.raises(RefusedError):
        adopt(adoption, Heard(), FakeBox(refusing).connect)
    assert not adoption.path.exists()


def test_an_existing_file_is_never_overwritten(target: Target) -> None:
    adoption, agent = adoption_of(found(), target, "glm5x")
    adoption.path.write_text("theirs")
    with pytest.raises(RefusedError, match="stays as it is"):
        adopt(adoption, Heard(), FakeBox(agent).connect)
    assert adoption.path.read_text() == "theirs"


def test_what_differs_from_the_file_is_told_and_hidden_secrets_are_not_repeated(target: Target) -> None:
    secret = wire.Difference("environment", "HF_TOKEN", "<secret>", None, "drift")
    adoption, _ = adoption_of(found(rollback="its Python is gone"), target, differences=[DRIFT, secret, OUR_DIFFERENCE])
    told = [remark for remark in adoption.remarks if "would differ" in remark]
    assert told == [f"a relaunch from this file would differ from what runs in: {DRIFT.name}"]
    assert adoption.rollback == "its Python is gone"


def test_a_server_of_somebodys_unit_gets_a_file_and_no_record(target: Target, tmp_path: Path) -> None:
    manager = wire.Manager(wire.ManagerKind.SYSTEMD_UNIT, "their.service")
    report = found(server=dataclasses.replace(found().server, manager=manager))
    adoption, agent = adoption_of(report, target)
    assert adopt(adoption, Heard(), FakeBox(agent).connect) is None
    assert len(agent.requests("adopt")) == 1
    assert adoption.path.exists()
    assert any("their.service starts this server" in remark for remark in adoption.remarks)


def test_a_name_that_belongs_to_another_host_or_port_is_wrong_usage(target: Target) -> None:
    with pytest.raises(UsageError, match="has port 30000"):
        examine(target.inventory, target.host, "glm5", 30500, Heard(), FakeBox(FakeAgent()).connect)
    elsewhere = target.host.model_copy(update={"name": "gpu9"})
    with pytest.raises(UsageError, match="is on host gpu1"):
        examine(target.inventory, elsewhere, "glm5", None, Heard(), FakeBox(FakeAgent()).connect)
