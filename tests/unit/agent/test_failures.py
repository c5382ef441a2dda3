"""Failures are classified by log, exit status and memory events. One JSON file a case; logs are of real servers where named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import failures
from orchestrator.agent.failure_signatures import SIGNATURES, Category
from orchestrator.agent.phases import parse_line

DATA = Path(__file__).parents[2] / "data"
CASES = sorted((DATA / "failures").glob("*.json"))


def load(case: Path) -> tuple[dict[str, Any], list[str]]:
    content = json.loads(case.read_text(encoding="utf-8"))
    if "log" in content:
        return content, (DATA / "captures" / content["log"]).read_bytes().decode("utf-8").split("\n")
    return content, content["lines"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_class_and_evidence(case: Path) -> None:
    content, lines = load(case)

    failure = failures.classify(lines, content["exit_status"], content["phase"], content.get("memory_events"))

    assert failure.category == content["category"], failure
    assert content.get("summary", "") in failure.summary
    for text in content["evidence"]:
        assert any(text in line for line in failure.evidence), failure.evidence
    assert len(failure.evidence) <= 6
    assert all(len(line) <= 400 for line in failure.evidence)
    assert failure.advice
    assert failure.exit_status == content["exit_status"]


def test_every_class_of_a_log_has_a_case() -> None:
    covered = {json.loads(case.read_text(encoding="utf-8"))["category"] for case in CASES}

    assert {signature.category for signature in SIGNATURES} <= covered


def test_evidence_never_shows_the_argument_dump() -> None:
    lines = ["[2026-11-29 12:00:00] server_args=ServerArgs(api_key='hush')"]

    failure = failures.classify(lines, "1", "imports")

    assert "hush" not in str(failure)


def test_a_stall_names_the_limit_the_phase_and_the_last_sign_of_life() -> None:
    lines = (DATA / "captures/h200-0.5.17/M_flashinfer_trtllm.log").read_text(encoding="utf-8").split("\n")

    failure = failures.out_of_time(Category.STALLED, "the no-progress limit", 900.0, "autotune", "", "log output, 901 s ago", lines)

    assert failure.category == "stalled"
    assert failure.summary == "the no-progress limit of 900 s ran out in phase autotune; last sign of life: log output, 901 s ago"
    assert "Running FlashInfer autotune" in failure.evidence[-1]
    assert "network" in failure.advice


def test_chained_exceptions_are_one_with_the_last_as_its_cause() -> None:
    _, lines = load(DATA / "failures/model_path_missing.json")

    found = failures.find_exceptions([parse_line(line) for line in lines])

    assert len(found) == 1
    assert found[0].errors[0].startswith("huggingface_hub.errors.HFValidationError")
    assert found[0].cause.startswith("OSError")
