"""What an order came to, and whether that is what the box shows: the one judgement of every case."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.wire import State
from tests.faults.lane import NEIGHBOUR_PORT, PORT, Lane

EXIT_CODES = {State.DONE: 0, State.REFUSED: 3, State.RESTORED: 6, State.DOWN: 7}


@dataclass
class Ending:
    """How a case ended. `problems` is empty when the box is as the journal says, and nobody else was touched."""

    state: str = "-"
    category: str = ""
    exit_code: int | None = None
    dark: float | None = None
    resumed: int = 0
    problems: list[str] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    """What was written on the way, an entry a line."""


def judge(lane: Lane, order_id: str, old: dict[str, Any] | None) -> Ending:
    """Look at the box once the order has ended. `old` is the main process that served before, None where none did."""
    seen = lane.driver.ask("look", service=lane.service, order_id=order_id, port=PORT)
    result = lane.result(order_id)
    journal = lane.journal(order_id)
    state = journal[-1]["state"]
    failure = result.get("failure") or {}
    code = result.get("exit_code", EXIT_CODES.get(state))
    ending = Ending(state, failure.get("category", ""), code, result.get("dark_seconds"), lane.resumed(order_id))
    ending.journal = [f"{entry['state']} {json.dumps(entry['data'])}" for entry in journal]
    if result and result["state"] != state:
        ending.problems.append(f"the result says {result['state']}, the journal {state}")
    if seen["status"]["state"] != state or seen["status"]["live"]:
        ending.problems.append(f"it reads as {seen['status']['state']}, live: {seen['status']['live']}")
    kind = seen["status"]["kind"]
    service = result.get("service") or journal[-1]["data"].get("service", "")
    ending.problems += _serving(seen, state, kind, service, order_launch(lane, order_id), old)
    ending.problems += _nothing_left(seen, state, kind)
    ending.problems += [f"touched: {who}" for who in lane.missing_bystanders()]
    return ending


def judge_untouched(lane: Lane, old: dict[str, Any], state: str) -> Ending:
    """Where no order was begun: the server that served still does, and nobody else was touched."""
    server = lane.server()
    ending = Ending(state)
    if server is None or server["main"] != old or not lane.driver.ask("answers", port=PORT, service=lane.service):
        ending.problems.append(f"no order was begun, but {old} does not serve as before: {server}")
    ending.problems += [f"touched: {who}" for who in lane.missing_bystanders()]
    return ending


def order_launch(lane: Lane, order_id: str) -> str | None:
    """The id of the launch that the order was to start."""
    order = json.loads((lane.state / "orders" / order_id / "order.json").read_text(encoding="utf-8"))
    return wire.from_json(wire.Order, order).launch_id


def _serving(seen: dict[str, Any], state: str, kind: str, service: str, launch: str | None, old: dict[str, Any] | None) -> list[str]:
    ours = [server for server in seen["servers"] if server["port"] == PORT]
    problems = [] if any(server["port"] == NEIGHBOUR_PORT for server in seen["servers"]) else ["the neighbour's server is gone"]
    if state == State.DOWN or (kind == wire.OrderKind.TEARDOWN and state == State.DONE):
        problems += [f"{state}, but there is a server: {ours or seen['listeners']}"] if ours or seen["listeners"] else []
        return problems + ([] if service.startswith("down") else [f"nothing is told of the service but {service!r}"])
    if state == State.REFUSED and old is None:
        return problems
    if len(ours) != 1 or not ours[0]["listening"] or not seen["answers"]:
        return [*problems, f"{state}, but it does not serve: {ours}"]
    found = ours[0]
    told = f"{state} with {launch}, but {found['launch_id']} serves and {seen['verified']} is recorded"
    somebodys = found["manager"] == wire.ManagerKind.SYSTEMD_UNIT
    recorded = found["launch_id"] == seen["verified"]
    right = {
        State.DONE: found["launch_id"] == launch and recorded,
        State.RESTORED: found["launch_id"] != launch and (recorded or somebodys),
        State.REFUSED: found["main"] == old,
    }
    return problems if right.get(state, False) else [*problems, told]


def _nothing_left(seen: dict[str, Any], state: str, kind: str) -> list[str]:
    problems = [f"left over: {process}" for process, launch_id in seen["leftovers"] if launch_id is not None]
    problems += [f"left over: unit {unit}" for unit in (*seen["order_units"], *seen["resume_units"], *seen["drop_ins"])]
    held = [name for name in seen["shared_memory"] if name != "psm_bystander"]
    ours = [server for server in seen["servers"] if server["port"] == PORT]
    if held and not ours:
        problems.append(f"left in /dev/shm: {held}")
    boot = seen["boot"]
    if boot is not None and boot["armed"] and (not ours or boot["launch_id"] != ours[0]["launch_id"]):
        problems.append(f"the boot unit would start {boot['launch_id']}, and {ours[0]['launch_id'] if ours else 'nothing'} serves")
    own = bool(ours) and ours[0]["manager"] in (wire.ManagerKind.OWN_UNIT,)
    if state in (State.DONE, State.RESTORED) and kind != wire.OrderKind.TEARDOWN and own and not (boot and boot["armed"]):
        problems.append("it would not come back after a crash: no boot unit")
    return problems
