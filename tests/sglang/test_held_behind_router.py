"""One real SGLang behind a real router whose retries hold requests: it is switched, and no client has an error or a cut stream.

Needs `make routers` beside SGLang. What a switch takes must be known before it can be covered, so the server is one that was launched.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent.wire import State
from tests.rig.commands import wait_for
from tests.rig.network import Bridge, free_port
from tests.rig.operator import Operator
from tests.rig.router import RealRouter
from tests.rig.steady_load import SteadyLoad
from tests.sglang.stage import SERVICE, Stage

HOLDING = (
    *("--retry-max-retries", "300", "--retry-initial-backoff-ms", "500", "--retry-max-backoff-ms", "500"),
    *("--retry-backoff-multiplier", "1.0"),
)
LEFT_IN = ("--disable-circuit-breaker", "--health-failure-threshold", "100")
"""What a worker that stays in the list needs besides."""
PATIENCE = 180.0
AFTERWARDS = 8
"""Requests that are answered after the switch is over, before the clients are sent home."""


@contextmanager
def behind(kind: str, flags: tuple[str, ...], stage: Stage, bridge: Bridge, folder: Path) -> Iterator[tuple[Operator, RealRouter]]:
    """A router before the service, on this machine's end of the container's network, and an operator whose inventory has it."""
    router = RealRouter(kind, free_port(), free_port(), folder / "router.log", bridge.address(1))
    inventory = Path(shutil.copytree(stage.operator.inventory, folder / "inventory"))
    described = {
        "name": "front",
        "url": router.url,
        "metrics": f"http://{router.address}:{router.metrics}/metrics",
        "replicas": [{"service": SERVICE, "worker": stage.url}],
        "drain": 60.0,
        "started_with": " ".join(flags),
    }
    (inventory / "routers").mkdir()
    (inventory / "routers" / "front.yml").write_text(yaml.safe_dump(described), encoding="utf-8")
    router.start([stage.url], *flags)
    try:
        yield replace(stage.operator, inventory=inventory), router
    finally:
        router.kill()


def relaunch(operator: Operator, backend: str, *flags: str) -> dict[str, Any]:
    words = ("--backend", backend, "--no-measure", "--accept-drift", *flags)
    return operator.ask("relaunch", *words).expect(0).document


@pytest.fixture(scope="module")
def launched(stage: Stage) -> None:
    """The service, launched by the program itself: the load that it wrote down is what the next switch is expected by."""
    stage.clear()
    stage.operator.ask("launch", "--backend", "lof", "--yes").expect(0)


@pytest.mark.parametrize(
    ("kind", "way", "backend"),
    [("sglang-router", "removed", "dfs-weight"), pytest.param("smg", "kept", "fcfs", marks=pytest.mark.exhaustive)],
)
def test_one_real_server_behind_a_real_router_is_switched_with_0_failed_and_0_cut(
    kind: str, way: str, backend: str, stage: Stage, bridge: Bridge, launched: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = HOLDING if way == "removed" else (*HOLDING, *LEFT_IN)
    with behind(kind, flags, stage, bridge, tmp_path) as (operator, router):
        planned = relaunch(operator, backend, "--plan")["plan"]["held"]
        assert (planned["kind"], planned["way"], planned["coverage"]["covered"]) == (kind, way, True), planned
        with SteadyLoad(router.port, stage.service.model, tokens=20, address=router.address, patience=PATIENCE) as load:
            wait_for("the first answers", lambda: len(load.sent) >= AFTERWARDS, 60.0)
            document = relaunch(operator, backend, "--yes")
            answered = len(load.sent) + AFTERWARDS
            wait_for("answers after it", lambda: len(load.sent) >= answered, 60.0)

    result, clients = document["result"], document["clients"]
    with capsys.disabled():
        held = "" if result["held_seconds"] is None else f", no worker for {result['held_seconds']:.2f} s"
        told = f"dark for {result['dark_seconds']:.2f} s{held} (expected at most {planned['coverage']['span']:.1f} s)"
        sys.stdout.write(f"\n{kind}: {told}; {len(load.sent)} requests: {dict(load.outcomes)}, the longest waited {load.longest:.2f} s\n")
    assert load.failed == []
    assert load.longest > result["dark_seconds"] / 2, "clients were there in the dark"
    assert (clients["failed"], clients["exhausted"]) == (0, 0)
    assert clients["retries"] > 0
    assert (State.LEAVING in stage.journal()) == (way == "removed")
    assert result["lost_requests"] in (0, None)
