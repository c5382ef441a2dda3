"""Each way in which the agent fails is a class of its own, with evidence and the next command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import errors
from orchestrator.agent import wire
from orchestrator.remote.endings import Ending, explain_ending, explain_failure
from orchestrator.remote.endpoint import Endpoint
from orchestrator.remote.place import PlaceDescription

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("endings.yml").read_text(encoding="utf-8"))
ENDPOINT = Endpoint("gpu1", "192.0.2.1", "oncall")
PLACE = PlaceDescription("gpu1", ENDPOINT)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_ending(case: dict[str, Any]) -> None:
    ending = Ending(case.get("status"), case.get("stray", []), case.get("errors", []))

    error = explain_ending(PlaceDescription("gpu1", ENDPOINT, **case.get("place", {})), ending)

    assert type(error) is getattr(errors, case["raises"])
    assert case["says"] in error.message
    assert case["next"] in (error.next_step or "")
    assert error.evidence == [*ending.stray, *ending.errors]


@pytest.mark.parametrize(
    ("category", "kind", "exit_code", "next_step"),
    [
        ("python", errors.PythonError, 4, "in gpu1: apt install python3"),
        ("kernel", errors.KernelError, 4, "boot a kernel >= 5.3 on gpu1"),
        ("rights", errors.NotRootError, 4, None),
        ("disk_full", errors.DiskFullError, 4, None),
        ("refused", errors.RefusedError, 3, None),
        ("locked", errors.LockedError, 5, None),
        ("request", errors.AgentError, 4, "report"),
        ("traceback", errors.AgentError, 4, "report"),
        ("a category of tomorrow", errors.AgentError, 4, "report"),
    ],
)
def test_failure(category: str, kind: type[errors.OrchestratorError], exit_code: int, next_step: str | None) -> None:
    given = "apt install python3" if category == "python" else None

    error = explain_failure(PLACE, wire.AgentFailure(category, "why", ["line"], given))

    assert type(error) is kind
    assert (error.message, error.evidence, error.exit_code) == ("gpu1: why", ["line"], exit_code)
    assert error.next_step is None if next_step is None else next_step in (error.next_step or "")
