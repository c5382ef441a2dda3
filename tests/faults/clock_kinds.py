"""A wall clock that is stepped while an order is at work, or between two orders.

A container has no wall clock of its own, so a library (``in_container/stepped_clock.c``) is preloaded into every process that starts in it
meanwhile: supervisor, servers, agent. It moves CLOCK_REALTIME alone. The kernel's own stamps on files do not move with it; where they
matter they are moved by hand.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.ending import Ending, judge
from tests.faults.faults import SECTION
from tests.faults.lane import PORT, PYTHON, Lane

HOURS = 3 * 3600
LIBRARY, OFFSET, PRELOAD = "/opt/faults/stepped_clock.so", "/etc/clock-offset", "/etc/ld.so.preload"
_SOURCE = Path(__file__).parent / "in_container/stepped_clock.c"
_READ = f"{PYTHON} -I -c 'import time; print(time.time(), time.monotonic())'"
_ASK_MUCH = f"""\
setsid --fork {PYTHON} -I -c '
import json, urllib.request
asked = {{"text": "The campaign asks", "sampling_params": {{"max_new_tokens": 1000, "ignore_eos": True}}}}
head = {{"Content-Type": "application/json"}}
urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:{PORT}/generate", json.dumps(asked).encode(), head)).read()
' >/dev/null 2>&1 </dev/null
"""
"""A request of some seconds, so that there is something to drain."""
_SLACK = 30.0
"""Seconds, next to steps of hours."""


@contextmanager
def own_clock(lane: Lane) -> Iterator[None]:
    """The box has a wall clock of its own for as long as this lasts. What serves is ended before and after: its clock is another's."""
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(lane.container.path(LIBRARY)), str(_SOURCE)], check=True, timeout=60)
    lane.clear()
    step(lane, 0)
    lane.container.write(PRELOAD, LIBRARY + "\n")
    lane.driver.close()
    try:
        yield
    finally:
        lane.container.path(PRELOAD).unlink()
        lane.driver.close()
        lane.clear()
        lane.container.path(OFFSET).unlink()


def step(lane: Lane, seconds: int) -> None:
    """Set the box's wall clock to be this far from the machine's."""
    path = lane.container.path(OFFSET)
    fresh = path.with_name("clock-offset.new")
    fresh.write_text(f"{seconds}\n", encoding="ascii")
    fresh.replace(path)


def _clock_problems(lane: Lane, seconds: int) -> list[str]:
    """Unless a new process there has the stepped wall clock and the true monotonic one."""
    before = time.monotonic()
    wall, monotonic = map(float, lane.shell(_READ).split())
    after = time.monotonic()
    stepped, true = abs(wall - time.time() - seconds) < _SLACK, before <= monotonic <= after
    return [] if stepped and true else [f"the clock was not stepped by {seconds} s alone: {wall} {monotonic}, between {before} and {after}"]


def _journal_problems(lane: Lane, order_id: str, steps: Mapping[str, int]) -> list[str]:
    """Unless the journal's lines are in order, the supervisor has seen each step, and the dark time is no part of one."""
    entries = lane.journal(order_id)
    moments = [entry["monotonic"] for entry in entries]
    numbers = [entry["sequence"] for entry in entries]
    problems = [] if numbers == list(range(1, len(entries) + 1)) else [f"the journal's lines are numbered {numbers}"]
    problems += [] if moments == sorted(moments) else [f"the journal's monotonic times run backwards: {moments}"]
    offsets = [entry["time"] - entry["monotonic"] - (time.time() - time.monotonic()) for entry in entries]
    shown = {entries[at - 1]["state"]: round(offsets[at]) for at in range(1, len(entries)) if abs(offsets[at] - offsets[at - 1]) > _SLACK}
    if list(shown) != list(steps) or any(abs(shown[state] - seconds) > _SLACK for state, seconds in steps.items()):
        problems.append(f"the journal shows other steps than {dict(steps)}: {shown}")
    dark = lane.result(order_id).get("dark_seconds")
    if dark is None or not 0.0 < dark <= moments[-1] - moments[0]:
        problems.append(f"dark for {dark} s in an order of {moments[-1] - moments[0]:.1f} s")
    return problems


def _stepped(steps: Mapping[str, int], lane: Lane, *, fails: bool) -> Ending:
    """One order; the clock is stepped as it comes into each of these states."""
    with own_clock(lane):
        old = lane.serving(tokens_per_second="250")
        lane.shell(_ASK_MUCH)
        settings = {"SGLANG_STANDIN_SLOW_START": "2", **({"SGLANG_STANDIN_FAIL_AT": "kv_cache"} if fails else {})}
        order_id = lane.submit(lane.order(old, lane.launch("new", environment=settings), policy={"drain": 2}))
        problems: list[str] = []
        for state, seconds in steps.items():
            lane.wait_state(order_id, state)
            step(lane, seconds)
            problems += _clock_problems(lane, seconds)
        lane.wait_end(order_id)
        ending = judge(lane, order_id, old)
        ending.problems += [*problems, *_journal_problems(lane, order_id, steps)]
        return ending


def _between_two_orders(lane: Lane) -> Ending:
    """Each launch and order is named by the box's clock, as by an operator's who has the same one."""
    with own_clock(lane):
        old = lane.serving()
        first = _relaunch(lane, "first", old, 0)
        found = lane.server()
        assert found is not None
        step(lane, -HOURS)
        second = _relaunch(lane, "second", found["main"], -HOURS)
        ending = judge(lane, second, found["main"])
        known = lane.driver.ask("known", service=lane.service, port=PORT)
        newest = lane.driver.ask("status", service=lane.service, order_id=None)["order_id"]
        told = {"order": newest, "launch": known["launches"][-1]["launch"]["launch_id"], "the one before": known["previous"]}
        right = {"order": second, "launch": second, "the one before": first}
        ending.problems += [*_clock_problems(lane, -HOURS), *([] if told == right else [f"{told} instead of {right}"])]
        return ending


def _relaunch(lane: Lane, backend: str, old: dict[str, Any], seconds: int) -> str:
    began = time.time()
    name = time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime(began + seconds)) + backend
    launch = {**lane.launch(backend), "launch_id": name}
    order_id = lane.submit(lane.order(old, launch, order_id=name))
    lane.wait_end(order_id)
    for path in lane.state.rglob("*"):
        stamp = path.lstat().st_mtime
        if stamp >= began:
            os.utime(path, (stamp + seconds, stamp + seconds), follow_symlinks=False)
    return order_id


def cases() -> list[Case]:
    """All of them."""
    how = f"by {HOURS // 3600} hours, for every process that starts on the box"
    orders = [
        Case(SECTION, f"clock stepped {where} in {state}", partial(_stepped, {state: seconds}, fails=False), (State.DONE,), how=how)
        for state in (State.DRAINING, State.LOADING)
        for where, seconds in (("forward", HOURS), ("back", -HOURS))
    ]
    return [
        *orders,
        Case(
            SECTION,
            "clock stepped to and fro in an order that fails",
            partial(_stepped, {State.DRAINING: HOURS, State.LOADING: -HOURS}, fails=True),
            (State.RESTORED,),
            how=f"forward in DRAINING, back in LOADING, {how}",
        ),
        Case(
            SECTION,
            "clock stepped back between two orders",
            _between_two_orders,
            (State.DONE,),
            how=f"{how}, and the times of files with it; the newest order and the launch to go back to have to be the right ones",
        ),
    ]
