"""doctor: the host and the place of the service diagnosed at once, and everything that a relaunch checks. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_host import DoctorReport, FactName, KnobResult, PlaceKind
from orchestrator.errors import OrchestratorError, RefusedError, UnreachableError
from orchestrator.flows import look
from orchestrator.flows.findings import (
    Expected,
    PlaceFindings,
    better,
    cuda_works,
    each_once,
    knobs_of,
    mended,
    notable,
    of_place,
    together,
    tuning_verdict,
    unreached,
)
from orchestrator.flows.observer import Observer
from orchestrator.flows.plan import merged
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.target import Agent, Connect, Target, connect
from orchestrator.remote.beside import Beside
from orchestrator.remote.endpoint import Deadlines

if TYPE_CHECKING:
    from orchestrator.config import Backend, Container, Host, Inventory

_BARE_PREP = re.compile(r"\bfab prep\b(?!.* --host)")

HOST_SECONDS = Deadlines().connect
"""How much longer than everything else a change waits for what the host says of itself."""


@dataclass(frozen=True)
class Section:
    """One part of the answer, for the screen."""

    heading: str
    verdicts: list[Verdict]


@dataclass(frozen=True)
class ServiceFindings:
    """What a relaunch asks of the service. `preflight` is None when it could not be asked; `problem` says why."""

    name: str
    place: str
    survey: wire.SurveyReport
    preflight: wire.PreflightReport | None = None
    problem: Verdict | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        asked = merged(self.survey.verdicts, self.preflight.verdicts if self.preflight is not None else [])
        return [*asked, *([self.problem] if self.problem is not None else [])]


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found. The verdicts that are shown are in `sections`; what they were made of is beside them.

    Attributes:
        container: None where the inventory has none, or the service runs on the host itself.
        unreached: a place that matters could not be asked: the service's, or the host where there is no other.
    """

    host: PlaceFindings
    container: PlaceFindings | None
    service: ServiceFindings | None
    sections: list[Section]
    knobs: list[KnobResult] = field(default_factory=list)
    unreached: bool = False

    @property
    def refused(self) -> bool:
        """Whether a relaunch would be refused now."""
        return any(verdict.outcome == Outcome.REFUSE for section in self.sections for verdict in section.verdicts)

    @property
    def exit_code(self) -> int:
        if self.unreached:
            return UnreachableError.exit_code
        return RefusedError.exit_code if self.refused else 0


def doctor(
    inventory: Inventory,
    host: Host,
    target: Target | None,
    backends: Sequence[Backend],
    observer: Observer,
    connect: Connect = connect,
    open: Open = open_agent,  # noqa: A002
) -> Diagnosis:
    """Diagnose a host, its container and a service's readiness for `backends`. A place that can't be reached is part of the answer.

    Raises:
        LockedError: another order is at work on the service.
        ConfigError: a secret can't be had.
    """
    places = " and ".join(_places(host, target))
    observer.note(f"asking {places} how they are" if " and " in places else f"asking {places} how it is")
    if target is not None and not target.service.in_container:
        findings, service = _examine_service(target, backends, observer, connect)
        return _diagnosis(inventory, target.host, findings, None, service, target)
    asked = host_beside(inventory, host, open)
    container, service = None, None
    if target is not None:
        container, service = _examine_service(target, backends, observer, connect)
    elif host.container is not None:
        container = _examine_container(inventory, host, open)
    matters = container is None
    findings = settled(asked, PlaceKind.HOST, host.name, None, Outcome.REFUSE if matters else Outcome.WARN)
    return _diagnosis(inventory, host, findings, container, service, target)


def _places(host: Host, target: Target | None) -> list[str]:
    if target is not None and not target.service.in_container:
        return [host.name]
    return [host.name, *([host.place(container=True).label] if host.container is not None else [])]


def host_beside(inventory: Inventory, host: Host, open: Open) -> Beside[DoctorReport]:  # noqa: A002
    """Begin to diagnose the host itself over a connection of its own."""

    def ask() -> DoctorReport:
        with open(inventory, host, PlaceKind.HOST) as agent:
            return look.examine(agent, look.diagnosis(inventory, host, PlaceKind.HOST))

    return Beside(ask)


