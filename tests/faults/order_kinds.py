"""What may be done to an order, to its files, and to the servers while it is at work: on one box, with the stand-in."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from orchestrator.agent.failure_classes import Category
from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.faults import SECTION, During, Fault, at, at_member
from tests.faults.lane import PORT, PYTHON, STATE, Lane, wait

_STALL = {"load_stall": 8}
"""Bounds the server that is put back too, which a busy machine may keep waiting for a core."""


def _flood(lane: Lane) -> None:
    log = f"{STATE}/{lane.service}/launches/*/server.log"
    lane.shell(f"newest=$(ls -dt {log} | head -n 1); yes 'the same line over and over, as a loop writes it' | head -c 400M >> $newest")


def steal(lane: Lane) -> None:
    lane.shell(f"setsid --fork {PYTHON} /opt/faults/thief.py {PORT} >/dev/null 2>&1 </dev/null")


def end_title(lane: Lane, part: str) -> bool:
    """SIGKILL to what has `part` in its title; whether there was any."""
    pids = [pid for pid, _, title, state in lane.driver.ask("processes") if part in title and state not in "ZX"]
    for pid in pids:
        lane.signal(pid, signal.SIGKILL)
    return bool(pids)


def thief_goes(lane: Lane, _order_id: str) -> Sequence[str]:
    return () if end_title(lane, "thief.py") else ["the thief was touched"]


def thief_goes_in_rollback(lane: Lane, order_id: str) -> None:
    lane.wait_state(order_id, State.LOADING)
    steal(lane)
    lane.wait_state(order_id, State.ROLLING_BACK, *State.FINAL)
    end_title(lane, "thief.py")


def fill_shared_memory(lane: Lane) -> None:
    lane.shell("mount -o remount,size=256k /dev/shm; cat /dev/zero > /dev/shm/filler")


def free_shared_memory(lane: Lane) -> None:
    lane.shell("rm -f /dev/shm/filler; mount -o remount,size=1g /dev/shm")


def _somebody_starts_by_hand(lane: Lane) -> None:
    argv = [PYTHON, "-m", "sglang.launch_server", *lane.arguments()]
    lane.driver.ask("start_by_hand", argv=argv, environment=lane.environment(), log="/root/by-hand.log", unit="")


def _by_hand_lives(lane: Lane, _order_id: str) -> Sequence[str]:
    found = lane.server()
    lives = found is not None and found["manager"] == "session" and lane.driver.ask("answers", port=PORT, service=lane.service)
    for pid in lane.members().values():
        lane.signal(pid, signal.SIGKILL)
    wait(lambda: lane.server() is None, 20.0)
    return () if lives else [f"the server that somebody started by hand was touched: {found}"]


def _stop_unit(lane: Lane, order_id: str) -> None:
    lane.wait_state(order_id, State.LOADING)
    lane.shell(f"systemctl stop orchestrator-{lane.service}-order-{order_id}.service")


def _resume(lane: Lane, order_id: str) -> None:
    answer = lane.driver.ask("resume", service=lane.service, order_id=order_id)
    assert "refused" not in answer, answer


def _stop_and_resume(lane: Lane, order_id: str) -> None:
    _stop_unit(lane, order_id)
    status = lane.driver.ask("status", service=lane.service, order_id=order_id)
    assert status["state"].startswith("INTERRUPTED("), status
    _resume(lane, order_id)


def _tear_journal(lane: Lane, order_id: str) -> None:
    _stop_unit(lane, order_id)
    path = lane.state / "orders" / order_id / "journal.jsonl"
    whole = path.read_bytes().partition(b"\0")[0]
    path.write_bytes(whole[: -(len(whole.splitlines()[-1]) // 2)])
    _resume(lane, order_id)


def _torn_journal_with_room(lane: Lane, order_id: str) -> None:
    _stop_unit(lane, order_id)
    path = lane.state / "orders" / order_id / "journal.jsonl"
    whole = path.read_bytes().partition(b"\0")[0]
    path.write_bytes(whole + b'{"sequence": 99, "state": "DO' + b"\0" * 4096)
    _resume(lane, order_id)


def _stop_supervisor_for(seconds: float) -> During:
    def during(lane: Lane, order_id: str) -> None:
        lane.wait_state(order_id, State.LOADING)
        pid = lane.supervisor(order_id)
        assert pid is not None
        lane.signal(pid, signal.SIGSTOP)
        time.sleep(seconds)
        lane.signal(pid, signal.SIGCONT)

    return during


def kill_supervisor_times(count: int, state: str = State.LOADING) -> During:
    """From a state on, each one once it has taken the order over and said so."""

    def during(lane: Lane, order_id: str) -> None:
        lane.wait_state(order_id, state, *State.FINAL)
        for number in range(count):
            assert wait(lambda: lane.resumed(order_id) == number), lane.states(order_id)  # noqa: B023 - waited for here
            pid = lane.supervisor(order_id)
            assert pid is not None
            lane.signal(pid, signal.SIGKILL)

    return during


def _second_operator(lane: Lane, order_id: str) -> None:
    lane.wait_state(order_id, State.LOADING)
    found = lane.server()
    other = lane.order(found and found["main"], None, kind="teardown")
    answer = lane.driver.ask("submit", order=other)
    assert answer.get("refused", {}).get("category") == "locked", answer


def _comes_back(lane: Lane, order_id: str) -> Sequence[str]:
    """The server crashes once it is verified; the unit for that brings the same launch back."""
    found = lane.server()
    assert found is not None
    lane.signal(found["main"]["pid"], signal.SIGKILL)

    def back() -> bool:
        now = lane.server()
        return now is not None and now["listening"] and now["main"] != found["main"] and now["launch_id"] == found["launch_id"]

    return () if wait(back, 90.0) else [f"it did not come back: {lane.server()}"]


def _escapee_gone(lane: Lane, _order_id: str) -> Sequence[str]:
    left = [title for _, _, title, state in lane.driver.ask("processes") if "sglang.standin.process" in title and state not in "ZX"]
    return [f"left over: {title}" for title in left]


STOPS = [
    Fault(
        "TERM ignored", "no process of the old server ends by it", (State.DONE,), old_settings={"ignore_sigterm": "1"}, policy={"grace": 1}
    ),
    Fault(
        "child in a session of its own",
        "a child of the old server, by hand, that outlives all of it",
        (State.DONE,),
        old="session",
        old_settings={"escapee": "1"},
        after=_escapee_gone,
    ),
    Fault(
        "SIGSTOPped scheduler of the old server",
        "kill -STOP: it answers no health check any more",
        (State.DONE,),
        before=lambda lane: lane.signal(lane.wait_member("sglang::scheduler"), signal.SIGSTOP),
        policy={"verify": 10},
    ),
    Fault(
        "scheduler of the old server dies in the drain",
        "kill -KILL while it is being stopped",
        (State.DONE,),
        during=at_member(State.DRAINING, "sglang::scheduler", signal.SIGKILL),
    ),
    Fault(
        "shared memory left behind",
        "SIGKILL with /dev/shm/psm_* mapped",
        (State.DONE,),
        policy={"grace": 1},
        old_settings={"ignore_sigterm": "1", "shared_memory": "1"},
    ),
]

LOADS = [
    Fault(
        "somebody kills the new server while it loads",
        "kill -KILL",
        categories=(Category.KILLED,),
        settings={"slow_start": "3"},
        during=at_member(State.LOADING, "sglang.launch_server", signal.SIGKILL),
    ),
    Fault(
        "somebody stops the new server while it loads",
        "kill -TERM",
        categories=(Category.INTERRUPTED,),
        settings={"slow_start": "3"},
        during=at_member(State.LOADING, "sglang.launch_server", signal.SIGTERM),
    ),
    Fault(
        "scheduler killed while it loads",
        "kill -KILL",
        categories=(Category.KILLED,),
        settings={"slow_start": "3"},
        during=at_member(State.LOADING, "sglang::scheduler", signal.SIGKILL),
    ),
    Fault(
        "SIGSTOPped scheduler while it loads",
        "kill -STOP; load_stall 8 s",
        categories=(Category.STALLED,),
        settings={"slow_start": "3"},
        policy=_STALL,
        during=at_member(State.LOADING, "sglang::scheduler", signal.SIGSTOP),
    ),
    Fault(
        "out of time",
        "load_total 12 s for a load of 40 s",
        categories=(Category.TIMED_OUT,),
        settings={"slow_start": "40"},
        policy={"load_total": 12},
    ),
    Fault(
        "log flood",
        "400 MB are written to the log while it loads",
        (State.DONE,),
        settings={"slow_start": "3"},
        during=at(State.LOADING, _flood),
    ),
    Fault(
        "port stolen after the stop",
        "somebody binds it the moment that it is free",
        (State.DOWN,),
        policy={"clean": 4},
        before=steal,
        after=thief_goes,
    ),
    Fault(
        "port stolen while it loads, and kept",
        "somebody binds it",
        (State.DOWN,),
        (Category.PORT_IN_USE,),
        policy={"clean": 4},
        settings={"slow_start": "1"},
        during=at(State.LOADING, steal),
        after=thief_goes,
    ),
    Fault(
        "port stolen while it loads, and given back",
        "somebody binds it until the launch has failed",
        categories=(Category.PORT_IN_USE,),
        settings={"slow_start": "1"},
        during=thief_goes_in_rollback,
    ),
    Fault(
        "somebody starts a server by hand in the dark time",
        "it gets the port first",
        (State.DOWN,),
        (Category.PORT_IN_USE,),
        policy={"clean": 4},
        settings={"slow_start": "8"},
        during=at(State.CLEAN, _somebody_starts_by_hand),
        after=_by_hand_lives,
    ),
    Fault(
        "/dev/shm full",
        "a small one is filled, until the launch has failed",
        categories=(Category.SHARED_MEMORY,),
        launch={"entry": ["/opt/faults/needs_lock.py"]},
        before=fill_shared_memory,
        during=at(State.ROLLING_BACK, free_shared_memory),
    ),
    Fault("crash after verified", "kill -KILL to the main process", (State.DONE,), after=_comes_back),
]

ORDERS = [
    Fault(
        "supervisor's unit stopped by hand, then resumed",
        "systemctl stop; the verb resume",
        (State.DONE,),
        settings={"slow_start": "1"},
        during=_stop_and_resume,
    ),
    Fault(
        "journal cut in mid-line",
        "half of its last line is cut off, as by a lost power supply",
        (State.DONE,),
        settings={"slow_start": "1"},
        during=_tear_journal,
    ),
    Fault(
        "journal with half a line before reserved room",
        "a line that was begun",
        (State.DONE,),
        settings={"slow_start": "1"},
        during=_torn_journal_with_room,
    ),
    Fault("supervisor SIGSTOPped for a while", "kill -STOP, 4 s, kill -CONT", (State.DONE,), during=_stop_supervisor_for(4.0)),
    Fault(
        "supervisor killed again and again",
        "kill -KILL, each time that it is back",
        categories=(Category.SUPERVISOR_ENDED,),
        settings={"hang_at": "weights"},
        during=kill_supervisor_times(4),
    ),
    Fault(
        "second operator", "a teardown while a relaunch is under way", (State.DONE,), settings={"slow_start": "1"}, during=_second_operator
    ),
]


def cases() -> list[Case]:
    """All of them."""
    return [fault.case(SECTION) for fault in (*STOPS, *LOADS, *ORDERS)]
