"""How long a switch will be dark, by what earlier ones of the service took on this box.

Like counts with like: staged or sequential, to the same backend, with caches of compiled kernels cold or warm. Where no switch was like
this one, it is put together from the stops and loads that are known; what the load before the gate takes is not dark in a staged switch.
"""

import statistics
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.footprints import read_footprint
from orchestrator.agent.history import RESULT, RESUMED
from orchestrator.agent.journal import JOURNAL, read_journal
from orchestrator.agent.kernel_caches import COLD_FACT
from orchestrator.agent.phases import BEYOND_GATE, FACT_PREFIX, Phase
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.wire import DarkEstimate, OrderKind, State

_BEFORE_GATE = frozenset({Phase.IMPORTS, Phase.DISTRIBUTED})
"""Of a load that went through no gate."""
_MOST_ORDERS = 50
_MOST_ALIKE = 10
"""Older ones tell of an older SGLang."""
_IDLE_STOP = (3.0, 7.0)
"""Seconds that an idle server takes to stop (0.5.9 to 0.5.23: it looks for the signal every 5 s); where no stop is known."""
_POLL = (0.0, 1.0)
"""SGLang asks once a second whether its gate was opened (0.5.23, srt/distributed/gated_launch.py)."""


@dataclass(frozen=True)
class Switch:
    """One that succeeded, seconds. `load` is from the start, or the gate on, to the first answer; `cold` None: nobody wrote it down."""

    backend: str
    staged: bool
    cold: Optional[bool]
    dark: float
    load: Optional[float] = None
    held: Optional[float] = None
    """From its removal from a router until that had its successor in; None where it was not taken out."""

    @property
    def stop(self) -> Optional[float]:
        """The part that is not the load."""
        return None if self.load is None else max(0.0, self.dark - self.load)


@dataclass(frozen=True)
class Load:
    """Of a launch that was verified, seconds: all of it, and what of it comes after the gate."""

    backend: str
    cold: Optional[bool]
    whole: float
    after_gate: float


@dataclass(frozen=True)
class Past:
    """A service's history on the box, oldest first."""

    switches: Sequence[Switch] = ()
    loads: Sequence[Load] = ()


@dataclass(frozen=True)
class Wanted:
    """The switch that is asked about."""

    backend: str
    staged: bool
    cold: bool


def estimate(past: Past, wanted: Wanted) -> Optional[DarkEstimate]:
    """What to expect; None where nothing is known that is like it. What was dark with warm caches says nothing of cold ones."""
    to = wanted.backend or "this server"
    here = [switch for switch in past.switches if switch.backend == wanted.backend]
    for cold, words in ((wanted.cold, f"caches {_cold(wanted.cold)}"), (None, "nobody knows whether caches were cold")):
        alike = [switch.dark for switch in here if switch.staged == wanted.staged and switch.cold == cold]
        if alike and not (cold is None and wanted.cold):
            return _of(alike, f"to {to}, {words}", wanted)
    found = _composed(past, wanted, [load for load in past.loads if load.backend == wanted.backend], f"of {to}")
    if found is not None:
        return found
    others = [switch.dark for switch in past.switches if switch.staged == wanted.staged and switch.cold == wanted.cold]
    if others:
        return _of(others, f"to other backends, caches {_cold(wanted.cold)}", wanted)
    return _composed(past, wanted, past.loads, "of other backends")


def around(past: Past) -> Optional[float]:
    """The longest that a router without another worker had none beyond the dark time, of the newest switches; None where none is known."""
    beyond = [max(0.0, switch.held - switch.dark) for switch in past.switches if switch.held is not None]
    return max(beyond[-_MOST_ALIKE:], default=None)


def read_past(folder: StateFolder) -> Past:
    """What the box remembers; what is damaged is left out."""
    switches = [switch for order_id in folder.order_ids()[-_MOST_ORDERS:] for switch in [_switch(folder, order_id)] if switch is not None]
    loads = [load for launch_id in folder.launch_ids()[-_MOST_ORDERS:] for load in [_load(folder, launch_id)] if load is not None]
    return Past(switches, loads)


def _of(dark: Sequence[float], what: str, wanted: Wanted) -> DarkEstimate:
    newest = dark[-_MOST_ALIKE:]
    count = f"{len(newest)} {_how(wanted)} switch{'es' if len(newest) > 1 else ''}"
    return DarkEstimate(statistics.median(newest), min(newest), max(newest), f"{count} {what}", len(newest))


