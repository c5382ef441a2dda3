"""What diagnoses mean together: a host's beside its container's, the knobs beside their profile, one check asked twice. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from orchestrator.agent import wire
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_host import DoctorReport, FactName, KnobOutcome, KnobResult, KnobSetting, PlaceKind
from orchestrator.errors import OrchestratorError

_WEIGHT = {Outcome.REFUSE: 3, Outcome.WARN: 2, Outcome.PASS: 1, Outcome.UNKNOWN: 0}
_SHOWN_KNOBS = 3
_NEEDED_NODE = re.compile(r"/dev/(nvidiactl|nvidia-uvm|nvidia\d+)")
"""Without one of these cuInit fails; nvidia-uvm-tools, nvidia-modeset and nvidia-caps may be missing (driver 580.159.04)."""
_GPU_NODE = re.compile(r"/dev/nvidia\d+")


_VERSIONS = frozenset({"kernel_version", "driver_version"})
_OF_ONE_PLACE = frozenset({"cuda", "nvidia_smi", "device_nodes", "driver_library", "cpuset", "limits", "shared_memory"})
"""Checks whose answer in a host says nothing of its container."""
_IN_PCI_REGISTERS = frozenset({"acs_redirect", "aspm"})
"""What is told where PCI registers can be read; a container says that they can't."""


@dataclass(frozen=True)
class PlaceFindings:
    """What one place said of itself. `kind` is a :class:`PlaceKind`; `problem` says why there is no report."""

    kind: str
    label: str
    report: DoctorReport | None = None
    problem: Verdict | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        said = self.report.verdicts if self.report is not None else []
        return [*([self.problem] if self.problem is not None else []), *said]

    def fact(self, name: str) -> Any:
        """The value of a fact, None where it isn't known."""
        facts = self.report.facts if self.report is not None else []
        return next((fact.value for fact in facts if fact.name == name), None)

    def outcome(self, check: str) -> str | None:
        """The gravest answer to a check, None where it was not made."""
        outcomes = [verdict.outcome for verdict in self.verdicts if verdict.check == check]
        return max(outcomes, key=lambda outcome: _WEIGHT.get(outcome, 0), default=None)

    def has_told(self, check: str, word: str) -> bool:
        """Whether a check that did not pass has spoken of `word`."""
        said = [verdict for verdict in self.verdicts if verdict.check == check and verdict.outcome in (Outcome.REFUSE, Outcome.WARN)]
        return any(re.search(rf"{re.escape(word)}\b", line) for verdict in said for line in [verdict.detail, *verdict.evidence])

    def source(self, name: str) -> str:
        """Where a fact was read."""
        facts = self.report.facts if self.report is not None else []
        return next((fact.source for fact in facts if fact.name == name), "")


@dataclass(frozen=True)
class Expected:
    """What the inventory says that matters where a host and its container are compared.

    Attributes:
        gpus: how many GPUs there must be; None: any number.
        restart: what restarts the container, typed on the host.
    """

    gpus: int | None = None
    restart: str = "restart the container"
    hosts_file: str = "hosts.yml"


class _Node(NamedTuple):
    """A device node: its number, and the last change of its inode in Unix time."""

    number: tuple[int, int]
    changed: float


@dataclass(frozen=True)
class _Nodes:
    """How the needed nodes of the host fare in the container."""

    missing: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    """Those whose number is not the host's: made for an earlier load of the driver."""
    newer: list[str] = field(default_factory=list)
    """Those that the host made anew after the container was started, and that are not the very same inode inside."""
    usable_gpus: int = 0


def unreached(error: OrchestratorError, outcome: str, how: str = "ssh") -> Verdict:
    """A place that could not be asked, as the answer of a check."""
    return Verdict("reach", outcome, error.message, error.evidence, error.next_step, how)


def together(host: PlaceFindings, container: PlaceFindings, expected: Expected, *, cuda_works: bool | None = None) -> list[Verdict]:
    """What only a host and its container together tell; nothing where one of the two could not be asked.

    Args:
        cuda_works: whether cuInit succeeds in the container, None where nobody asked: device nodes that look wrong may then mend
            themselves (libcuda makes them where it has CAP_MKNOD).
    """
    if host.report is None or container.report is None:
        return []
    moments = (host.fact(FactName.BOOTED), container.fact(FactName.BOOTED))
    same = same_boot(*moments)
    if same is False:
        detail = f"{container.label} does not run on {host.label}: their kernels were booted at different times"
        evidence = [f"{place.label}: booted at {moment:.3f} (Unix time)" for place, moment in zip((host, container), moments, strict=True)]
        step = f"correct the addresses of {host.label} and its container in {expected.hosts_file}"
        return [Verdict("same_machine", Outcome.REFUSE, detail, evidence, step, _BOOT)]
    found = [Verdict("same_machine", Outcome.PASS, f"{container.label} runs on {host.label}", source=_BOOT)] if same else []
    return [*found, *_driver(host, container), *_device_nodes(host, container, expected, cuda_works)]


