"""Kinds of fault that need a box prepared by hand: processes of nobody, and a disk or a lock in a bad state."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.ending import Ending, judge
from tests.faults.faults import SECTION
from tests.faults.lane import PORT, PYTHON, STATE, Lane, wait
from tests.faults.order_kinds import end_title


def _zombie_gone(lane: Lane, _order_id: str) -> Sequence[str]:
    zombies = [pid for pid, _, _, state in lane.driver.ask("processes") if state == "Z"]
    problems = () if zombies else ("there was no zombie",)
    end_title(lane, "never_reaps.py")
    return problems


def _under_a_parent_that_never_reaps(lane: Lane) -> Ending:
    lane.clear()
    words = " ".join(lane.arguments())
    settings = " ".join(f"{name}={value}" for name, value in lane.environment().items())
    command = f"{PYTHON} /opt/faults/never_reaps.py {PYTHON} -m sglang.launch_server {words}"
    lane.shell(f"cd /root; setsid --fork env -i PATH=/usr/bin:/bin HOME=/root {settings} {command} >by-hand.log 2>&1 </dev/null")
    assert wait(lambda: bool((lane.server() or {}).get("listening")))
    found = lane.server()
    assert found is not None
    assert lane.driver.ask("answers", port=PORT, service=lane.service)
    order_id = lane.submit(lane.order(found["main"], lane.launch("new")))
    lane.wait_end(order_id)
    problems = _zombie_gone(lane, order_id)
    ending = judge(lane, order_id, found["main"])
    ending.problems += problems
    return ending


def _orphans_of_a_killed_main(lane: Lane) -> Ending:
    """Nobody's server any more, and its children go on loading: they had not come as far as dying with their parent."""
    lane.clear()
    argv = [PYTHON, "-m", "sglang.launch_server", *lane.arguments()]
    slow = {**lane.environment(), "SGLANG_STANDIN_HANG_AT": "child_imports"}
    lane.driver.ask("start_by_hand", argv=argv, environment=slow, log="/root/by-hand.log", unit="")
    lane.wait_member("multiprocessing.spawn")
    found = lane.server()
    assert found is not None
    lane.signal(found["main"]["pid"], signal.SIGKILL)
    assert wait(lambda: lane.server() is None, 20.0)
    order_id = lane.submit(lane.order(None, lane.launch("new"), kind="launch"))
    lane.wait_end(order_id)
    ending = judge(lane, order_id, None)
    ending.problems += [] if end_title(lane, "multiprocessing.spawn") else ["somebody's orphans were touched"]
    return ending


def _lock_holder_dead(lane: Lane) -> Ending:
    """The file still names an order, and no kernel's lock is on it."""
    old = lane.serving()
    lane.state.mkdir(parents=True, exist_ok=True)
    (lane.state / "lock").write_text("20200101T000000-dead", encoding="utf-8")
    order_id = lane.submit(lane.order(old, lane.launch("new")))
    lane.wait_end(order_id)
    return judge(lane, order_id, old)


def _disk_full_before(lane: Lane) -> Ending:
    """The journal's room can't be reserved; nothing was touched."""
    old = lane.serving()
    folder = f"{STATE}/{lane.service}/orders"
    lane.shell(f"mkdir -p {folder}; mount -t tmpfs -o size=1200k none {folder}; chmod 700 {folder}")
    try:
        lane.shell(f"dd if=/dev/zero of={folder}/.filler bs=1k count=600 2>/dev/null")
        order_id = lane.submit(lane.order(old, lane.launch("new")))
        lane.wait_end(order_id)
        return judge(lane, order_id, old)
    finally:
        lane.shell(f"umount -l {folder}")


def _disk_full_meanwhile(lane: Lane) -> Ending:
    """From the load on not a byte can be written; the journal has its room."""
    old = lane.serving()
    folder = f"{STATE}/{lane.service}/orders"
    lane.shell(f"mkdir -p {folder}; mount -t tmpfs -o size=8m none {folder}; chmod 700 {folder}")
    try:
        order_id = lane.submit(lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_SLOW_START": "1"})))
        lane.wait_state(order_id, State.LOADING)
        lane.shell(f"dd if=/dev/zero of={folder}/.filler bs=1k 2>/dev/null")
        lane.wait_end(order_id)
        return judge(lane, order_id, old)
    finally:
        lane.shell(f"umount -l {folder}")


OTHERS = [
    Case(SECTION, "zombie main", _under_a_parent_that_never_reaps, (State.DONE,), how="its parent never asks how it ended"),
    Case(
        SECTION,
        "orphan scheduler of somebody's server",
        _orphans_of_a_killed_main,
        (State.DONE,),
        how="its main dies while they import",
    ),
    Case(SECTION, "lock holder dead", _lock_holder_dead, (State.DONE,), how="the lock's file names an order that is gone"),
    Case(SECTION, "disk full before", _disk_full_before, (State.REFUSED,), exit_code=3, how="no room for the journal: a small tmpfs"),
    Case(SECTION, "disk full meanwhile", _disk_full_meanwhile, (State.DONE,), how="the tmpfs is filled while the new server loads"),
]


def cases() -> list[Case]:
    """All of them."""
    return OTHERS
