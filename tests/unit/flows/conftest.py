"""What the flows' tests work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import load_inventory
from orchestrator.flows.target import Target, choose_target
from tests.unit.flows.samples import CANARY, write_inventory


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The one service of a small inventory; runs would be kept below `tmp_path`."""
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(tmp_path / "runs"))
    return choose_target(load_inventory(write_inventory(tmp_path / "inventory")), None, None)
