"""What the state machine says of a switch."""

from __future__ import annotations

import pytest

from orchestrator.agent import wire
from orchestrator.agent.relaunch_words import dark_phases

LOADED = [
    wire.Fact("moe_runner_backend (requested)", "triton", "arguments"),
    wire.Fact("phase.imports", 17.0, "server log"),
    wire.Fact("phase.distributed", 1.2, "server log"),
    wire.Fact("phase.gate", 90.0, "server log"),
    wire.Fact("phase.weights", 12.0, "server log"),
    wire.Fact("phase.graph_capture", 20.1, "server log"),
    wire.Fact("phase.ready", 0.3, "server log"),
]


@pytest.mark.parametrize(
    ("staged", "dark"),
    [
        (True, {"weights": 12.0, "graph_capture": 20.1}),
        (False, {"imports": 17.0, "distributed": 1.2, "weights": 12.0, "graph_capture": 20.1}),
    ],
)
def test_only_the_phases_after_the_gate_of_a_staged_start_are_dark(staged: bool, dark: dict[str, float]) -> None:
    assert dark_phases(LOADED, staged=staged) == dark
