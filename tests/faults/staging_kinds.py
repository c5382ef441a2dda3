"""What may happen while a new server waits at its gate beside the old one: until the old one is stopped, none of it may cost service."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.agent.failure_classes import Category
from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.ending import Ending, judge
from tests.faults.faults import SECTION, Fault
from tests.faults.lane import PYTHON, Lane
from tests.faults.order_kinds import (
    fill_shared_memory,
    free_shared_memory,
    kill_supervisor_times,
    steal,
    thief_goes,
    thief_goes_in_rollback,
)
from tests.faults.server_kinds import playback

_GPU = {"compute_capability": "12.0"}
_STALL = {"load_stall": 3}
_UNHURRIED = {"SGLANG_STANDIN_TIME_SCALE": "0.3"}
"""Three seconds to the gate: time to do something meanwhile."""
_STUBBORN = {"ignore_sigterm": "1"}
"""An old server that takes its whole grace to stop."""


def staged_fault(name: str, how: str, states: Sequence[str], categories: Sequence[str] = (), **more: Any) -> Fault:
    """A fault of a staged relaunch; one that is refused has the operator's exit code for that."""
    code = 3 if tuple(states) == (State.REFUSED,) else None
    return Fault(f"staged: {name}", how, states, categories, code, order={"staged": True}, **more)


def gate_port(lane: Lane, order_id: str) -> int:
    """The port that the newest intent in the journal names."""
    return next(int(entry["data"]["gate_port"]) for entry in reversed(lane.journal(order_id)) if entry["data"].get("gate_port"))


def in_staging(action: Callable[[Lane, str], None]) -> Callable[[Lane, str], None]:
    def during(lane: Lane, order_id: str) -> None:
        assert lane.wait_state(order_id, State.STAGING, *State.FINAL) == State.STAGING
        action(lane, order_id)

    return during


def steal_gate(lane: Lane, order_id: str) -> None:
    lane.shell(f"setsid --fork {PYTHON} /opt/faults/thief.py {gate_port(lane, order_id)} >/dev/null 2>&1 </dev/null")


def open_gate(lane: Lane, order_id: str) -> None:
    lane.shell(f"setsid --fork {PYTHON} /opt/faults/opens_gate.py {gate_port(lane, order_id)} >/dev/null 2>&1 </dev/null")


def kill_old(lane: Lane, _order_id: str) -> None:
    found = lane.server()
    assert found is not None
    assert found["listening"]
    lane.signal(found["main"]["pid"], signal.SIGKILL)


def signal_staged(number: int) -> Callable[[Lane, str], None]:
    def action(lane: Lane, _order_id: str) -> None:
        lane.signal(lane.wait_staged()["main"]["pid"], number)

    return action


def _kill_staged_in(state: str) -> Callable[[Lane, str], None]:
    def during(lane: Lane, order_id: str) -> None:
        pid = lane.wait_staged()["main"]["pid"]
        lane.wait_state(order_id, state, *State.FINAL)
        lane.signal(pid, signal.SIGKILL)

    return during


def _cancel(lane: Lane, order_id: str) -> None:
    answer = lane.driver.ask("cancel", service=lane.service, order_id=order_id)
    assert "refused" not in answer, answer


def kill_supervisor(lane: Lane, order_id: str) -> None:
    pid = lane.supervisor(order_id)
    assert pid is not None
    lane.wait_staged()
    lane.signal(pid, signal.SIGKILL)


def was_resumed(lane: Lane, order_id: str) -> Sequence[str]:
    return () if lane.resumed(order_id) else ["no supervisor took it over"]


def _stop_unit_and_resume(lane: Lane, order_id: str) -> None:
    _stop_unit(lane, order_id)
    _resume(lane, order_id)


def _resume(lane: Lane, order_id: str) -> None:
    answer = lane.driver.ask("resume", service=lane.service, order_id=order_id)
    assert "refused" not in answer, answer


def _stop_unit(lane: Lane, order_id: str) -> None:
    lane.wait_staged()
    lane.shell(f"systemctl stop orchestrator-{lane.service}-order-{order_id}.service")
    status = lane.driver.ask("status", service=lane.service, order_id=order_id)
    assert status["state"] == f"INTERRUPTED({State.STAGING})", status


def _was(*wanted: str, never: str = "") -> Callable[[Lane, str], Sequence[str]]:
    """Whether the journal has these states, and one not."""

    def after(lane: Lane, order_id: str) -> Sequence[str]:
        states = lane.states(order_id)
        problems = [f"it was never {state}" for state in wanted if state not in states]
        return [*problems, f"it was {never}"] if never in states else problems

    return after


