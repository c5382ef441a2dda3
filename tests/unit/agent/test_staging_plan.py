"""Whether a plan is staged, and what it tells of the switch."""

from __future__ import annotations

import dataclasses
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import gate, gate_firewall, room, staging_plan, wire
from orchestrator.agent.gpu import GpuReading
from orchestrator.agent.launch_files import Account
from orchestrator.agent.staging_plan import CACHES, Candidate
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Observed
from orchestrator.agent.wire import Outcome, Verdict

LAUNCH = wire.Launch("new", "svc", "auto", "/none/python", ["--load-format", "dummy"], "127.0.0.1", 1)
ACCOUNT = Account("me", os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_dir, switch=False)
Planned = Callable[..., wire.StagingPlan]


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(str(tmp_path), "svc")
    made.create()
    return made


@pytest.fixture
def planned(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """A plan where `gated` and `roomy` are what these checks say."""

    def plan(
        gated: str = Outcome.PASS,
        roomy: str = Outcome.PASS,
        *,
        values: dict[str, Any] | None = None,
        sequential: bool = False,
        **policy: Any,
    ) -> wire.StagingPlan:
        monkeypatch.setattr(gate, "judge", lambda *_: Verdict("gate", gated, "the gate's words"))
        monkeypatch.setattr(room, "judge", lambda *_, **__: Verdict("staging", roomy, "the room's words"))
        monkeypatch.setattr(gate_firewall, "who_can_reach", lambda host: Verdict("gate", Outcome.WARN, f"open on {host}"))
        candidate = Candidate(LAUNCH, ACCOUNT, {}, values or {})
        return staging_plan.plan(candidate, folder, wire.Policy(**policy), GpuReading([]), sequential=sequential)

    return plan


def checks(plan: wire.StagingPlan) -> list[str]:
    return [verdict.check for verdict in plan.verdicts]


def test_a_gate_and_room_are_staged(planned: Planned) -> None:
    plan = planned()
    assert plan.staged
    assert checks(plan) == ["gate", "staging", "gate", "checkpoint_files", CACHES]
    assert plan.verdicts[2].detail == "open on 127.0.0.1"


@pytest.mark.parametrize(
    ("given", "reason", "asked"),
    [
        ({"sequential": True}, "asked for with --sequential", []),
        ({"staging": "never"}, "the service says `staging: never`", []),
        ({"values": {"nnodes": "2"}}, "--nnodes is 2", []),
        ({"gated": Outcome.WARN}, "the gate's words", ["gate"]),
        ({"gated": Outcome.UNKNOWN}, "the gate's words", ["gate"]),
        ({"roomy": Outcome.WARN}, "the room's words", ["gate", "staging"]),
        ({"roomy": Outcome.UNKNOWN}, "the room's words", ["gate", "staging"]),
    ],
    ids=str,
)
def test_a_sequential_switch_says_why(planned: Planned, given: dict[str, Any], reason: str, asked: list[str]) -> None:
    plan = planned(**given)
    assert (plan.staged, plan.reason) == (False, reason)
    assert checks(plan) == [*asked, "checkpoint_files", CACHES]


def test_a_backend_that_was_never_verified_has_cold_caches(planned: Planned, folder: StateFolder) -> None:
    assert planned().verdicts[-1].outcome == Outcome.WARN
    assert planned().verdicts[-1].evidence == ["auto was never verified here"]
    folder.write_launch(dataclasses.replace(LAUNCH, launch_id="old"))
    folder.mark_verified("old", Observed())
    assert planned().verdicts[-1].outcome == Outcome.PASS


def test_the_estimate_is_of_the_way_it_will_go(planned: Planned, folder: StateFolder) -> None:
    assert planned().estimate is None
    folder.write_launch(dataclasses.replace(LAUNCH, launch_id="old"))
    facts = [wire.Fact("phase.imports", 30.0, "log"), wire.Fact("phase.weights", 10.0, "log"), wire.Fact("cold caches", [], "folders")]
    folder.mark_verified("old", Observed(facts=facts))
    staged, sequential = planned().estimate, planned(sequential=True).estimate
    assert staged is not None
    assert sequential is not None
    assert (staged.seconds, sequential.seconds) == (15.5, 45.0)
    assert "no staged switch like it yet" in staged.basis