def place_beside(agent: Agent, target: Target, launch: wire.Launch | None, *, cuda: bool) -> Beside[DoctorReport]:
    """Begin to diagnose the service's place over the connection that is open already, as it would be for `launch`."""
    kind = PlaceKind.CONTAINER if target.service.in_container else PlaceKind.HOST
    request = look.diagnosis(target.inventory, target.host, kind, target.service, cuda=cuda)
    if launch is not None:
        request = replace(request, environment=dict(launch.environment))
    return Beside(lambda: look.examine(agent, request))


def settled(asked: Beside[DoctorReport], kind: str, label: str, seconds: float | None, outcome: str) -> PlaceFindings:
    """What a place said, or that it could not be asked, with `outcome`. Waits `seconds` at most, None: as long as it takes."""
    try:
        return PlaceFindings(kind, label, asked.result(seconds))
    except OrchestratorError as error:
        return PlaceFindings(kind, label, problem=unreached(error, outcome))
    except TimeoutError:
        detail = f"{label} did not answer in time and was not waited for: nothing is known of it"
        return PlaceFindings(kind, label, problem=Verdict("reach", outcome, detail, next_step=f"fab doctor --host {label}", source="ssh"))


def _examine_service(
    target: Target, backends: Sequence[Backend], observer: Observer, connect: Connect
) -> tuple[PlaceFindings, ServiceFindings | None]:
    """The service's place and the service, over one connection."""
    kind = PlaceKind.CONTAINER if target.service.in_container else PlaceKind.HOST
    try:
        with connect(target) as agent:
            found = look.survey(agent, target)
            look.refuse_when_held(target, found)
            signs = look.signs(agent, target, backends)
            new, problem = _candidate(target, backends, found, observer, signs)
            asked = place_beside(agent, target, new, cuda=True)
            report = look.preflight(agent, target, new, backends, str(found.sglang_version), signs) if new is not None else None
            service = ServiceFindings(target.service.name, target.place, found, report, problem)
            return settled(asked, kind, target.place, None, Outcome.WARN), service
    except UnreachableError as error:
        return PlaceFindings(kind, target.place, problem=unreached(error, Outcome.REFUSE)), None


def _candidate(
    target: Target, backends: Sequence[Backend], found: wire.SurveyReport, observer: Observer, signs: Mapping[str, bool]
) -> tuple[wire.Launch | None, Verdict | None]:
    try:
        return look.candidate(target, backends, found, observer, signs), None
    except RefusedError as error:
        if found.sglang_version is None and any(said.check == "sglang" and said.outcome == Outcome.REFUSE for said in found.verdicts):
            return None, None
        return None, Verdict("candidate", Outcome.REFUSE, error.message, error.evidence, error.next_step, "survey, backend profiles")


def _examine_container(inventory: Inventory, host: Host, open: Open) -> PlaceFindings:  # noqa: A002
    label = host.place(container=True).label
    try:
        with open(inventory, host, PlaceKind.CONTAINER) as agent:
            request = replace(look.diagnosis(inventory, host, PlaceKind.CONTAINER), cuda=True)
            return PlaceFindings(PlaceKind.CONTAINER, label, look.examine(agent, request))
    except UnreachableError as error:
        return PlaceFindings(PlaceKind.CONTAINER, label, problem=unreached(error, Outcome.REFUSE))


def _diagnosis(
    inventory: Inventory,
    host: Host,
    findings: PlaceFindings,
    container: PlaceFindings | None,
    service: ServiceFindings | None,
    target: Target | None,
) -> Diagnosis:
    """Put the parts together as they are shown: each check once, commands with the names that they have here."""
    knobs = knobs_of(findings, container)
    outside, inside = (findings.verdicts, []) if container is None else each_once(findings, container)
    outside = [*outside, *_tuning(host, knobs, findings)]
    of_service = service.verdicts if service is not None else []
    both = _both(inventory, host, findings, container, [*inside, *of_service])
    if container is None:
        of_service, outside = better(of_service, outside)
    else:
        of_service, inside = better(of_service, inside)
    sections = [Section(_heading("host", findings), outside)]
    if container is not None:
        sections.append(Section(_heading("container", container), inside))
    if both:
        sections.append(Section("host and container together", both))
    if service is not None:
        sections.append(Section(_service_heading(service), of_service))
    matters = container if container is not None else findings
    unreached = matters.report is None and service is None
    if target is not None:
        sections = [Section(section.heading, target.advised(section.verdicts)) for section in sections]
    sections = [Section(section.heading, _prep_named(host, section.verdicts)) for section in sections]
    return Diagnosis(findings, container, service, sections, knobs, unreached)


