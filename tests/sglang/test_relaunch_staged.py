"""From one real server to another with the next one started beside the old one, against the same switch without."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.wire import State
from tests.rig.inventory import BY_SSH
from tests.rig.sglang import ContainerProcess, ServerByHand, listening_ports
from tests.rig.steady_client import CUT, REFUSED, Gap, steady_client
from tests.sglang.stage import Stage, describe_service, write_tiny_service

MOST_OF_SEQUENTIAL = 0.4
"""Of its dark time. On a quiet machine it is below 0.15 (benchmarks/dark.py); here others run."""


@dataclasses.dataclass(frozen=True)
class Switch:
    """A relaunch under a steady client."""

    result: dict[str, Any]
    gap: Gap
    counts: dict[str, int]
    states: list[str]

    def __str__(self) -> str:
        asked = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        told = f"{self.result['dark_seconds']:.2f} s by its own report"
        return f"{'staged' if self.result['staged'] else 'sequential'}: dark for {self.gap.seconds:.2f} s, {told}; requests: {asked}"


def switch(stage: Stage, backend: str, *flags: str) -> Switch:
    with steady_client(stage.url) as client:
        answer = stage.operator.ask("relaunch", "--backend", backend, "--yes", "--no-measure", "--accept-drift", *flags).expect(0)
    assert stage.argument("schedule_policy") == backend
    return Switch(answer.document["result"], client.gap(), client.counts(), stage.journal())


def test_a_staged_switch_is_dark_for_a_fraction_of_a_sequential_one(
    stage: Stage, serving: ContainerProcess, neighbour: ServerByHand, capsys: pytest.CaptureFixture[str]
) -> None:
    staged = switch(stage, "dfs-weight")
    gate = stage.gate_port()
    sequential = switch(stage, "lof", "--sequential")

    with capsys.disabled():
        sys.stdout.write(f"\n{staged}\n{sequential}\n")
    assert (staged.result["staged"], sequential.result["staged"]) == (True, False)
    assert State.ACTIVATING in staged.states
    assert State.STAGING not in sequential.states
    assert staged.gap.seconds < MOST_OF_SEQUENTIAL * sequential.gap.seconds
    assert staged.counts[CUT] <= 1, "a request that ran when the old server ended"
    assert gate not in listening_ports(stage.service.container)


def test_what_fails_before_its_gate_costs_no_service(
    stage: Stage, serving: ContainerProcess, neighbour: ServerByHand, tmp_path: Path
) -> None:
    inventory = Path(shutil.copytree(stage.operator.inventory, tmp_path / "inventory"))
    write_tiny_service(inventory, describe_service(stage.service, BY_SSH) | {"model": "/srv/models/does-not-exist"})
    operator = dataclasses.replace(stage.operator, inventory=inventory)

    with steady_client(stage.url) as client:
        answer = operator.ask("relaunch", "--backend", "fcfs", "--yes", "--accept-drift", "--force", "--no-measure")

    answer.expect(3)
    assert answer.document["result"]["state"] == State.REFUSED
    assert "/srv/models/does-not-exist" in str(answer.document["result"]["failure"])
    assert State.STAGING in stage.journal()
    assert stage.mains() == [serving]
    assert (client.counts()[REFUSED], client.counts()[CUT]) == (0, 0)
    assert stage.gate_port() not in listening_ports(stage.service.container)
