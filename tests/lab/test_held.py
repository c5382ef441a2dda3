"""`fab relaunch` of the only server behind SGLang's real router, a stand-in, under four requests a second that are judged one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.lab.rolled_lab import GOOD, RolledLab, rolled_lab
from tests.rig.commands import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RETRIES = "--retry-max-retries 300 --retry-initial-backoff-ms 500 --retry-max-backoff-ms 500 --retry-backoff-multiplier 1.0"
IN_LIST = "--disable-circuit-breaker --health-failure-threshold 100"
FIRST, SECOND = "flashinfer_cutlass", "marlin"


def started_with(lab: RolledLab, flags: str | None) -> None:
    """Have the inventory say what the router was started with, or nothing."""
    path = lab.layout.inventory / "routers" / "front.yml"
    described = {name: value for name, value in yaml.safe_load(path.read_text()).items() if name != "started_with"}
    path.write_text(yaml.safe_dump(described if flags is None else {**described, "started_with": flags}))


@pytest.fixture(scope="module", params=["sglang-router", "smg"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolledLab]:
    """One replica whose router holds requests. The sglang-router would not without a worker in its list be told by what only smg needs."""
    flags = RETRIES if request.param == "sglang-router" else f"{RETRIES} {IN_LIST}"
    with rolled_lab(tmp_path_factory.mktemp("held"), request.param, (GOOD,), *flags.split()) as made:
        made.asked_from(GOOD)
        started_with(made, flags)
        yield made


def relaunch(lab: RolledLab, backend: str, *flags: str) -> dict[str, Any]:
    return dict(lab.ask("relaunch", "--backend", backend, "--no-measure", "--host", GOOD, "--service", "r1", *flags))


def test_the_only_server_behind_a_real_router_is_switched_with_0_failed_and_0_cut(lab: RolledLab) -> None:
    removed = lab.router.kind == "sglang-router"
    with lab.load() as load:
        wait_for("the first answers", lambda: len(load.sent) >= 4, 60.0)
        document = relaunch(lab, FIRST, "--yes")
        answered = len(load.sent) + 8
        wait_for("answers after it", lambda: len(load.sent) >= answered, 60.0)
    held, result = document["plan"]["held"], document["result"]
    assert load.failed == []
    assert (held["kind"], held["way"]) == (lab.router.kind, "removed" if removed else "kept")
    assert held["coverage"]["covered"] is True
    assert held["settings"]["attempts"] == 300
    assert (result["held_seconds"] is not None) is removed
    assert load.longest <= held["coverage"]["longest_wait"] + 2.0, "no client waits longer than the plan says; a busy machine is late"
    assert (document["clients"]["failed"], document["clients"]["exhausted"]) == (0, 0)
    assert document["clients"]["retries"] > 0
    assert lab.router.serving() == set(lab.workers.values())


def test_what_is_not_known_or_not_enough_is_told_with_what_to_set(lab: RolledLab) -> None:
    started_with(lab, "--retry-max-retries 5")
    short = relaunch(lab, SECOND, "--plan")["plan"]["held"]
    assert short["coverage"]["covered"] is False
    assert any(flag.startswith("--retry-max-retries ") for flag in short["flags"])
    started_with(lab, None)
    unknown = relaunch(lab, SECOND, "--plan")["plan"]["held"]
    assert (unknown["settings"], unknown["coverage"], unknown["way"]) == (None, None, "kept")
    assert unknown["flags"]
