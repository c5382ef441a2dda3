"""What the journal of an order that was cut off tells whoever takes it up again. Pure."""

from typing import Any, Dict, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.codec import field, record
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.steps import Stopped
from orchestrator.agent.wire import State

RESUMED = "resumed"
"""Key of the data of a line by which a supervisor says that it goes on where another one was ended: how often that was done."""
BOOT = "boot"
"""Key of the data of CHECKED: which boot of which machine (:func:`own_session.boot_identity`)."""
RESULT = "result"
"""Key of the data of the last line: all of the result, should its own file find no room or its writer be killed before it."""

FAILURE = "failure"
"""Key of the data of ROLLING_BACK: why. Of DRAINING too, where the old server had died by itself and then the staged one failed."""
FAILED_LAUNCH = "failed_launch"
"""Key of the data of ROLLING_BACK: the id of the launch that failed, None where it was the stop that broke off."""
AT_GATE = "at_gate"
"""Key of the data of the line by which a staged launch waits at its gate: :class:`steps.Staged` without its launch."""
USUAL = "usual"
"""Key of the data of STAGING and LOADING: phase -> :class:`wire.UsualPhase`, what it took in earlier loads that were like this one."""

UNTOUCHED = frozenset({State.CHECKED, State.LOCKED, State.BASELINE, State.WARMING, State.LEAVING})
"""States in which nothing has been signalled or started. In LEAVING the server may be out of its router."""
STOPPING = frozenset({State.DRAINING, State.STOPPING})
_INTENTS = frozenset({State.STARTING, State.STAGING})


@record(frozen=True)
class Intent:
    """A start that was announced. `unit` is somebody's unit, None for a launch of ours; a staged one has a `gate_port`."""

    launch_id: str
    unit: Optional[str] = None
    gate_port: Optional[int] = None


@record(frozen=True)
class History:
    """An order's past, as its journal tells it.

    `state` is where it was cut off; `starting` the start announced last, in the direction in which the order went then (forward,
    or back if `failure` says why it turned back); `staged` that of the new launch, if it was staged.
    """

    state: str
    touched: bool
    """Whether anything may have been signalled or started."""
    only_staged: bool = False
    """Whether all of that is a launch beside the old server, which itself was left alone."""
    boot: Optional[str] = None
    failure: Optional[wire.Failure] = None
    failed_launch: Optional[str] = None
    starting: Optional[Intent] = None
    staged: Optional[Intent] = None
    staging_failure: Optional[wire.Failure] = None
    """Why the staged launch failed after the old server had died by itself."""
    gate_seconds: Optional[float] = None
    """How long the staged launch took to its gate."""
    stopped: Optional[Stopped] = None
    verdicts: List[wire.Verdict] = field(default_factory=list)
    resumed: int = 0
    left_router: bool = False
    """Whether the server may have been taken out of its router."""
    answered: Optional[float] = None
    """Monotonic time of the first good answer of what was started last."""

    @property
    def rolling_back(self) -> bool:
        return self.failure is not None

    @property
    def ended(self) -> bool:
        return self.state in State.FINAL


def read_history(entries: Sequence[wire.StateEntry]) -> Optional[History]:
    """The past of an order; None where nothing was written yet."""
    if not entries:
        return None
    boots = [entry.data[BOOT] for entry in entries if BOOT in entry.data]
    turned = next((at for at, entry in enumerate(entries) if entry.state == State.ROLLING_BACK), None)
    forward, back = (entries, []) if turned is None else (entries[:turned], entries[turned:])
    direction = back or forward
    announced = _intent(forward)
    return History(
        state=entries[-1].state,
        touched=is_touched(entries),
        only_staged=is_only_staged(entries),
        boot=str(boots[-1]) if boots else None,
        failure=None if turned is None else _failure(entries[turned]),
        failed_launch=_failed_launch(back, announced),
        starting=_intent(direction),
        staged=announced if announced is not None and announced.gate_port is not None else None,
        staging_failure=next((_failure(entry) for entry in forward if entry.state == State.DRAINING and FAILURE in entry.data), None),
        gate_seconds=_gate_seconds(forward),
        stopped=_stopped(entries),
        verdicts=[verdict for entry in entries for verdict in _verdicts(entry.data)],
        resumed=times_resumed(entries),
        left_router=has_left_router(entries),
        answered=next((entry.monotonic for entry in direction if entry.state == State.ANSWERING and RESUMED not in entry.data), None),
    )


def is_touched(entries: Sequence[wire.StateEntry]) -> bool:
    """Whether anything may have been signalled or started."""
    return any(entry.state not in UNTOUCHED | {State.REFUSED} for entry in entries)


def is_only_staged(entries: Sequence[wire.StateEntry]) -> bool:
    """Whether all that was touched is a launch beside the old server, which itself was left alone."""
    return is_touched(entries) and all(entry.state in UNTOUCHED | {State.STAGING, State.REFUSED} for entry in entries)


def has_left_router(entries: Sequence[wire.StateEntry]) -> bool:
    """Whether the server may have been taken out of its router."""
    return any(entry.state == State.LEAVING for entry in entries)


def times_resumed(entries: Sequence[wire.StateEntry]) -> int:
    """How often another supervisor took the order over."""
    return max((int(entry.data.get(RESUMED, 0)) for entry in entries), default=0)


def _intent(entries: Sequence[wire.StateEntry]) -> Optional[Intent]:
    """The newest start that was announced."""
    starts = [entry.data for entry in entries if entry.state in _INTENTS and "launch_id" in entry.data]
    if not starts:
        return None
    port = starts[-1].get("gate_port")
    return Intent(str(starts[-1]["launch_id"]), starts[-1].get("unit"), port if isinstance(port, int) else None)


def _gate_seconds(entries: Sequence[wire.StateEntry]) -> Optional[float]:
    told = [entry.data[AT_GATE] for entry in entries if isinstance(entry.data.get(AT_GATE), dict)]
    seconds = told[-1].get("seconds") if told else None
    return float(seconds) if isinstance(seconds, (int, float)) else None


def _failed_launch(back: Sequence[wire.StateEntry], announced: Optional[Intent]) -> Optional[str]:
    if not back:
        return None
    if FAILED_LAUNCH in back[0].data:
        named = back[0].data[FAILED_LAUNCH]
        return None if named is None else str(named)
    return None if announced is None else announced.launch_id


def _failure(entry: wire.StateEntry) -> wire.Failure:
    """Why an order turned back; a record that can't be understood is no reason to go forward again."""
    try:
        return wire.from_json(wire.Failure, entry.data.get(FAILURE))
    except wire.WireError:
        return wire.Failure(Category.UNEXPECTED, entry.reason)


def _stopped(entries: Sequence[wire.StateEntry]) -> Optional[Stopped]:
    for entry in reversed(entries):
        if entry.state == State.CLEAN and "stopped" in entry.data:
            try:
                return wire.from_json(Stopped, entry.data["stopped"])
            except wire.WireError:
                return None
    return None


def _verdicts(data: Dict[str, Any]) -> List[wire.Verdict]:
    try:
        return [wire.from_json(wire.Verdict, item) for item in data.get("verdicts", [])]
    except (wire.WireError, TypeError):
        return []
