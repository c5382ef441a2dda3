"""What guards and checks read, from the reports of a scripted box."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_host import DoctorReport
from orchestrator.agent.wire_launches import LaunchesReport
from orchestrator.config import load_inventory
from orchestrator.config.playbook_words import CHECKS, FACTS
from orchestrator.errors import ConnectError, UnreachableError
from orchestrator.flows import runbook_facts
from orchestrator.flows.runbook_facts import View, make_check
from orchestrator.flows.target import choose_target
from tests.unit.flows.fake_agent import FakeBox, Heard, answer
from tests.unit.flows.samples import OLD, healthy_agent, survey, write_inventory


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A view of a box with these scripts."""
    monkeypatch.setenv("CANARY_KEY", "k")
    target = choose_target(load_inventory(write_inventory(tmp_path / "inventory")), None, None)

    def make(refusals: list[Any] | None = None, **scripts: Any) -> View:
        box = FakeBox(healthy_agent(**scripts), refusals or [])
        return View(target, Heard(), box.connect, box.open)

    return make


ORDER = wire.OrderStatus("O", "relaunch", "LOADING", True, 1.0, "me@here", touched=True)
UNIT = wire.BootUnit("orchestrator-glm5.service", "L", True)


@pytest.mark.parametrize(
    ("name", "changes", "value"),
    [
        ("health", {"health": "silent"}, "silent"),
        ("server", {}, "there"),
        ("server", {"server": None}, "none"),
        ("backend", {}, "auto"),
        ("backend", {"server": dataclasses.replace(OLD, backend=None)}, "unknown"),
        ("backend", {"server": None}, "none"),
        ("manager", {}, "session"),
        ("manager", {"server": None}, "none"),
        ("order", {}, "none"),
        ("order", {"order": ORDER}, "at_work"),
        ("order", {"order": dataclasses.replace(ORDER, live=False, state="INTERRUPTED(LOADING)")}, "half_done"),
        ("order", {"order": dataclasses.replace(ORDER, live=False, state="DONE")}, "ended"),
        ("lock", {}, "free"),
        ("lock", {"lock": wire.PersonLock("me", "why", 1.0)}, "locked"),
        ("comes_back", {}, "none"),
        ("comes_back", {"boot": UNIT}, "armed"),
        ("comes_back", {"boot": dataclasses.replace(UNIT, armed=False)}, "off"),
        ("tuned_at_boot", {}, "none"),
    ],
)
def test_a_fact_reads_as_one_of_its_words(name: str, changes: Mapping[str, Any], value: str, look: Any) -> None:
    assert look(survey=[answer(survey(**changes))]).fact(name) == value
    allowed = FACTS[name]
    assert allowed is None or value in allowed


@pytest.mark.parametrize(("previous", "value"), [("L", "there"), (None, "none")])
def test_previous_launch(previous: str | None, value: str, look: Any) -> None:
    view = look(launches=[answer(LaunchesReport([], previous=previous, why="none was"))])
    assert view.fact("previous_launch") == value
    checked = make_check(view, "previous_launch", {})
    assert (checked.holds, checked.seen) == (previous is not None, previous or "none was")


def doctor(*verdicts: tuple[str, str]) -> Any:
    return [
        answer(DoctorReport([Verdict(check, outcome, f"{check} {outcome}", next_step=f"see {check}") for check, outcome in verdicts], []))
    ]


def test_the_gravest_of_several_verdicts_counts(look: Any) -> None:
    view = look(doctor=doctor(("cuda", Outcome.PASS), ("cuda", Outcome.REFUSE), ("cuda", Outcome.WARN)))
    assert view.finding("cuda") == "refuse"
    assert view.finding("device_nodes") == "absent"


@pytest.mark.parametrize(
    ("outcome", "absent", "passes"),
    [(Outcome.PASS, True, True), (Outcome.WARN, True, False), (Outcome.UNKNOWN, True, False), (Outcome.REFUSE, False, False)],
)
@pytest.mark.parametrize("finding", ["cuda", "xid"])
def test_findings(finding: str, outcome: str, absent: bool, passes: bool, look: Any) -> None:
    view = look(doctor=doctor((finding, outcome)))
    assert make_check(view, "finding_absent", {"finding": finding}).holds == absent
    checked = make_check(view, "finding_passes", {"finding": finding})
    assert checked.holds == passes
    if not passes:
        assert (checked.exit_code, checked.evidence, checked.next_step) == (3, [f"{finding} {outcome}"], f"see {finding}")


def test_a_place_that_could_not_be_asked_proves_nothing(look: Any) -> None:
    class Unreachable(FakeBox):
        def connect(self, target: Any) -> Any:
            raise ConnectError("no answer")

    view = look()
    broken = View(view.target, Heard(), Unreachable(healthy_agent()).connect, FakeBox(healthy_agent()).open)
    for name, arguments in (("finding_absent", {"finding": "xid"}), ("finding_absent", {"finding": "cuda"}), ("nothing_refused", {})):
        with pytest.raises(UnreachableError):
            make_check(broken, name, arguments)


def test_what_hangs_is_not_asked_before_cuda_is_known(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    view = look(doctor=doctor(("cuda", Outcome.PASS)))
    monkeypatch.setattr(View, "survey", property(lambda self: pytest.fail("the server was asked")))
    assert view.finding("cuda") == "pass"


@pytest.mark.parametrize(
    ("name", "arguments", "changes", "holds"),
    [
        ("serves", {}, {}, True),
        ("serves", {"backend": "auto"}, {}, True),
        ("serves", {"backend": "triton"}, {}, False),
        ("serves", {}, {"health": "starting"}, False),
        ("nothing_serves", {}, {}, False),
        ("nothing_serves", {}, {"server": None, "health": "down"}, True),
        ("no_order", {}, {"order": ORDER}, False),
        ("no_order", {}, {}, True),
        ("comes_back", {}, {"boot": UNIT}, True),
        ("comes_back", {}, {}, False),
        ("nothing_refused", {}, {}, True),
    ],
)
def test_checks(name: str, arguments: Mapping[str, str], changes: Mapping[str, Any], holds: bool, look: Any) -> None:
    checked = make_check(look(survey=[answer(survey(**changes))]), name, arguments)
    assert checked.holds == holds
    assert checked.exit_code == (0 if holds else CHECKS[name].exit_code)


def test_a_check_waits_until_it_holds_and_tells_so_once(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runbook_facts, "_PAUSE_SECONDS", 0.0)
    reports = [survey(health="down"), survey(health="starting"), survey()]
    view = look(survey=[answer(report) for report in reports], refusals=[ConnectError("it boots")])
    assert make_check(view, "serves", {"within": "60"}).holds
    assert len(view.observer.notes) == 1


def test_a_check_that_waits_in_vain_says_what_it_saw_last(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runbook_facts, "_PAUSE_SECONDS", 0.0)
    checked = make_check(look(survey=[answer(survey(health="silent"))]), "serves", {"within": "0.05"})
    assert (checked.holds, checked.seen, checked.exit_code) == (False, "health silent, backend auto", 7)