def _prep_named(host: Host, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Verdicts of a place, which doesn't know how its host is called here: the commands that prepare it name it."""
    return [
        replace(verdict, next_step=_BARE_PREP.sub(f"fab prep --host {host.name}", verdict.next_step)) if verdict.next_step else verdict
        for verdict in verdicts
    ]


def _both(
    inventory: Inventory, host: Host, outside: PlaceFindings, inside: PlaceFindings | None, asked: Sequence[Verdict]
) -> list[Verdict]:
    if inside is None or host.container is None:
        return []
    expected = Expected(host.gpus, restart_command(host.container, host.name), f"{inventory.directory}/hosts.yml")
    return together(outside, inside, expected, cuda_works=cuda_works(asked))


def _tuning(host: Host, knobs: Sequence[KnobResult], findings: PlaceFindings) -> list[Verdict]:
    """`findings` are the host's own: without any, or from a container, the knobs are what a container shows of it."""
    inside = findings.report is None or findings.fact(FactName.CONTAINER) is not None
    verdict = None if host.tuning is None else tuning_verdict(host.tuning, host.name, knobs, through_container=inside)
    return [] if verdict is None else [verdict]


def restart_command(container: Container, host: str) -> str:
    """What a person types on the host to restart the container."""
    name = container.reference
    commands = {
        "pct": f"pct reboot {name}",
        "lxc-attach": f"lxc-stop -n {name} && lxc-start -n {name}",
        "incus": f"incus restart {name}",
    }
    return f"on {host}: {commands.get(container.reached_by, f'restart the container {name}')}"


def in_plan(target: Target, host: PlaceFindings | None, place: PlaceFindings, preflight: Sequence[Verdict]) -> list[Verdict]:
    """What the plan of a change tells: the checks of the launch, and what is not well in host and container.

    Args:
        host: None where the service's place is the host itself.
    """
    knobs = knobs_of(host or place, place if host is not None else None)
    outside, inside = ([], place.verdicts) if host is None else each_once(host, place)
    own = mended(inside, cuda_works=cuda_works(preflight))
    checks, own = better(preflight, own)
    instead = {check: [verdict for verdict in own if verdict.check == check] for check in (verdict.check for verdict in own)}
    asked: list[Verdict] = []
    for verdict in preflight:
        asked += instead.pop(verdict.check, [verdict] if verdict in checks else [])
    both = _both(target.inventory, target.host, host, place, [*checks, *own]) if host is not None else []
    beyond = [verdict for verdict in own if verdict.check in instead]
    return [*asked, *notable([*beyond, *of_place(target.host.name, outside), *both, *_tuning(target.host, knobs, host or place)])]


def _heading(word: str, place: PlaceFindings) -> str:
    said = [
        place.fact(FactName.CONTAINER),
        f"kernel {kernel}" if (kernel := place.fact(FactName.KERNEL)) and place.kind == PlaceKind.HOST else None,
        f"driver {module}" if (module := place.fact(FactName.DRIVER_MODULE)) and place.kind == PlaceKind.HOST else None,
        f"libcuda {library}" if (library := place.fact(FactName.DRIVER_LIBRARY)) else None,
        f"{len(gpus)} GPUs" if (gpus := place.fact(FactName.GPUS)) else None,
    ]
    return ", ".join([f"{word} {place.label}", *(str(item) for item in said if item)])


def _service_heading(service: ServiceFindings) -> str:
    version = f", SGLang {service.survey.sglang_version}" if service.survey.sglang_version else ""
    return f"service {service.name} in {service.place}{version}"
