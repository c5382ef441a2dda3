"""What the source of a backend's kernels says, read in the service's Python by :mod:`probe_program`, and what it means for the GPUs here.

Probes come before version numbers: people run git checkouts and forks, in which the same flag may mean another kernel.
"""

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.service_python import ServicePython, program_source
from orchestrator.agent.wire import Outcome, Probe, Verdict

PROBE_SECONDS = 60.0
"""Reading the source takes a second at most; what is imported for real may bring PyTorch along from a cold disk."""
SIGN_SECONDS = 15.0

_PROGRAM = "orchestrator.agent.probe_program"
_WORDS = {
    "marks": "is marked for {}",
    "requires": "refuses all but {}",
    "admits": "admits only {}",
    "blocks": "refuses {}",
}


@dataclass(frozen=True)
class Limit:
    """What a line of source says of compute capabilities: `kind` is a key of the words above, `values` are like ``10.0`` or ``10.x``."""

    kind: str
    values: List[str]
    line: int

    def allows(self, capability: str) -> bool:
        return self._names(capability) != (self.kind == "blocks")

    def _names(self, capability: str) -> bool:
        return capability in self.values or f"{capability.split('.')[0]}.x" in self.values

    def __str__(self) -> str:
        return _WORDS[self.kind].format(", ".join(self.values))


@dataclass(frozen=True)
class Probed:
    """The answer to one probe. `found` None: it could not be told, and `missing` says why; else `missing` is the part that is not there.

    `unloadable` is the error of its import, `broken` whether that error means that something is not installed.
    """

    probe: Probe
    found: Optional[bool] = None
    missing: str = ""
    path: str = ""
    line: int = 0
    values: Dict[str, str] = field(default_factory=dict)
    limits: List[Limit] = field(default_factory=list)
    unloadable: str = ""
    broken: bool = False

    @property
    def label(self) -> str:
        return self.probe.name or self.probe.module

    def place(self, line: Optional[int] = None) -> str:
        """``flashinfer/fused_moe/cute_dsl/fused_moe.py:302``: from the package on, which is what a person looks for."""
        top = self.probe.module.split(".")[0]
        parts = self.path.split("/")
        start = len(parts) - 1 - parts[::-1].index(top) if top in parts else 0
        shown = "/".join(parts[start:])
        number = self.line if line is None else line
        return f"{shown}:{number}" if number else shown


def ask(python: ServicePython, probes: Sequence[Probe], seconds: float = PROBE_SECONDS) -> List[Probed]:
    """Read and, where asked, import them. Never raises; what could not be told says so."""
    if not probes:
        return []
    load = [reference(probe) for probe in probes if probe.load]
    asked = [{"module": probe.module, "name": probe.name, "tells": probe.tells} for probe in probes]
    question = json.dumps({"probes": asked, "load": list(dict.fromkeys(load)), "seconds": seconds})
    done = python.without_gpu().run(["-c", program_source(_PROGRAM)], seconds, question)
    lines = [line for line in map(_parsed, done.output.splitlines()) if line is not None]
    problem = done.problem or "; ".join(done.last_errors(1)) or f"{python.path} ended with status {done.status}"
    static = {line["probe"]: line for line in lines if "probe" in line}
    loaded = {line["load"]: line for line in lines if "load" in line}
    return [_answer(probe, static.get(index), loaded, problem) for index, probe in enumerate(probes)]


def signs(request: wire.SignsRequest, emit: Callable[[str, Any], None]) -> wire.SignsReport:
    """Which of the names are there. What can't be told is left out: where the package around a module is missing too, for one."""
    python = ServicePython(request.python, request.environment, request.user)
    probes = [Probe(*name.partition(":")[::2]) for name in request.names]
    answers = [answer for answer in ask(python, probes, SIGN_SECONDS) if answer.found or _is_conclusive(answer)]
    return wire.SignsReport({reference(answer.probe): bool(answer.found) for answer in answers})


def is_there(answers: Sequence[Probed], probe: Probe) -> Optional[bool]:
    """Whether what a probe looks for is there; None where it can't be told, see :func:`_is_conclusive`."""
    answer = next((item for item in answers if item.probe == probe), None)
    if answer is None:
        return None
    return bool(answer.found) if answer.found or _is_conclusive(answer) else None