def _composed(past: Past, wanted: Wanted, loads: Sequence[Load], whose: str) -> Optional[DarkEstimate]:
    """A stop and a load put together."""
    alike = [load for load in loads if load.cold == wanted.cold][-_MOST_ALIKE:]
    if not alike:
        return None
    took = [load.after_gate if wanted.staged else load.whole for load in alike]
    stops = [switch.stop for switch in past.switches if switch.stop is not None][-_MOST_ALIKE:]
    known: Sequence[float] = stops or _IDLE_STOP
    told = f"{len(stops)} stop{'s' if len(stops) > 1 else ''}" if stops else "a stop of an idle server"
    part = " from the gate on" if wanted.staged else ""
    words = f"{told} and {len(took)} load{'s' if len(took) > 1 else ''} {whose}{part}, caches {_cold(wanted.cold)}"
    low, high = _POLL if wanted.staged else (0.0, 0.0)
    return DarkEstimate(
        statistics.median(known) + statistics.median(took) + (low + high) / 2,
        min(known) + min(took) + low,
        max(known) + max(took) + high,
        f"no {_how(wanted)} switch like it yet; put together from {words}",
    )


def _how(wanted: Wanted) -> str:
    return "staged" if wanted.staged else "sequential"


def _cold(cold: bool) -> str:
    return "cold" if cold else "warm"


def _switch(folder: StateFolder, order_id: str) -> Optional[Switch]:
    """The switch that an order made; None where it made none, or one that tells nothing of the next: cut off, frozen, rolled back."""
    path = folder.order_folder(order_id)
    order = read_record(wire.Order, path / "order.json")
    entries = read_journal(path / JOURNAL)
    result = read_record(wire.OrderResult, path / "result.json") or _last_result(entries)
    if order is None or result is None or order.kind != OrderKind.RELAUNCH or result.state != State.DONE:
        return None
    if result.dark_seconds is None or result.launch_id is None or any(RESUMED in entry.data or _FROZEN in entry.data for entry in entries):
        return None
    launch = folder.read_launch(result.launch_id)
    if launch is None:
        return None
    cold = was_cold(folder.verified_facts(result.launch_id))
    return Switch(launch.backend, result.staged, cold, result.dark_seconds, _load_seconds(entries), result.held_seconds)


_FROZEN = "stood_still"


def _last_result(entries: Sequence[wire.StateEntry]) -> Optional[wire.OrderResult]:
    """A supervisor that is killed after its last line leaves no result of its own."""
    try:
        return wire.from_json(wire.OrderResult, entries[-1].data[RESULT]) if entries else None
    except (KeyError, wire.WireError):
        return None


def _load_seconds(entries: Sequence[wire.StateEntry]) -> Optional[float]:
    """From the start, or the activation, to the first answer."""
    begun = [entry.monotonic for entry in entries if entry.state in (State.STARTING, State.ACTIVATING)]
    answered = [entry.monotonic for entry in entries if entry.state == State.ANSWERING]
    if not begun or not answered or answered[-1] < begun[-1]:
        return None
    return answered[-1] - begun[-1]


def _load(folder: StateFolder, launch_id: str) -> Optional[Load]:
    """How long the phases of a verified launch took. Of a staged one the time at the gate is no load."""
    launch, kept = folder.read_launch(launch_id), folder.verified_facts(launch_id)
    phases = phase_seconds(kept)
    after = sum(seconds for name, seconds in phases if name in BEYOND_GATE)
    if launch is None or not after:
        return None
    footprint = read_footprint(folder, launch_id)
    before = sum(seconds for name, seconds in phases if name in _BEFORE_GATE) if footprint is None else footprint.seconds
    return Load(launch.backend, was_cold(kept), before + after, after)


def phase_seconds(kept: Any) -> List[Tuple[str, float]]:
    """How long each phase took of a launch of which this was kept when it was verified."""
    return [
        (str(fact["name"])[len(FACT_PREFIX) :], float(fact["value"]))
        for fact in _facts(kept)
        if str(fact["name"]).startswith(FACT_PREFIX) and isinstance(fact["value"], (int, float))
    ]


def was_cold(kept: Any) -> Optional[bool]:
    """Whether its caches of compiled kernels were cold; None where nobody wrote it down."""
    return next((bool(fact["value"]) for fact in _facts(kept) if fact["name"] == COLD_FACT), None)


def _facts(kept: Any) -> List[Any]:
    """The facts of what was kept of a verified launch (:meth:`state_folder.StateFolder.mark_verified`)."""
    facts = kept.get("facts") if isinstance(kept, dict) else None
    return [fact for fact in facts if isinstance(fact, dict) and {"name", "value"} <= set(fact)] if isinstance(facts, list) else []
