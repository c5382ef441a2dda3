"""The same judgement with the real SGLang on CPU: faults that a stand-in can't be trusted with."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.agent.failure_classes import Category
from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.faults import Fault, at_member
from tests.faults.lane import MODEL, Lane
from tests.faults.order_kinds import thief_goes, thief_goes_in_rollback
from tests.faults.staging_kinds import (
    in_staging,
    kill_old,
    kill_supervisor,
    open_gate,
    signal_staged,
    staged_fault,
    steal_gate,
    was_resumed,
)

SECTION = "kinds of fault, real SGLang"


def _damage_model(lane: Lane) -> None:
    folder = lane.container.path("/srv/models/damaged")
    folder.mkdir(parents=True, exist_ok=True)
    for path in lane.container.path(MODEL).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = folder / "config.json"
    config.write_bytes(config.read_bytes()[:100])


def _unknown_model(lane: Lane) -> None:
    _damage_model(lane)
    whole: dict[str, Any] = json.loads(lane.container.path(f"{MODEL}/config.json").read_text(encoding="utf-8"))
    whole |= {"architectures": ["NobodysForCausalLM"]}
    lane.container.write("/srv/models/damaged/config.json", json.dumps(whole))


def _kill_supervisor(state: str) -> Callable[[Lane, str], None]:
    def during(lane: Lane, order_id: str) -> None:
        pid = lane.supervisor(order_id)
        assert pid is not None
        lane.wait_state(order_id, state, *State.FINAL)
        time.sleep(0.5 if state == State.LOADING else 0.0)
        lane.signal(pid, signal.SIGKILL)

    return during


def _resumed(lane: Lane, order_id: str) -> Sequence[str]:
    return () if lane.resumed(order_id) else ["no supervisor took it over"]


MODEL_DAMAGED = ["--model-path", "/srv/models/damaged"]

STAGED = [
    staged_fault("argument refused", "--no-such-flag", (State.REFUSED,), (Category.ARGUMENT_REFUSED,), arguments=["--no-such-flag", "1"]),
    staged_fault(
        "checkpoint unreadable",
        "config.json is cut off",
        (State.REFUSED,),
        (Category.CHECKPOINT_UNREADABLE,),
        arguments=MODEL_DAMAGED,
        before=_damage_model,
    ),
    staged_fault(
        "gate's port stolen",
        "somebody binds it before the server does, which then says that it waits",
        (State.REFUSED,),
        (Category.PORT_IN_USE,),
        during=in_staging(steal_gate),
        after=thief_goes,
    ),
    staged_fault(
        "activated by somebody else",
        "POST /gate/activate as soon as the gate is open",
        (State.REFUSED,),
        (Category.GATE_OPENED,),
        during=in_staging(open_gate),
    ),
    staged_fault(
        "somebody kills it",
        "kill -KILL to its main process before the gate",
        (State.REFUSED,),
        (Category.KILLED,),
        during=in_staging(signal_staged(signal.SIGKILL)),
    ),
    staged_fault("old server dies by itself", "kill -KILL to its main process", (State.DONE,), during=in_staging(kill_old)),
    staged_fault("supervisor killed", "kill -KILL", (State.DONE,), during=in_staging(kill_supervisor), after=was_resumed),
]


FAULTS = [
    Fault("argument refused", "--no-such-flag", categories=(Category.ARGUMENT_REFUSED,), arguments=["--no-such-flag", "1"]),
    Fault("context too long", "--context-length", categories=(Category.CONTEXT_TOO_LONG,), arguments=["--context-length", "9999999"]),
    Fault("model folder gone", "--model-path", categories=(Category.MODEL_NOT_FOUND,), arguments=["--model-path", "/srv/models/gone"]),
    Fault("hub unreachable", "--model-path of a hub", categories=(Category.HUB_UNREACHABLE,), arguments=["--model-path", "some/model"]),
    Fault(
        "checkpoint unreadable",
        "config.json is cut off",
        categories=(Category.CHECKPOINT_UNREADABLE,),
        arguments=MODEL_DAMAGED,
        before=_damage_model,
    ),
    Fault(
        "model unsupported",
        "an architecture that nobody knows",
        categories=(Category.MODEL_UNSUPPORTED,),
        arguments=MODEL_DAMAGED,
        before=_unknown_model,
    ),
    Fault("missing module", "SGLANG_EXTERNAL_MODEL_PACKAGE=nobodys", environment={"SGLANG_EXTERNAL_MODEL_PACKAGE": "nobodys"}),
    Fault(
        "somebody kills the new server while it loads",
        "kill -KILL to its main process",
        categories=(Category.KILLED,),
        during=at_member(State.LOADING, "sglang.launch_server", signal.SIGKILL),
    ),
    Fault(
        "somebody stops the new server while it loads",
        "kill -TERM to its main process",
        categories=(Category.INTERRUPTED,),
        during=at_member(State.LOADING, "sglang.launch_server", signal.SIGTERM),
    ),
    Fault(
        "scheduler killed while it loads",
        "kill -KILL",
        categories=(Category.KILLED, Category.SCHEDULER_DIED),
        during=at_member(State.LOADING, "sglang::scheduler", signal.SIGKILL),
    ),
    Fault(
        "SIGSTOPped scheduler while it loads",
        "kill -STOP; load_stall 25 s",
        categories=(Category.STALLED,),
        policy={"load_stall": 25},
        during=at_member(State.LOADING, "sglang::scheduler", signal.SIGSTOP),
    ),
    Fault("port stolen while it loads", "somebody binds it", categories=(Category.PORT_IN_USE,), during=thief_goes_in_rollback),
    Fault("supervisor killed in STOPPING", "kill -KILL", (State.DONE,), during=_kill_supervisor(State.STOPPING), after=_resumed),
    Fault("supervisor killed in LOADING", "kill -KILL", (State.DONE,), during=_kill_supervisor(State.LOADING), after=_resumed),
    Fault("supervisor killed in ANSWERING", "kill -KILL", (State.DONE,), during=_kill_supervisor(State.ANSWERING)),
    Fault(
        "SIGSTOPped scheduler of the old server",
        "kill -STOP before it is stopped",
        (State.DONE,),
        before=lambda lane: lane.signal(lane.wait_member("sglang::scheduler"), signal.SIGSTOP),
        policy={"verify": 20, "grace": 10},
    ),
    Fault(
        "scheduler of the old server dies in the drain",
        "kill -KILL while it is being stopped",
        (State.DONE,),
        during=at_member(State.DRAINING, "sglang::scheduler", signal.SIGKILL),
    ),
]


def cases() -> list[Case]:
    """All of them, on boxes that have the real one."""
    return [fault.case(SECTION, lane="real", real=True) for fault in (*FAULTS, *STAGED)]
