"""What the flows ask before anything changes: what there is, and whether a candidate could run."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire_host import DoctorReport, DoctorRequest, PlaceKind
from orchestrator.agent.wire_words import at_work
from orchestrator.errors import LockedError, RefusedError
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Agent, Target

if TYPE_CHECKING:
    from orchestrator.config import Backend, Host, Inventory, Overlay, Service, TuningProfile


SURVEY_SECONDS = 120.0
PREFLIGHT_SECONDS = 600.0
"""SGLang's own parser runs in it: importing SGLang from a cold disk takes minutes."""
DOCTOR_SECONDS = 120.0
"""Every command of a diagnosis has a shorter bound of its own."""


def new_id() -> str:
    """An id for an order or a launch. The time in it is the operator's, for people: what came first is told by the box."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


def survey(agent: Agent, target: Target) -> wire.SurveyReport:
    """Ask what runs in the place."""
    return agent.ask("survey", survey_request(target), wire.SurveyReport, SURVEY_SECONDS)


def survey_request(target: Target) -> wire.SurveyRequest:
    """What is asked for that."""
    service = target.service
    return wire.SurveyRequest(
        service=service.name,
        state_root=target.state_root,
        python=service.python,
        port=service.port,
        environment=dict(service.environment),
        user=service.user,
        expected_gpus=target.expected_gpus,
    )


def refuse_when_held(target: Target, found: wire.SurveyReport) -> None:
    """Stop before anything else is looked at while another order is at work on the service.

    Raises:
        LockedError: there is one.
    """
    order = found.order
    if order is None or not order.live:
        return
    raise LockedError(at_work(order), next_step=target.command("attach"))


def signs(agent: Agent, target: Target, backends: Sequence[Backend]) -> dict[str, bool]:
    """What the installed SGLang has of what tells the profiles' variants apart; asks nothing where they are told apart by version alone."""
    from orchestrator.config import signs as named

    service, names = target.service, named(backends)
    if not names:
        return {}
    request = wire.SignsRequest(names, service.python, dict(service.environment), service.user)
    return agent.ask("signs", request, wire.SignsReport, SURVEY_SECONDS).found


def profile_verdicts(backends: Sequence[Backend], version: str, found_signs: Mapping[str, bool]) -> list[wire.Verdict]:
    """Which variant of each profile is used, and what that rests on."""
    from orchestrator.config import choose

    verdicts = []
    for choice in (choose(backend, version, found_signs) for backend in backends):
        outcome = wire.Outcome.PASS if choice.certain else wire.Outcome.WARN
        detail = f"{choice.backend} for SGLang {choice.variant.sglang}, {choice.rests}"
        step = None if choice.certain else "fab backends --all shows what each version of SGLang gets"
        verdicts.append(wire.Verdict("profile", outcome, detail, next_step=step, source="backend profiles"))
    return verdicts


def candidate(
    target: Target,
    backends: Sequence[Backend],
    found: wire.SurveyReport,
    observer: Observer,
    found_signs: Mapping[str, bool] | None = None,
    overlay: Overlay | None = None,
) -> wire.Launch:
    """Compose the launch of the service under these profiles and a sweep's overlay, for the SGLang that is installed there.

    Raises:
        RefusedError: there is no SGLang, or a profile can't be had in this version.
        ConfigError: a secret can't be had.
    """
    from orchestrator.config import compose_launch, resolve_secrets

    if found.sglang_version is None:
        evidence = [f"{verdict.check}: {verdict.detail}" for verdict in found.verdicts if verdict.outcome != wire.Outcome.PASS]
        raise RefusedError(
            f"{target.service.python} in {target.place} has no SGLang",
            evidence=evidence,
            next_step=f"{target.service.python} -m pip show sglang   # in {target.place}",
        )
    secret_values = resolve_secrets(target.service)
    observer.hide(list(secret_values.values()))
    return compose_launch(target.service, backends, found.sglang_version, new_id(), secret_values, found_signs, overlay, target.rank)


def preflight(
    agent: Agent,
    target: Target,
    launch: wire.Launch,
    backends: Sequence[Backend],
    version: str,
    found_signs: Mapping[str, bool] | None = None,
    policy: wire.Policy | None = None,
    *,
    sequential: bool = False,
) -> wire.PreflightReport:
    """Ask whether the candidate could run there, and how it differs from what runs.

    Args:
        policy: the order's; None where it is not asked how the candidate would take the serving server's place.
        sequential: the operator wants no staged start.
    """
    from orchestrator.config import requirements

    needed = requirements(backends, version, found_signs)
    request = wire.PreflightRequest(launch, target.state_root, needed, target.expected_gpus, policy=policy, sequential=sequential)
    report = agent.ask("preflight", request, wire.PreflightReport, PREFLIGHT_SECONDS)
    return dataclasses.replace(report, verdicts=[*profile_verdicts(backends, version, found_signs or {}), *report.verdicts])


def profile_of(inventory: Inventory, host: Host) -> TuningProfile | None:
    """The tuning profile that the inventory names for the host, None where it names none."""
    return inventory.tuning_of(host, None) if host.tuning is not None else None


def diagnosis(inventory: Inventory, host: Host, kind: str, service: Service | None = None, *, cuda: bool = False) -> DoctorRequest:
    """What a host or its container is asked about itself.

    The container is asked for the host's knobs too, which it shows: that counts where the host can't be reached.

    Args:
        kind: a :class:`PlaceKind`.
        service: the service that is meant in this place, if any.
        cuda: whether cuInit is asked for; not where somebody else asks it at the same time.
    """
    place = host.place(container=kind == PlaceKind.CONTAINER)
    profile = profile_of(inventory, host)
    inside = host.container
    request = DoctorRequest(place=kind, state_root=place.state_root, expected_gpus=place.gpus, cuda=cuda, python=place.python)
    if profile is not None:
        also_shown = profile.settings("container") if kind == PlaceKind.CONTAINER else []
        settings = [*profile.settings("host"), *also_shown]
        request = dataclasses.replace(request, settings=settings, kernel=profile.expect.kernel, driver=profile.expect.driver)
    if kind == PlaceKind.HOST and inside is not None:
        request = dataclasses.replace(request, container=str(inside.id) if inside.id is not None else inside.name)
    if service is None:
        return request
    environment = dict(service.environment)
    return dataclasses.replace(
        request, service=service.name, port=service.port, python=service.python, user=service.user, environment=environment
    )


def examine(agent: Agent, request: DoctorRequest) -> DoctorReport:
    """Have a place diagnosed. Changes nothing."""
    return agent.ask("doctor", request, DoctorReport, DOCTOR_SECONDS)
