"""What the flows ask before anything changes: what there is, and whether a candidate could run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.errors import LockedError, RefusedError
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Agent, Target

if TYPE_CHECKING:
    from orchestrator.config import Backend


SURVEY_SECONDS = 120.0
PREFLIGHT_SECONDS = 600.0
"""SGLang's own parser runs in it: importing SGLang from a cold disk takes minutes."""


def new_id() -> str:
    """An id for an order or a launch; ids sort by time."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


def survey(agent: Agent, target: Target) -> wire.SurveyReport:
    """Ask what runs in the place."""
    service = target.service
    request = wire.SurveyRequest(
        service=service.name,
        state_root=target.state_root,
        python=service.python,
        port=service.port,
        environment=dict(service.environment),
        user=service.user,
        expected_gpus=target.expected_gpus,
    )
    return agent.ask("survey", request, wire.SurveyReport, SURVEY_SECONDS)


def refuse_when_held(target: Target, found: wire.SurveyReport) -> None:
    """Stop before anything else is looked at while another order is at work on the service.

    Raises:
        LockedError: there is one.
    """
    order = found.order
    if order is None or not order.live:
        return
    reason = f" ({order.reason})" if order.reason else ""
    raise LockedError(
        f"order {order.order_id} is at work on {target.service.name}: {order.kind} by {order.operator}{reason}, in {order.state}",
        next_step=target.command("status"),
    )


def candidate(target: Target, backends: Sequence[Backend], found: wire.SurveyReport, observer: Observer) -> wire.Launch:
    """Compose the launch of the service under these profiles, for the SGLang that is installed there.

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
    return compose_launch(target.service, backends, found.sglang_version, new_id(), secret_values)


def preflight(agent: Agent, target: Target, launch: wire.Launch, backends: Sequence[Backend], version: str) -> wire.PreflightReport:
    """Ask whether the candidate could run there, and how it differs from what runs."""
    from orchestrator.config import requirements

    request = wire.PreflightRequest(launch, target.state_root, requirements(backends, version), target.expected_gpus)
    return agent.ask("preflight", request, wire.PreflightReport, PREFLIGHT_SECONDS)
