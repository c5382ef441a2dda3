"""A service and its machine asked by one program: each is told whatever the other says."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import place_status
from orchestrator.agent.place_status import status
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire import SurveyRequest
from orchestrator.agent.wire_host import TuneReport, TuneRequest
from orchestrator.agent.wire_status import StatusReport, StatusRequest


def asked(folder: Path, **changes: Any) -> StatusReport:
    tuning = TuneRequest("", [], state_root=str(folder), **changes)
    return status(StatusRequest(SurveyRequest("tiny", str(folder), sys.executable, 1), tuning), lambda kind, data: None)


def test_both_are_told_and_nothing_is_left(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert (found.survey.health, found.problem) == ("down", None)
    assert found.tuning is not None
    assert {fact.name: fact.value for fact in found.survey.facts}["kernel"] == os.uname().release
    assert not list(tmp_path.iterdir())


def test_what_would_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentRefusal, match="a status writes nothing"):
        asked(tmp_path, write=True)


def test_a_machine_that_hangs_keeps_the_service_back_for_two_seconds_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def hangs(request: TuneRequest, emit: Any) -> TuneReport:
        let_go.wait(30)
        return TuneReport([], [])

    monkeypatch.setattr(place_status, "tune", hangs)
    monkeypatch.setattr(place_status, "TUNING_SECONDS", 0.05)
    try:
        found = asked(tmp_path)
    finally:
        let_go.set()
    assert (found.survey.health, found.tuning, found.problem) == ("down", None, "no answer within 0.05 s")


def test_a_machine_that_refuses_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(request: TuneRequest, emit: Any) -> TuneReport:
        raise AgentRefusal("rights", "its folder is somebody else's")

    monkeypatch.setattr(place_status, "tune", refuses)
    found = asked(tmp_path)
    assert (found.survey.health, found.problem) == ("down", "its folder is somebody else's")