_BOOT = "CLOCK_BOOTTIME in both"
_SAME_BOOT_SECONDS = 0.5


def same_boot(one: Any, other: Any) -> bool | None:
    """Whether two places say that their kernel was booted at the same moment, so are on one machine; None where one doesn't say."""
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return None
    return abs(one - other) < _SAME_BOOT_SECONDS


def _driver(host: PlaceFindings, container: PlaceFindings) -> list[Verdict]:
    """A module and a library of different versions: cuInit gives 803, or only peer-to-peer copies break. The whole text counts.

    A container that sees the module's version has said so itself, and knows what else to look at.
    """
    module, library = host.fact(FactName.DRIVER_MODULE), container.fact(FactName.DRIVER_LIBRARY)
    if module is None or library is None:
        return []
    path = container.source(FactName.DRIVER_LIBRARY)
    source = f"{host.source(FactName.DRIVER_MODULE)} on {host.label}, {path} in {container.label}"
    if module == library:
        return [Verdict("driver_versions", Outcome.PASS, f"module and library are both {module}", source=source)]
    if container.outcome("driver_library") in (Outcome.REFUSE, Outcome.WARN):
        return []
    detail = f"{host.label} has the kernel module {module}, {container.label} the library {library}"
    step = f"in {container.label} install the driver's libraries {module} (its .run with --no-kernel-modules), and hold both packages"
    outcome = Outcome.WARN if "/compat" in path else Outcome.REFUSE
    return [Verdict("driver_versions", outcome, detail, next_step=step, source=source)]


def _device_nodes(host: PlaceFindings, container: PlaceFindings, expected: Expected, cuda_works: bool | None) -> list[Verdict]:
    outside, inside = _nodes(host), _nodes(container)
    needed = {path: node for path, node in outside.items() if _NEEDED_NODE.fullmatch(path)}
    if not needed or expected.gpus == 0 or container.fact(FactName.DEVICE_NODES) is None:
        return []
    source = f"/dev/nvidia* on {host.label} and in {container.label}"
    started = container.fact(FactName.STARTED)
    nodes = _compared(needed, inside, started if isinstance(started, int | float) else None)
    if expected.gpus is None and len(nodes.missing) == len(needed):
        detail = f"none of {host.label}'s {len(needed)} NVIDIA devices is in {container.label}"
        step = "give them to the container, or set `gpus: 0` of the host in hosts.yml when it needs none"
        return [Verdict("device_nodes", Outcome.WARN, detail, next_step=step, source=source)]
    bad = [path for path in [*nodes.missing, *nodes.other] if _matters(path, nodes, expected)]
    if bad and all(container.has_told("device_nodes", path) for path in bad):
        return []
    if bad:
        return [_unusable(bad, nodes, container.label, expected, Outcome.WARN if cuda_works else Outcome.REFUSE, source)]
    if nodes.newer:
        detail = f"{_names(nodes.newer)} on {host.label} is newer than the start of {container.label}; inside it has the same number"
        return [Verdict("device_nodes", Outcome.WARN, detail, next_step=f"if CUDA fails there: {expected.restart}", source=source)]
    detail = f"{container.label} has {nodes.usable_gpus} of {_gpu_count(needed)} GPU devices, with {host.label}'s numbers"
    return [Verdict("device_nodes", Outcome.PASS, detail, source=source)]


def _compared(needed: dict[str, _Node], inside: dict[str, _Node], started: float | None) -> _Nodes:
    missing = [path for path in needed if path not in inside]
    shared = [path for path in needed if path in inside]
    other = [path for path in shared if inside[path].number != needed[path].number]
    newer = [path for path in needed if started is not None and needed[path].changed > started and not _same_inode(path, needed, inside)]
    usable = [path for path in shared if path not in other and _GPU_NODE.fullmatch(path)]
    return _Nodes(missing, other, newer, len(usable))


def _same_inode(path: str, needed: dict[str, _Node], inside: dict[str, _Node]) -> bool:
    """A node that is bound into the container changes in both at once; the kernel's clock tells inodes apart."""
    return path in inside and inside[path] == needed[path]


