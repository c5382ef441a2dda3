"""What status asks of the service's place and of its host."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.agent.wire_host import Persistence, PersistenceAction, PlaceKind, TuneReport
from orchestrator.agent.wire_status import StatusReport
from orchestrator.config import load_inventory
from orchestrator.errors import AgentError, ConnectError, OrchestratorError
from orchestrator.flows.status import BootTuning, host_status, status
from orchestrator.flows.target import Target, choose_target
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, answer
from tests.unit.flows.samples import healthy_agent, survey, write_inventory

UNIT = Persistence("fast", "orchestrator-prep.service", enabled=True, state="active")
APPLIED = FakeAgent(tune=[answer(TuneReport([], [], UNIT))])


def test_a_containers_host_is_asked_what_tunes_it_at_boot(target: Target) -> None:
    box = FakeBox(healthy_agent(), host=APPLIED)
    found = status(target, box.connect, box.open)
    assert (found.survey, found.boot) == (survey(), BootTuning("gpu1", UNIT))
    assert box.opened == [PlaceKind.HOST]
    (request,) = APPLIED.requests("tune")
    assert (request.settings, request.write, request.persistence) == ([], False, PersistenceAction.KEEP)
    assert (request.place, request.state_root) == (PlaceKind.HOST, "/var/lib/orchestrator")


@pytest.mark.parametrize(
    ("report", "boot"),
    [
        (StatusReport(survey(), TuneReport([], [], UNIT)), BootTuning("gpu2", UNIT)),
        (StatusReport(survey(), TuneReport([], [])), BootTuning("gpu2")),
        (StatusReport(survey(), problem="no answer within 2 s"), BootTuning("gpu2", problem="gpu2: no answer within 2 s")),
    ],
)
def test_a_service_on_the_host_itself_takes_one_connection_and_one_program(tmp_path: Any, report: StatusReport, boot: BootTuning) -> None:
    target = choose_target(load_inventory(write_inventory(tmp_path / "two", second_host=True)), "gpu2", None)
    box = FakeBox(healthy_agent(status=[answer(report)]))
    found = status(target, box.connect, box.open)
    assert (found.survey, found.boot) == (survey(), boot)
    assert (box.connections, box.opened) == (1, [])
    ((verb, request),) = box.agent.asked
    assert (verb, request.survey.port, request.tuning.write) == ("status", target.service.port, False)


@pytest.mark.parametrize("error", [ConnectError("gpu1: no route"), AgentError("gpu1: no route")])
def test_a_host_that_can_not_be_asked_is_a_remark(target: Target, error: OrchestratorError) -> None:
    box = FakeBox(healthy_agent(), host=error)
    found = status(target, box.connect, box.open)
    assert (found.survey, found.boot) == (survey(), BootTuning("gpu1", problem="gpu1: no route"))


def test_a_slow_host_is_not_waited_for(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.flows.status.HOST_SECONDS", 0.05)
    answers = threading.Event()

    @contextmanager
    def slow(*_: Any) -> Iterator[FakeAgent]:
        answers.wait(30)
        yield APPLIED

    began = time.monotonic()
    try:
        found = status(target, FakeBox(healthy_agent()).connect, slow)
    finally:
        answers.set()
    assert time.monotonic() - began < 10
    assert found.boot == BootTuning("gpu1", problem="gpu1: no answer within 0.05 s")


def test_a_place_that_can_not_be_reached_is_an_error_whatever_its_host_says(target: Target) -> None:
    box = FakeBox(healthy_agent(survey=[[ConnectError("gone")]]), host=APPLIED)
    with pytest.raises(ConnectError):
        status(target, box.connect, box.open)


def test_a_host_without_a_service_says_what_tunes_it_at_boot(target: Target) -> None:
    box = FakeBox(healthy_agent(), host=APPLIED)
    assert host_status(target.inventory, target.host, box.open) == BootTuning("gpu1", UNIT)
    assert (box.connections, box.opened) == (0, [PlaceKind.HOST])
