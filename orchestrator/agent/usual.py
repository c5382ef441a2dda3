"""How long the phases of a load usually take, by earlier loads of the service on this box.

Like counts with like, as in :mod:`estimate`: the same backend, with caches of compiled kernels cold or warm. What depends on neither is
known from any load.
"""

import statistics
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from orchestrator.agent.estimate import phase_seconds, was_cold
from orchestrator.agent.footprints import read_footprint
from orchestrator.agent.phases import BEYOND_GATE, Phase
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import UsualPhase

_ALIKE_IN_ALL = frozenset({Phase.IMPORTS, Phase.DISTRIBUTED, Phase.WEIGHTS})
_MOST_LAUNCHES = 50
_MOST_ALIKE = 10
"""Older ones tell of an older SGLang."""


@dataclass(frozen=True)
class LoadPhases:
    """Of a launch that was verified: how long each phase of its load took, seconds. `cold` None: nobody wrote it down."""

    backend: str
    cold: Optional[bool]
    phases: Mapping[str, float]


def usual_phases(loads: Sequence[LoadPhases], backend: str, *, cold: bool) -> Dict[str, UsualPhase]:
    """What to expect of each phase that is known. `loads` are oldest first."""
    alike = [load for load in loads if load.cold == cold and load.backend == backend]
    found = {}
    for phase in sorted({name for load in loads for name in load.phases}):
        seconds = _seconds(alike, phase) or (_seconds(loads, phase) if phase in _ALIKE_IN_ALL else [])
        if seconds:
            found[phase] = UsualPhase(round(statistics.median(seconds), 2), round(max(seconds), 2), len(seconds))
    return found


def _seconds(loads: Sequence[LoadPhases], phase: str) -> List[float]:
    return [load.phases[phase] for load in loads if phase in load.phases][-_MOST_ALIKE:]


def read_loads(folder: StateFolder) -> List[LoadPhases]:
    """What the box remembers, oldest first; what is damaged is left out."""
    found = [_load(folder, launch_id) for launch_id in folder.launch_ids()[-_MOST_LAUNCHES:]]
    return [load for load in found if load is not None]


def _load(folder: StateFolder, launch_id: str) -> Optional[LoadPhases]:
    launch, kept = folder.read_launch(launch_id), folder.verified_facts(launch_id)
    phases = dict(phase_seconds(kept))
    if launch is None or not phases:
        return None
    footprint = read_footprint(folder, launch_id)
    if footprint is not None:
        # A staged one is looked at anew when it goes on: what came before its gate is over by then, and took no time.
        phases = {**footprint.phases, **{name: seconds for name, seconds in phases.items() if name in BEYOND_GATE}}
    phases.pop(Phase.GATE, None)
    return LoadPhases(launch.backend, was_cold(kept), phases)