def _matters(path: str, nodes: _Nodes, expected: Expected) -> bool:
    """A container may be given some of the GPUs only; the inventory says how many there must be."""
    if _GPU_NODE.fullmatch(path) and path in nodes.missing:
        return expected.gpus is not None and nodes.usable_gpus < expected.gpus
    return True


def _unusable(bad: list[str], nodes: _Nodes, place: str, expected: Expected, outcome: str, source: str) -> Verdict:
    restart = any(path in nodes.newer or path in nodes.other for path in bad)
    what = []
    if missing := [path for path in bad if path in nodes.missing]:
        what.append(f"{_names(missing)} of the host is missing in {place}")
    if other := [path for path in bad if path in nodes.other]:
        what.append(f"{_names(other)} in {place} has the number of an earlier load of the driver")
    if restart:
        what.append("the host made it anew after the container was started")
        return Verdict("device_nodes", outcome, "; ".join(what), next_step=expected.restart, source=source)
    return Verdict("device_nodes", outcome, "; ".join(what), next_step=f"give it to the container, then {expected.restart}", source=source)


def _nodes(place: PlaceFindings) -> dict[str, _Node]:
    value = place.fact(FactName.DEVICE_NODES)
    found = {}
    for path, node in value.items() if isinstance(value, dict) else []:
        if isinstance(node, dict) and isinstance(node.get("major"), int) and isinstance(node.get("minor"), int):
            found[str(path)] = _Node((node["major"], node["minor"]), float(node.get("changed") or 0.0))
    return found


def _gpu_count(nodes: dict[str, _Node]) -> int:
    return sum(_GPU_NODE.fullmatch(path) is not None for path in nodes)


def _names(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_SHOWN_KNOBS])
    return shown if len(paths) <= _SHOWN_KNOBS else f"{shown} and {len(paths) - _SHOWN_KNOBS} more"


def knobs_of(host: PlaceFindings, container: PlaceFindings | None) -> list[KnobResult]:
    """Each knob where it is true: the host's from the host, or as its container shows it when the host can't be asked."""
    outside = host.report.knobs if host.report is not None else []
    inside = container.report.knobs if container is not None and container.report is not None else []
    if host.report is None:
        return list(inside)
    return [*outside, *(result for result in inside if result.setting.place == PlaceKind.CONTAINER)]


def tuning_verdict(profile: str, host: str, knobs: Sequence[KnobResult], *, through_container: bool = False) -> Verdict | None:
    """Whether the machine still has its tuning profile, in one line; None where nothing is wanted of it.

    Args:
        through_container: the knobs are what a container shows of them, so that none of the host's can be set from there.
    """
    wanted = [result for result in knobs if result.setting.value is not None]
    if not wanted:
        return None
    differing = [result for result in wanted if result.outcome in KnobOutcome.DRIFT]
    counts = Counter(result.outcome for result in wanted)
    hidden = "not visible from a container" if through_container else "can't be read"
    others = ((KnobOutcome.UNKNOWN, hidden), (KnobOutcome.UNAVAILABLE, "not to be had here"))
    beside = [f"{counts[outcome]} {words}" for outcome, words in others if counts[outcome]]
    more = "".join(f"; {words}" for words in beside)
    fine = f"{counts[KnobOutcome.SAME]} of {len(wanted)} knobs"
    source = ", ".join(list(dict.fromkeys(result.source for result in differing or wanted if result.source))[:2])
    if not differing:
        detail = f"{fine} are as {profile} wants them{more}"
        if counts[KnobOutcome.UNKNOWN]:
            return Verdict("tuning", Outcome.UNKNOWN, detail, next_step=f"fab prep --plan --host {host}   # says why", source=source)
        return Verdict("tuning", Outcome.PASS, detail, source=source)
    told = [f"{knob_name(result.setting)} is {knob_value(result)} (not {result.setting.value})" for result in differing[:_SHOWN_KNOBS]]
    rest = f", and {len(differing) - _SHOWN_KNOBS} more" if len(differing) > _SHOWN_KNOBS else ""
    verb = "differs" if len(differing) == 1 else "differ"
    if through_container:
        counted = ", ".join([f"{fine} as {profile} wants them", f"{len(differing)} {verb}", *beside])
        detail = f"{counted}: {', '.join(told)}{rest}"
        return Verdict("tuning", Outcome.WARN, detail, next_step=_by_hand(host, differing), source=source)
    detail = f"{len(differing)} of {len(wanted)} knobs {verb} from {profile}: {', '.join(told)}{rest}{more}"
    return Verdict("tuning", Outcome.WARN, detail, next_step=f"fab prep --host {host}", source=source)


