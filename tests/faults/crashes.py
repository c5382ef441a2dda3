"""The supervisor dies at every named instant of an order, before and after each effect, and what follows goes on from its journal.

Which instants there are is not written down here: each flow is run once undisturbed, and the code itself tells which it has passed
(:mod:`orchestrator.agent.crash_points`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.agent.crash_points import PASSED
from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.ending import Ending, judge
from tests.faults.lane import Lane

SECTION = "supervisor killed at an instant"

Prepared = tuple[dict[str, Any] | None, dict[str, Any]]
"""The main process of the old server, None where there is none, and the order."""


@dataclass(frozen=True)
class Flow:
    """One way through the state machine. `prepare` sets the box up and gives the order."""

    name: str
    state: str
    prepare: Callable[[Lane], Prepared]


def _relaunch(lane: Lane) -> Prepared:
    old = lane.serving()
    return old, lane.order(old, lane.launch("new"))


def _relaunch_that_fails(lane: Lane) -> Prepared:
    old = lane.serving()
    return old, lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_FAIL_AT": "kv_cache"}))


def _staged(lane: Lane) -> Prepared:
    old = lane.serving()
    return old, lane.order(old, lane.launch("new"), staged=True)


def _staged_that_fails(lane: Lane) -> Prepared:
    """After its activation; the way back is staged too."""
    old = lane.serving()
    return old, lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_FAIL_AT": "kv_cache"}), staged=True)


def _staged_that_is_refused(lane: Lane) -> Prepared:
    """It never comes to its gate."""
    old = lane.serving()
    return old, lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_FAIL_AT": "gate"}), staged=True)


def _staged_from_a_unit_that_fails(lane: Lane) -> Prepared:
    old = lane.serving("systemd_unit")
    return old, lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_FAIL_AT": "kv_cache"}), staged=True)


def _teardown(lane: Lane) -> Prepared:
    """Of a server that would come back at boot, as an order leaves it: its unit has to be taken away too."""
    old = lane.serving()
    if not (lane.state / "boot").is_file():
        lane.wait_end(lane.submit(lane.order(old, lane.launch("new"))))
        old = lane.serving()
    return old, lane.order(old, None, kind="teardown")


def _nothing_runs(lane: Lane) -> None:
    if lane.server() is not None:
        lane.clear()


def _launch(lane: Lane) -> Prepared:
    _nothing_runs(lane)
    return None, lane.order(None, lane.launch("new"), kind="launch")


def _launch_that_fails(lane: Lane) -> Prepared:
    _nothing_runs(lane)
    return None, lane.order(None, lane.launch("new", environment={"SGLANG_STANDIN_FAIL_AT": "kv_cache"}), kind="launch")


def _rollback(lane: Lane) -> Prepared:
    old = lane.serving()
    found = lane.server()
    assert found is not None
    return old, lane.order(old, None, copy_of=found["launch_id"])


def _rollback_that_fails_from_a_unit(lane: Lane) -> Prepared:
    """Somebody's unit is kept from restarting, given back and started again."""
    old = lane.serving("systemd_unit")
    return old, lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_FAIL_AT": "kv_cache"}))


def _stubborn(lane: Lane) -> Prepared:
    """Ends by SIGKILL alone, leaves shared memory, and has a child in a session of its own."""
    old = lane.serving("own_unit", ignore_sigterm="1", shared_memory="1", escapee="1")
    return old, lane.order(old, lane.launch("new"), policy={"grace": 0.5, "drain": 0.2})


def _by_hand(lane: Lane) -> Prepared:
    old = lane.serving("session")
    return old, lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_FAIL_AT": "kv_cache"}))


FLOWS: Sequence[Flow] = (
    Flow("relaunch", State.DONE, _relaunch),
    Flow("relaunch that fails", State.RESTORED, _relaunch_that_fails),
    Flow("teardown", State.DONE, _teardown),
    Flow("launch", State.DONE, _launch),
    Flow("launch that fails", State.DOWN, _launch_that_fails),
    Flow("rollback", State.DONE, _rollback),
    Flow("relaunch of somebody's unit that fails", State.RESTORED, _rollback_that_fails_from_a_unit),
    Flow("relaunch of a server by hand that fails", State.RESTORED, _by_hand),
    Flow("relaunch of a server that needs SIGKILL", State.DONE, _stubborn),
    Flow("staged relaunch", State.DONE, _staged),
    Flow("staged relaunch that fails after its activation", State.RESTORED, _staged_that_fails),
    Flow("staged relaunch that fails before its gate", State.REFUSED, _staged_that_is_refused),
    Flow("staged relaunch of somebody's unit that fails", State.RESTORED, _staged_from_a_unit_that_fails),
)


def flow_named(name: str) -> Flow:
    return next(flow for flow in FLOWS if flow.name == name)


def enumerate_points(lane: Lane, flow: Flow, told: Callable[[list[str]], None]) -> Ending:
    """Run the flow undisturbed; `told` gets the instants passed, the N-th passing of one as ``NAME#N``."""
    ending, passed = _carried_out(lane, flow, "")
    told(passed)
    return ending


def crash_at(lane: Lane, flow: Flow, point: str) -> Ending:
    """Run the flow with a supervisor that dies at the point."""
    ending, passed = _carried_out(lane, flow, point)
    if point not in passed:
        ending.problems.append(f"no supervisor came as far as {point}")
    return ending


def _carried_out(lane: Lane, flow: Flow, point: str) -> tuple[Ending, list[str]]:
    """The ending, and what was passed by all supervisors together."""
    old, order = flow.prepare(lane)
    lane.state.mkdir(parents=True, exist_ok=True)
    written = lane.state / PASSED
    written.write_text("", encoding="utf-8")
    try:
        order_id = lane.submit(order, point)
        lane.wait_end(order_id)
        passed = numbered(written.read_text(encoding="utf-8").splitlines())
    finally:
        written.unlink(missing_ok=True)
    return judge(lane, order_id, old), passed


def numbered(passed: Sequence[str]) -> list[str]:
    """Each passing with its ordinal; the first goes without."""
    counts: Counter[str] = Counter()
    points = []
    for name in passed:
        counts[name] += 1
        points.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return points


def enumeration(flow: Flow, told: Callable[[list[str]], None]) -> Case:
    return Case(SECTION, f"{flow.name}: undisturbed", lambda lane: enumerate_points(lane, flow, told), (flow.state,))


def crash(flow: Flow, point: str) -> Case:
    return Case(SECTION, f"{flow.name}: {point}", lambda lane: crash_at(lane, flow, point), (flow.state,))
