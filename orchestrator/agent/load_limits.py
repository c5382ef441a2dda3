"""How long a load may take: a no-progress and a total deadline for each phase, and one for the whole, longer while caches are cold.

Where the defaults come from (SGLang 0.5.17 on an H200, 0.5.23 on CPU, and public reports):

- Imports take 20 to 70 s, several processes at once on a busy machine; all of it uses the CPU or prints.
- Process groups: PyTorch gives up by itself after 600 s; a rank that waits in NCCL spins at 100 % for ever.
- Gate: a staged server comes there when its process groups are set up; SGLang polls its gate once a second.
- Weights: 400 GB from a network file system at 200 MB/s take half an hour; a bar is drawn for each shard.
- KV cache: seconds; a DeepGEMM warm-up that follows in the same phase took more than 10 min cold.
- Autotune: silent for 40 min and more on SM120 (flashinfer #4110), seconds with its own cache.
- Graph capture: 4 s warm, 87 s cold on an H200, JIT of 13 min cold elsewhere.
- Warm-up: SGLang's own request ends after 600 s; a first sampled request compiled for 123 s without a line in the log.

CPU time counts as progress, because compilers inside a process look no different. So a no-progress limit never ends what spins: the
total of its phase does.
"""

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.phases import Phase

WARM_LOAD = 3600.0
COLD_LOAD = 10800.0

_DEFAULTS: Mapping[str, Tuple[Tuple[float, float], Tuple[float, float]]] = {
    Phase.IMPORTS: ((900.0, 300.0), (900.0, 300.0)),
    Phase.DISTRIBUTED: ((1200.0, 300.0), (1800.0, 600.0)),
    Phase.GATE: ((300.0, 300.0), (300.0, 300.0)),
    Phase.WEIGHTS: ((3000.0, 600.0), (3600.0, 900.0)),
    Phase.KV_CACHE: ((900.0, 300.0), (3600.0, 900.0)),
    Phase.AUTOTUNE: ((1800.0, 900.0), (7200.0, 1800.0)),
    Phase.GRAPH_CAPTURE: ((1200.0, 300.0), (5400.0, 900.0)),
    Phase.WARM_UP: ((900.0, 300.0), (3600.0, 900.0)),
    Phase.READY: ((900.0, 300.0), (3600.0, 900.0)),
}
"""(total, no progress) with warm caches, and the same with cold ones."""

_UNTOLD_STALL = (900.0, 1800.0)
"""Where no log tells the phase: the longest of all phases, warm and cold."""


@dataclass(frozen=True)
class Limit:
    """One deadline: its name and where its value comes from, for the message of the day when it runs out."""

    name: str
    seconds: float
    source: str

    def __str__(self) -> str:
        return f"{self.name} ({self.source})"


@dataclass(frozen=True)
class LoadLimits:
    """The deadlines of one load. `cold` says why the caches count as cold; empty when they are warm. `staging`: up to its gate only."""

    policy: wire.Policy
    cold: Sequence[str] = ()
    staging: bool = False

    def whole(self) -> Limit:
        """For the whole load, or for the whole way to the gate."""
        if self.staging and self.policy.stage_total is not None:
            return Limit("the limit for the way to the gate", self.policy.stage_total, "policy: stage_total")
        name = "the limit for the whole load"
        if self.policy.load_total is not None:
            return Limit(name, self.policy.load_total, "policy: load_total")
        return Limit(name, COLD_LOAD if self.cold else WARM_LOAD, self._default())

    def total(self, phase: Optional[str]) -> Optional[Limit]:
        """For a phase as a whole; None where no log tells the phase (`phase` None), as only the whole load's limit holds then."""
        if phase is None:
            return None
        name = "the limit for one phase"
        return self._own(phase, "total", name) or Limit(name, self._pair(phase)[0], self._default())

    def stall(self, phase: Optional[str]) -> Limit:
        """Without progress, in a phase."""
        name = "the no-progress limit"
        own = None if phase is None else self._own(phase, "stall", name)
        if own is not None:
            return own
        if self.policy.load_stall is not None:
            return Limit(name, self.policy.load_stall, "policy: load_stall")
        seconds = _UNTOLD_STALL[bool(self.cold)] if phase is None else self._pair(phase)[1]
        return Limit(name, seconds, self._default())

    def _own(self, phase: str, kind: str, name: str) -> Optional[Limit]:
        """What the service set."""
        limits = self.policy.phases.get(phase)
        given: Dict[str, Optional[float]] = {} if limits is None else {key: getattr(limits, key) for key in (kind, f"cold_{kind}")}
        for key in ([f"cold_{kind}"] if self.cold else []) + [kind]:
            seconds = given.get(key)
            if seconds is not None:
                return Limit(name, seconds, f"policy: phases: {phase}: {key}")
        return None

    def _pair(self, phase: str) -> Tuple[float, float]:
        warm, cold = _DEFAULTS[phase]
        return cold if self.cold else warm

    def _default(self) -> str:
        return f"the default with cold caches: {'; '.join(self.cold)}" if self.cold else "the default with warm caches"


def told(policy: wire.Policy) -> List[str]:
    """The limits of a load in short, for a plan: warm and cold."""
    warm, cold = LoadLimits(policy), LoadLimits(policy, ("cold",))
    whole = (warm.whole().seconds, cold.whole().seconds)
    stalls = [limits.stall(phase).seconds for limits in (warm, cold) for phase in _DEFAULTS]
    return [
        f"load {whole[0]:g} s in all" + (f" ({whole[1]:g} s with cold caches)" if whole[1] != whole[0] else ""),
        f"{min(stalls):g} to {max(stalls):g} s without progress, by phase"
        if min(stalls) != max(stalls)
        else f"{stalls[0]:g} s without progress",
    ]