def _with_room_again(lane: Lane, order_id: str) -> Sequence[str]:
    free_shared_memory(lane)
    return _was(State.STARTING, never=State.STAGING)(lane, order_id)


BEFORE_THE_GATE = [
    *(
        staged_fault(
            f"hang in {phase}",
            f"the stand-in stops for ever at the beginning of {phase}; load_stall 3 s",
            (State.REFUSED,),
            (Category.STALLED,),
            settings={"hang_at": phase, **_GPU},
            policy=_STALL,
        )
        for phase in ("imports", "child_imports", "distributed", "gate")
    ),
    *(
        staged_fault(
            f"failure in {phase}",
            f"the stand-in's scheduler raises at the beginning of {phase}",
            (State.REFUSED,),
            (Category.OUT_OF_MEMORY,),
            settings={"fail_at": phase, **_GPU},
        )
        for phase in ("child_imports", "distributed", "gate")
    ),
    staged_fault("argument refused", "--no-such-flag", (State.REFUSED,), (Category.ARGUMENT_REFUSED,), arguments=["--no-such-flag", "1"]),
    staged_fault("wrong python", "python: /usr/bin/true", (State.REFUSED, State.RESTORED), launch={"python": "/usr/bin/true"}),
    *(
        playback(name, category, name=f"staged: log played back: {name}", states=(State.REFUSED,), exit_code=3, order={"staged": True})
        for name, category in (("missing_module", Category.MISSING_MODULE), ("driver_library_mismatch", Category.VERSION_MISMATCH))
    ),
    staged_fault(
        "out of time before the gate",
        "stage_total 5 s for a start that hangs",
        (State.REFUSED,),
        (Category.TIMED_OUT,),
        settings={"hang_at": "gate"},
        policy={"stage_total": 5},
    ),
    staged_fault(
        "somebody kills it",
        "kill -KILL to its main process before the gate",
        (State.REFUSED,),
        (Category.KILLED,),
        environment=_UNHURRIED,
        during=in_staging(signal_staged(signal.SIGKILL)),
    ),
    staged_fault(
        "somebody stops it",
        "kill -TERM to its main process before the gate",
        (State.REFUSED,),
        (Category.INTERRUPTED,),
        environment=_UNHURRIED,
        during=in_staging(signal_staged(signal.SIGTERM)),
    ),
    staged_fault("stopped safely by the operator", "cancel", (State.REFUSED,), environment=_UNHURRIED, during=in_staging(_cancel)),
    staged_fault(
        "no room any more",
        "/dev/shm is full once the plan was made: it is started after the stop",
        (State.DONE,),
        before=fill_shared_memory,
        after=_with_room_again,
    ),
]

AT_THE_GATE = [
    staged_fault(
        "dies at its gate",
        "the first scheduler gets SIGKILL as it opens its gate",
        (State.REFUSED,),
        (Category.KILLED, Category.SCHEDULER_DIED),
        settings={"die_at_gate": "0.01"},
    ),
    staged_fault(
        "gate's port stolen",
        "somebody binds it before the server does, which then says that it waits",
        (State.REFUSED,),
        (Category.PORT_IN_USE,),
        environment=_UNHURRIED,
        during=in_staging(steal_gate),
        after=thief_goes,
    ),
    staged_fault(
        "activated by somebody else",
        "POST /gate/activate as soon as the gate is open",
        (State.REFUSED,),
        (Category.GATE_OPENED,),
        settings={"activated_early": "1"},
    ),
    staged_fault(
        "old server dies by itself",
        "kill -KILL to its main process while the other is on the way to its gate",
        (State.DONE,),
        environment=_UNHURRIED,
        during=in_staging(kill_old),
        after=_was(State.ACTIVATING),
    ),
    staged_fault(
        "old server dies by itself, and the new one fails before its gate",
        "kill -KILL to its main process; the stand-in's scheduler raises",
        (State.RESTORED,),
        (Category.OUT_OF_MEMORY,),
        environment=_UNHURRIED,
        settings={"fail_at": "gate"},
        during=in_staging(kill_old),
    ),
    staged_fault(
        "dies while the old server is stopped",
        "kill -KILL to its main process; the old one takes 2 s to stop",
        (State.RESTORED,),
        (Category.KILLED,),
        old_settings=_STUBBORN,
        policy={"grace": 2},
        during=_kill_staged_in(State.DRAINING),
    ),
    staged_fault(
        "port stolen after the stop",
        "somebody binds it the moment that it is free, while the new server is at its gate",
        (State.DOWN,),
        policy={"clean": 4},
        before=steal,
        after=thief_goes,
    ),
    staged_fault(
        "port stolen while it loads, and given back",
        "somebody binds it until the launch has failed",
        (State.RESTORED,),
        (Category.PORT_IN_USE,),
        settings={"slow_start": "1"},
        during=thief_goes_in_rollback,
    ),
    staged_fault(
        "activation lost",
        "the gate answers it, and nobody goes on",
        (State.RESTORED,),
        (Category.NOT_ACTIVATED,),
        settings={"activation_lost": "1"},
    ),
    staged_fault(
        "hang after the activation",
        "the stand-in stops for ever at the beginning of weights; load_stall 3 s",
        (State.RESTORED,),
        (Category.STALLED,),
        settings={"hang_at": "weights"},
        policy=_STALL,
    ),
    staged_fault(
        "failure after the activation",
        "the stand-in's scheduler raises at the beginning of kv_cache; the way back is staged too",
        (State.RESTORED,),
        (Category.OUT_OF_MEMORY_WEIGHTS,),
        settings={"fail_at": "kv_cache"},
        after=_was(State.ACTIVATING, never=State.STARTING),
    ),
    staged_fault(
        "switch from somebody's unit",
        "the unit is kept from restarting, and given back when the new server fails",
        (State.RESTORED,),
        (Category.OUT_OF_MEMORY_WEIGHTS,),
        old="systemd_unit",
        settings={"fail_at": "kv_cache"},
    ),
]

