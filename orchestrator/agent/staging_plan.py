"""The part of a preflight that looks at the switch itself: staged or not and why, what is read before, and how long it will be dark."""

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional

from orchestrator.agent import estimate, gate, gate_firewall, page_cache, room, wire
from orchestrator.agent.estimate import Wanted
from orchestrator.agent.gpu import GpuReading
from orchestrator.agent.kernel_caches import why_cold
from orchestrator.agent.known_launches import never_verified
from orchestrator.agent.launch_files import Account
from orchestrator.agent.requirements import node_count
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import Outcome, Staging, StagingPlan, Verdict

CACHES = "kernel_caches"
"""The name of the verdict on the caches of compiled kernels."""


@dataclass(frozen=True)
class Candidate:
    """The launch that is to be started: who runs it, with which whole environment, its arguments as the parser reads them."""

    launch: wire.Launch
    account: Account
    environment: Mapping[str, str]
    values: Mapping[str, Any]

    @property
    def python(self) -> ServicePython:
        return ServicePython(self.launch.python, dict(self.environment), self.launch.user, self.launch.directory)


def plan(candidate: Candidate, folder: StateFolder, policy: wire.Policy, reading: GpuReading, *, sequential: bool) -> StagingPlan:
    """How the candidate will take the serving server's place.

    Args:
        reading: what nvidia-smi has said just now.
        sequential: the operator wants no staged start.
    """
    launch = candidate.launch
    verdicts: List[Verdict] = []
    against = unwanted(policy, candidate.values, sequential=sequential)
    if against is None:
        gated = gate.judge(launch, candidate.python)
        verdicts.append(gated)
        if gated.outcome == Outcome.PASS:
            verdicts.append(room.judge(launch, folder, policy, values=candidate.values, environment=candidate.environment, reading=reading))
        against = next((verdict.detail for verdict in verdicts if verdict.outcome != Outcome.PASS), None)
    if against is None:
        verdicts.append(gate_firewall.who_can_reach(launch.host))
    cold = caches(candidate, folder)
    beside = room.needed(folder, candidate.values, []).resident
    verdicts += [page_cache.look(launch, policy, beside), cold]
    wanted = Wanted(launch.backend, against is None, cold.outcome != Outcome.PASS)
    past = estimate.read_past(folder)
    return StagingPlan(
        staged=against is None,
        reason=against or "SGLang can wait at a gate, and there is room beside the old server",
        verdicts=verdicts,
        estimate=estimate.estimate(past, wanted),
        around=estimate.around(past),
    )


def unwanted(policy: wire.Policy, values: Mapping[str, Any], *, sequential: bool) -> Optional[str]:
    """Why nobody wants a staged start; None where it is up to SGLang and to the room."""
    if sequential:
        return "asked for with --sequential"
    if policy.staging == Staging.NEVER:
        return "the service says `staging: never`"
    if node_count(values) > 1:
        return f"--nnodes is {node_count(values)}"
    return None


def caches(candidate: Candidate, folder: StateFolder) -> Verdict:
    """Whether compiled kernels are there for the candidate: its load may else take many times as long, and has longer deadlines."""
    launch = candidate.launch
    reasons = why_cold(launch, candidate.account.home, candidate.account.name)
    if never_verified(folder, launch.backend):
        reasons.append(f"{launch.backend or 'this server'} was never verified here")
    if not reasons:
        return Verdict(CACHES, Outcome.PASS, "the caches of compiled kernels are warm, as far as their folders show")
    detail = "caches of compiled kernels are cold, so kernels will be compiled while nothing serves: minutes, at times an hour"
    step = "nothing: the deadlines of the load are longer for it"
    return Verdict(CACHES, Outcome.WARN, detail, reasons, step)
