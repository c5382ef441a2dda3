"""Random instants, the same for the same seed: the operator's process is killed, or the supervisor, and the order comes to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.crashes import Flow, flow_named
from tests.faults.ending import Ending, judge, judge_untouched
from tests.faults.lane import MODEL, PORT, PYTHON, STATE, Lane, wait
from tests.rig.inventory import write_backend, write_inventory, write_service

OPERATOR_KILLED = "operator killed at a random instant"
SUPERVISOR_KILLED = "supervisor killed at a random instant"

BEFORE = "before the order"
HOST = "box"

SECONDS: Mapping[str, float] = {
    BEFORE: 2.5,
    State.CHECKED: 0.02,
    State.LOCKED: 0.02,
    State.BASELINE: 0.6,
    State.WARMING: 0.02,
    State.STAGING: 1.2,
    State.DRAINING: 0.02,
    State.STOPPING: 0.15,
    State.CLEAN: 0.02,
    State.STARTING: 0.12,
    State.ACTIVATING: 0.1,
    State.LOADING: 1.0,
    State.ANSWERING: 0.2,
    State.VERIFIED: 0.05,
    State.ROLLING_BACK: 0.1,
}
"""The states that are drawn from, and about how long each lasts here: an instant lies within that of its beginning."""

SHORT = (State.STAGING, State.DRAINING, State.STARTING, State.LOADING, State.ROLLING_BACK)
"""For a few instants: the states in which least may be lost."""

_FLOW_NAMES = {
    (False, False): "relaunch",
    (False, True): "relaunch that fails",
    (True, False): "staged relaunch",
    (True, True): "staged relaunch that fails after its activation",
}
"""By whether it is staged and whether it fails."""

UNTOUCHED = "UNTOUCHED"
"""For a state: no order was begun, and the old server serves as before."""


@dataclass(frozen=True)
class Instant:
    """When: this long after the journal came into a state.

    `fails`: the new server does not come up. `staged`: it starts beside the old one.
    """

    number: int
    state: str
    after: float
    fails: bool
    staged: bool

    @property
    def name(self) -> str:
        how = f"{'failing ' if self.fails else ''}{'staged ' if self.staged else ''}relaunch"
        return f"{self.number:03d}: {how}, {self.state} + {self.after * 1000:.0f} ms"


def instants(count: int, seed: int, states: Sequence[str]) -> list[Instant]:
    """As many instants, every state in turn."""
    chance = random.Random(seed)
    drawn = []
    for number in range(count):
        state = states[number % len(states)]
        fails = state == State.ROLLING_BACK or (state != State.VERIFIED and chance.random() < 0.4)
        staged = state in (State.STAGING, State.ACTIVATING) or (state != State.STARTING and chance.random() < 0.6)
        drawn.append(Instant(number, state, chance.uniform(0.0, SECONDS[state]), fails, staged))
    return drawn


def supervisor_cases(count: int, seed: int, states: Sequence[str] = tuple(SECONDS)[1:]) -> list[Case]:
    drawn = instants(count, seed, states)
    return [_supervisor_case(instant, flow_named(_FLOW_NAMES[instant.staged, instant.fails])) for instant in drawn]


def _supervisor_case(instant: Instant, flow: Flow) -> Case:
    return Case(SUPERVISOR_KILLED, f"supervisor {instant.name}", lambda lane: _kill_supervisor(lane, flow, instant), (flow.state,))


def _kill_supervisor(lane: Lane, flow: Flow, instant: Instant) -> Ending:
    old, order = flow.prepare(lane)
    order_id = lane.submit(order)
    pid = lane.supervisor(order_id)
    assert pid is not None
    lane.wait_state(order_id, instant.state, *State.FINAL)
    time.sleep(instant.after)
    lane.signal(pid, signal.SIGKILL)
    lane.wait_end(order_id)
    return judge(lane, order_id, old)


def operator_cases(count: int, seed: int, folder: Path, states: Sequence[str] = tuple(SECONDS)) -> list[Case]:
    """`folder` is for inventories and homes."""
    return [_operator_case(instant, folder) for instant in instants(count, seed, states)]


def _operator_case(instant: Instant, folder: Path) -> Case:
    states = [State.RESTORED if instant.fails else State.DONE]
    if instant.state == BEFORE:
        states.append(UNTOUCHED)
    return Case(OPERATOR_KILLED, f"operator {instant.name}", lambda lane: _kill_operator(lane, instant, folder), states)


def _kill_operator(lane: Lane, instant: Instant, folder: Path) -> Ending:
    old = lane.serving()
    before = orders_of(lane)
    with operator_at_work(lane, folder, "bad" if instant.fails else "good", staged=instant.staged) as process:
        if instant.state != BEFORE:
            order_id = wait_new_order(lane, before, process)
            lane.wait_state(order_id, instant.state, *State.FINAL)
        time.sleep(instant.after)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    if not wait(lambda: bool(orders_of(lane) - before), 2.0):
        return judge_untouched(lane, old, UNTOUCHED)
    order_id = min(orders_of(lane) - before)
    lane.wait_end(order_id)
    return judge(lane, order_id, old)


@contextmanager
def operator_at_work(lane: Lane, folder: Path, backend: str, *, staged: bool) -> Iterator[subprocess.Popen[bytes]]:
    """``fab relaunch`` by somebody at a laptop, over ssh; the process is ended with the block."""
    if staged:
        lane.know_footprint()
    home = folder / lane.name
    inventory = home / "inventory"
    if not inventory.exists():
        _describe(lane, inventory)
    errors = home / "errors.txt"
    command = [sys.executable, "-m", "orchestrator", "relaunch", "--json", "--inventory", str(inventory), "--host", HOST]
    command += ["--backend", backend, "--yes", "--force", "--accept-drift", "--no-measure", *([] if staged else ["--sequential"])]
    environment = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
    environment |= {"HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    with errors.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def _describe(lane: Lane, inventory: Path) -> None:
    """An inventory with the lane's box and service, a backend that comes up and one that does not."""
    ssh = lane.container.ssh

    def login() -> dict[str, Any]:
        return {"address": ssh.address, "port": ssh.port, "user": ssh.user, "identity_files": [str(ssh.key)], "agent": False}

    inside = {"reached_by": "ssh", "id": int(lane.container.name), "state_root": STATE, **login()}
    write_inventory(inventory, {HOST: {**login(), "container": inside}}, ssh.known_hosts_line)
    policy = {name: value for name, value in lane.policy.items() if name != "measure"}
    service: dict[str, Any] = {"host": HOST, "python": PYTHON, "model": MODEL, "bind": "127.0.0.1", "port": PORT}
    write_service(inventory, lane.service, {**service, "environment": lane.environment(), "policy": policy})
    write_backend(inventory, "good", {})
    write_backend(inventory, "bad", {"--max-running-requests": 7})
    path = inventory / "backends/bad.yml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("  arguments:", "  environment:\n    SGLANG_STANDIN_FAIL_AT: kv_cache\n  arguments:"), encoding="utf-8")


def orders_of(lane: Lane) -> set[str]:
    try:
        return {path.name for path in (lane.state / "orders").iterdir() if (path / "order.json").exists()}
    except OSError:
        return set()


def wait_new_order(lane: Lane, before: set[str], process: subprocess.Popen[bytes]) -> str:
    if not wait(lambda: bool(orders_of(lane) - before) or process.poll() is not None) or not orders_of(lane) - before:
        raise AssertionError("the operator's program ended without an order")
    return min(orders_of(lane) - before)
