"""What a plan says of requests: held by a router whose only worker the server is, or failing; and what is done about the router's list."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.router_settings import read_flags
from orchestrator.agent.wire_router import RouterView, Worker
from orchestrator.cli.requests_text import expected_failures, meanwhile_blocks, requests_blocks
from orchestrator.config.routers import Router
from orchestrator.flows.order import Options
from orchestrator.flows.plan import Held, Plan
from orchestrator.flows.requests_meanwhile import Behind, failing_requests, held, with_seat
from orchestrator.flows.retry_cover import Kind, Way
from orchestrator.flows.router import ReachedRouter
from orchestrator.results.roll import Growth

WORKER = "http://10.0.0.1:30000"
ROUTER = Router.model_validate({"name": "front", "url": "http://10.0.0.5:30001", "replicas": [{"service": "s", "worker": WORKER}]})
HOLDS = "--retry-max-retries 300 --retry-initial-backoff-ms 500 --retry-max-backoff-ms 500"
IN_LIST = "--disable-circuit-breaker --health-failure-threshold 100"
STAGING = wire.StagingPlan(True, "", estimate=wire.DarkEstimate(9.0, 8.0, 10.0, "2 staged switches"), around=4.0)
POLICY = wire.Policy()


def behind(flags: str | None = HOLDS, *, smg: bool = False, by_box: bool = True, workers: tuple[str, ...] = (WORKER,)) -> Behind:
    listed = [Worker("1", url, "m", healthy=True, status="ready" if smg else None) for url in workers]
    asked = ReachedRouter(None, ROUTER, ROUTER.address(None))  # type: ignore[arg-type]
    settings = None if flags is None else read_flags(flags.split(), "a test")
    return Behind(ROUTER, asked, RouterView(listed, len(listed)), settings, by_box)


def planned(router: Behind, staging: wire.StagingPlan | None = STAGING, request_rate: float | None = 2.0) -> Held:
    return held(router, staging, POLICY, request_rate)


def words(plan_held: Held) -> str:
    plan = Plan("relaunch", "h", "place", "s", POLICY, held=plan_held)
    return "\n".join(str(getattr(block, "text", "")) for block in requests_blocks(plan))


def test_it_is_taken_out_where_retries_go_on_without_it_and_the_supervisor_can() -> None:
    found = planned(behind())
    assert (found.kind, found.way) == (Kind.SGLANG_ROUTER, Way.REMOVED)
    assert found.coverage is not None
    assert (found.coverage.covered, found.coverage.span, found.failing) == (True, 14.0, None)
    assert "none fails" in words(found)
    assert "by its supervisor" in words(found)


@pytest.mark.parametrize(
    ("router", "covered"),
    [
        (behind(f"{HOLDS} {IN_LIST}", smg=True), True),
        (behind(HOLDS, smg=True), False),
        (behind(f"{HOLDS} {IN_LIST}", by_box=False), True),
        (behind("", smg=True), False),
    ],
)
def test_it_stays_in_behind_smg_and_where_only_the_operator_could_have_it_in_again(router: Behind, covered: bool) -> None:
    found = planned(router)
    assert found.way == Way.KEPT
    assert found.coverage is not None
    assert found.coverage.covered is covered
    assert (found.failing is None) is covered
    assert ("start the router with" in words(found)) is not covered


def test_a_router_with_its_defaults_is_told_what_to_set_and_how_many_fail() -> None:
    found = planned(behind(""))
    assert found.way == Way.REMOVED, "in the list the breaker would make it a minute"
    assert found.failing is not None
    assert found.failing.most == 27
    shown = words(found)
    assert "tried 5 times within 0.3 s" in shown
    assert "--retry-max-retries 54 --retry-initial-backoff-ms 500" in shown


def test_without_retries_it_stays_in_unless_its_breaker_makes_that_longer() -> None:
    assert planned(behind(f"--disable-retries {IN_LIST}")).way == Way.KEPT
    assert planned(behind("--disable-retries")).way == Way.REMOVED


def test_what_is_not_known_is_said_and_leaves_it_in() -> None:
    unknown: list[tuple[Held, str]] = [
        (planned(behind(None)), "nobody knows whether its retries"),
        (planned(behind(), None), "nobody knows how long"),
        (planned(behind(workers=("http://10.0.0.9:1",))), "the router has no worker http://10.0.0.1:30000"),
        (held(Behind(ROUTER, behind().asked, trouble="no route"), STAGING, POLICY), "the router can't be asked: no route"),
    ]
    for found, why in unknown:
        assert (found.way, found.coverage) == (Way.KEPT, None)
        assert why in found.why
    shown = words(planned(behind(None)))
    assert "started_with: in the file of router front" in shown
    assert "--retry-max-retries 54" in shown


def test_an_order_gets_the_seat_only_where_that_is_the_plan() -> None:
    router = behind()
    seat = with_seat(Options(), router, planned(router)).router
    assert seat is not None
    assert (seat.worker, seat.others) == (WORKER, [])
    kept = behind(by_box=False)
    assert with_seat(Options(), kept, planned(kept)).router is None
    assert with_seat(Options(), None, None).router is None


@pytest.mark.parametrize(
    ("rate", "low", "high", "told"),
    [
        (2.0, 5.0, 8.0, "about 10 to 16 requests will fail: 2.0 a second now, for 5 to 8 s"),
        (0.0, 5.0, 5.0, "about 0 requests will fail: 0.0 a second now, for 5 s"),
        (None, 5.0, 8.0, "those that come within 5 to 8 s fail; how many is not known, as the server has no counter (--enable-metrics)"),
    ],
)
def test_requests_that_fail_without_a_router_are_predicted(rate: float | None, low: float, high: float, told: str) -> None:
    assert expected_failures(failing_requests(rate, low, high)) == told


def ended(**more: Any) -> wire.OrderResult:
    return wire.OrderResult("o", wire.State.DONE, 0, "serves", "serving", dark_seconds=6.5, **more)


def test_the_report_lays_what_was_counted_beside_what_was_expected() -> None:
    router = behind()
    plan = Plan("relaunch", "h", "place", "s", POLICY, held=planned(router))
    blocks = meanwhile_blocks(plan, ended(held_seconds=11.2), Growth(60, 60, 0, 240, 0, 0))
    shown = "\n".join(str(getattr(block, "text", "")) for block in blocks)
    assert "no server for 11.2 s (expected: 14 s at most)" in shown
    assert "60 came to the router, 60 were answered, 0 failed" in shown
    alone = Plan("relaunch", "h", "place", "s", POLICY, failing=failing_requests(2.0, 5.0, 8.0))
    (line,) = meanwhile_blocks(alone, ended(lost_requests=1), None)
    assert "expected 10 to 16 to fail; at that rate 13 came in the 6.5 s that were dark; 1 were cut" in str(getattr(line, "text", ""))
    assert meanwhile_blocks(alone, None, None) == []