SUPERVISED = [
    staged_fault(
        "supervisor killed",
        "kill -KILL while the new server is on the way to its gate",
        (State.DONE,),
        environment=_UNHURRIED,
        during=in_staging(kill_supervisor),
        after=was_resumed,
    ),
    staged_fault(
        "supervisor killed again and again",
        "kill -KILL, each time that it is back",
        (State.REFUSED,),
        (Category.SUPERVISOR_ENDED,),
        settings={"hang_at": "gate"},
        during=kill_supervisor_times(4, State.STAGING),
    ),
    staged_fault(
        "supervisor's unit stopped by hand, then resumed",
        "systemctl stop; the verb resume",
        (State.DONE,),
        environment=_UNHURRIED,
        during=in_staging(_stop_unit_and_resume),
    ),
]


def _torn_down(lane: Lane) -> Ending:
    """A relaunch is cut off while its server is staged: a teardown waits for who brings that to its end, and leaves neither server."""
    old = lane.serving()
    cut_off = lane.submit(lane.order(old, lane.launch("new", environment=_UNHURRIED), staged=True))
    lane.wait_state(cut_off, State.STAGING)
    _stop_unit(lane, cut_off)
    answer = lane.driver.ask("submit", order=lane.order(old, None, kind="teardown"))
    assert answer.get("refused", {}).get("category") == "interrupted", answer
    _resume(lane, cut_off)
    lane.driver.ask("cancel", service=lane.service, order_id=cut_off)
    lane.wait_end(cut_off)
    found = lane.server()
    assert found is not None
    order_id = lane.submit(lane.order(found["main"], None, kind="teardown"))
    lane.wait_end(order_id)
    ending = judge(lane, order_id, found["main"])
    gate = gate_port(lane, cut_off)
    if lane.shell(f"ss -Hltn 'sport = :{gate}'").strip():
        ending.problems.append(f"somebody still listens on the gate's port {gate}")
    return ending


def _dies_twice(lane: Lane) -> Ending:
    """The old server dies, and so does the supervisor: whoever takes over finds the one gone and the other at its gate."""
    old = lane.serving()
    order_id = lane.submit(lane.order(old, lane.launch("new", environment=_UNHURRIED), staged=True))
    lane.wait_state(order_id, State.STAGING)
    lane.wait_staged()
    supervisor = lane.supervisor(order_id)
    assert supervisor is not None
    lane.signal(supervisor, signal.SIGKILL)
    lane.signal(old["pid"], signal.SIGKILL)
    lane.wait_end(order_id)
    return judge(lane, order_id, old)


def cases() -> list[Case]:
    """All of them."""
    return [
        *(fault.case(SECTION) for fault in (*BEFORE_THE_GATE, *AT_THE_GATE, *SUPERVISED)),
        Case(
            SECTION,
            "staged: torn down once it was cut off",
            _torn_down,
            (State.DONE,),
            how="systemctl stop; a teardown",
        ),
        Case(
            SECTION,
            "staged: old server and supervisor die together",
            _dies_twice,
            (State.DONE,),
            how="kill -KILL to both while the new server is on the way to its gate",
        ),
    ]