def _by_hand(host: str, differing: Sequence[KnobResult]) -> str:
    """What a person types on the host, whose knobs can't be set from here."""
    commands = [command for result in differing for command in result.commands]
    if not commands or len(commands) > _SHOWN_KNOBS:
        return f"fab prep --plan --host {host}, which shows what to type on the host as root"
    return f"on the host, as root: {'; '.join(commands)}"


def knob_name(setting: KnobSetting) -> str:
    """``kernel.numa_balancing``, or ``cpu_governor`` where there is one such knob only."""
    return setting.name or setting.kind


def knob_value(result: KnobResult) -> str:
    """What there is now, short: each value that is not the wanted one once."""
    values = dict.fromkeys(value for value in result.after.values() or result.before.values() if value != result.setting.value)
    return " or ".join(values) or "not readable"


def better(first: Sequence[Verdict], second: Sequence[Verdict]) -> tuple[list[Verdict], list[Verdict]]:
    """Both lists without what the other answers better: of two answers to one check the graver, else the second's."""
    earlier, later = _weights(first), _weights(second)
    shared = earlier.keys() & later.keys()
    graver = {check for check in shared if earlier[check] > later[check]}
    return (
        [verdict for verdict in first if verdict.check not in shared or verdict.check in graver],
        [verdict for verdict in second if verdict.check not in graver],
    )


def _weights(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """The gravest answer to each check, which may have been asked of several things."""
    weights: dict[str, int] = {}
    for verdict in verdicts:
        weights[verdict.check] = max(weights.get(verdict.check, 0), _WEIGHT.get(verdict.outcome, 0))
    return weights


def each_once(host: PlaceFindings, container: PlaceFindings) -> tuple[list[Verdict], list[Verdict]]:
    """Both places' answers, where one kernel was asked twice once: as the place that can tell has it.

    What a container says of kernel and driver (it knows what its service ran with) is told with the host's. Nothing is left out of
    places on different machines.
    """
    outside, inside = host.verdicts, container.verdicts
    if not same_boot(host.fact(FactName.BOOTED), container.fact(FactName.BOOTED)):
        return outside, inside
    heard = {(verdict.check, verdict.outcome, verdict.detail) for verdict in outside}
    inside = [verdict for verdict in inside if (verdict.check, verdict.outcome, verdict.detail) not in heard]
    outside, inside = _without_unknown(outside, container), _without_unknown(inside, host)
    versions = [verdict for verdict in inside if verdict.check in _VERSIONS]
    outside, versions = better(outside, versions)
    return [*versions, *outside], [verdict for verdict in inside if verdict.check not in _VERSIONS]


def _without_unknown(verdicts: Sequence[Verdict], other: PlaceFindings) -> list[Verdict]:
    """Without the questions that one place can't answer and the other, of the same machine, does."""
    answered = {verdict.check for verdict in other.verdicts if verdict.outcome != Outcome.UNKNOWN} - _OF_ONE_PLACE
    answered |= {"pci_registers"} if answered & _IN_PCI_REGISTERS else set()
    return [verdict for verdict in verdicts if verdict.outcome != Outcome.UNKNOWN or verdict.check not in answered]


def mended(verdicts: Sequence[Verdict], *, cuda_works: bool | None) -> list[Verdict]:
    """Faulty device nodes are yellow once cuInit has succeeded: libcuda makes them good itself, where it may (CAP_MKNOD)."""
    return [
        replace(verdict, outcome=Outcome.WARN)
        if cuda_works and verdict.check == "device_nodes" and verdict.outcome == Outcome.REFUSE
        else verdict
        for verdict in verdicts
    ]


def of_place(label: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The same verdicts where several places are told of in one list: their checks say which they are about."""
    return [replace(verdict, check=f"{label}: {verdict.check}") for verdict in verdicts]


def notable(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What a plan tells of a diagnosis: what stops it, and what should be known."""
    return [verdict for verdict in verdicts if verdict.outcome in (Outcome.REFUSE, Outcome.WARN)]


def cuda_works(verdicts: Sequence[wire.Verdict]) -> bool | None:
    """What the check of cuInit says, None where it was not made."""
    outcome = next((verdict.outcome for verdict in verdicts if verdict.check == "cuda"), None)
    return None if outcome in (None, Outcome.UNKNOWN) else outcome != Outcome.REFUSE