def _is_conclusive(answer: Probed) -> bool:
    """That a module is missing means something where the package around it is there."""
    return answer.found is False and answer.missing in (answer.probe.module, reference(answer.probe))


def reference(probe: Probe) -> str:
    """``module:name``."""
    return f"{probe.module}:{probe.name}" if probe.name else probe.module


def verdicts(answers: Sequence[Probed], python: str) -> List[Verdict]:
    """Whether what a backend runs is there."""
    return [verdict for verdict in (_verdict(answer, python) for answer in answers) if verdict is not None]


def _verdict(answer: Probed, python: str) -> Optional[Verdict]:
    check, source = "kernel", answer.place()
    top = answer.probe.module.split(".")[0]
    step = f"{python} -m pip show {_DISTRIBUTIONS.get(top, top)}; this SGLang's own metadata says which version it wants"
    if answer.found is None:
        detail = f"whether there is {reference(answer.probe)} can't be told: {answer.missing}"
        return Verdict(check, Outcome.UNKNOWN, detail, next_step=step, source=source)
    if not answer.found:
        if not answer.probe.required:
            return None
        where = f" in {answer.place()}" if answer.path else ""
        return Verdict(
            check, Outcome.REFUSE, f"the service's Python has no {answer.missing}{where}, which this backend runs", next_step=step
        )
    if answer.broken:
        detail = f"{reference(answer.probe)} is there and can't be imported: {answer.unloadable}"
        step = f"{python} -m pip check; install what SGLang's own extras ask for"
        return Verdict(check, Outcome.REFUSE, detail, next_step=step, source=source)
    if answer.unloadable:
        detail = f"{reference(answer.probe)} can't be imported where no GPU is visible: {answer.unloadable}"
        step = f"{python} -m pip check: a package leaves out what it can't load, so something that {answer.label} needs may be missing"
        return Verdict(check, Outcome.UNKNOWN, detail, next_step=step, source=source)
    told = "".join(f"; {name} is {value} by default" for name, value in answer.values.items())
    return Verdict(check, Outcome.PASS, f"{answer.label} is there{told}", source=source)


_DISTRIBUTIONS = {"flashinfer": "flashinfer-python", "cutlass": "nvidia-cutlass-dsl"}
"""Where the package that is installed has another name than the module."""


def deciding(answers: Sequence[Probed]) -> Optional[Probed]:
    """The first that says anything of compute capabilities: what is called first, so what it leads to is only behind it."""
    return next((answer for answer in answers if answer.found and answer.limits), None)


def allows(answer: Probed, capability: str) -> bool:
    return all(limit.allows(capability) for limit in answer.limits)


def names(answer: Probed, capability: str) -> bool:
    """Whether a line of its source names this compute capability as one that it is made for."""
    return any(limit.kind != "blocks" and limit.allows(capability) for limit in answer.limits)


def said(answer: Probed) -> List[str]:
    """What its source says of compute capabilities, for a person."""
    return [f"{answer.label} {limit} ({answer.place(limit.line)})" for limit in answer.limits]


def merged(requirements: Sequence[Any]) -> List[Probe]:
    """Every probe that any of the requirements names, once."""
    found: List[Probe] = []
    for item in requirements:
        found += [probe for probe in item.probes if probe not in found]
    return found


def _answer(probe: Probe, line: Optional[Dict[str, Any]], loaded: Dict[str, Dict[str, Any]], problem: str) -> Probed:
    if line is None:
        return Probed(probe, missing=problem)
    answer = Probed(
        probe,
        line["found"],
        line["missing"],
        os.path.abspath(line["path"]) if line["path"] else "",
        line["line"],
        line["values"],
        [Limit(**limit) for limit in line["limits"]],
    )
    came = loaded.get(reference(probe))
    if not probe.load or answer.found is False:
        return answer
    if answer.found is None:  # a name that is made when it is asked for shows in the import alone
        return answer if came is None or came["error"] else replace(answer, found=True, missing="")
    return replace(answer, unloadable=problem) if came is None else replace(answer, unloadable=came["error"], broken=came["of_import"])


def _parsed(line: str) -> Optional[Dict[str, Any]]:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
