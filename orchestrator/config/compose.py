"""From a service and backend profiles to one launch, for the SGLang version that is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.agent import wire
from orchestrator.config.fields import ArgumentType
from orchestrator.config.models import NODE_FLAGS, Backend, Service, Variant
from orchestrator.config.variants import choose
from orchestrator.errors import UsageError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Overlay:
    """What a point of a sweep lays over the service and its profiles: `arguments`, as a service's.

    `flags` are all that the sweep tries values of, at this point or at others: between two of its launches none of them is drift.
    """

    arguments: Mapping[str, ArgumentType] = field(default_factory=dict)
    flags: Sequence[str] = ()


def compose_launch(
    service: Service,
    backends: Sequence[Backend],
    sglang_version: str,
    launch_id: str,
    secrets: Mapping[str, str],
    signs: Mapping[str, bool] | None = None,
    overlay: Overlay | None = None,
    rank: int = 0,
) -> wire.Launch:
    """The service with the profiles laid over it, and over these a sweep's `overlay`.

    A profile's value takes the place of the service's own; a profile's ``false`` takes the service's flag away. No flag
    comes twice. `secrets` are the values of :func:`orchestrator.config.secrets.resolve_secrets`, `signs` is what the installed SGLang
    was found to have of what the profiles' variants name (:func:`orchestrator.config.variants.signs`). `rank` says which of the
    service's nodes it is for, where it goes over several; the service is then that node's (:meth:`Service.at_rank`).

    Raises:
        RefusedError: a profile can't be had in this SGLang version.
        UsageError: a profile says over which nodes the server goes; two profiles set the same flag or variable to different values, or
            the overlay sets one that a profile sets.
    """
    overlay = overlay or Overlay()
    variants = [(backend.name, choose(backend, sglang_version, signs or {}).variant) for backend in backends]
    flags = _merged("flag", [(name, variant.arguments) for name, variant in variants])
    environment = _merged("environment variable", [(name, variant.environment) for name, variant in variants])
    _refuse_clash(variants, overlay)
    nodes = _node_flags(service, rank, {**flags, **overlay.arguments})
    return wire.Launch(
        launch_id=launch_id,
        service=service.name,
        backend="+".join(name for name, _ in variants),
        python=service.python,
        entry=list(service.entry),
        arguments=_command_line(service, {**service.arguments, **flags, **overlay.arguments, **nodes}),
        host=service.bind,
        port=service.port,
        environment={**service.environment, **environment},
        secrets=dict(secrets),
        backend_flags=list(flags),
        backend_environment=list(environment),
        swept_flags=list(overlay.flags),
        user=service.user,
        directory=service.directory,
    )


def base_launch(service: Service, launch_id: str, secrets: Mapping[str, str]) -> wire.Launch:
    """The service as it stands in its file, without any profile; it needs no SGLang version."""
    return compose_launch(service, [], "0", launch_id, secrets)


def requirements(backends: Sequence[Backend], sglang_version: str, signs: Mapping[str, bool] | None = None) -> list[wire.Requirements]:
    """What the profiles need in this SGLang version, in their order.

    Raises:
        RefusedError: a profile can't be had in this SGLang version.
    """
    chosen = [choose(backend, sglang_version, signs or {}).variant.requirements for backend in backends]
    return [wire.from_json(wire.Requirements, needed.model_dump()) for needed in chosen]


def policy(service: Service) -> wire.Policy:
    """The service's deadlines and thresholds."""
    limits = {name: wire.PhaseLimits(**limits.model_dump()) for name, limits in service.policy.phases.items()}
    return wire.Policy(**{**service.policy.model_dump(), "phases": limits})


def expectations(service: Service) -> list[wire.Expectation]:
    """What the service's owner expects of its answers."""
    return [wire.Expectation(**expectation.model_dump()) for expectation in service.expectations]


def _refuse_clash(variants: Sequence[tuple[str, Variant]], overlay: Overlay) -> None:
    """A profile whose own flag had another value would be timed under its name without being it."""
    for name, variant in variants:
        for flag in overlay.arguments:
            if flag in variant.arguments:
                raise UsageError(
                    f"backend profile {name} sets {flag} itself, so a sweep can't try other values of it under that name",
                    evidence=[f"{name}: {flag} {variant.arguments[flag]}"],
                    next_step=f"leave {flag} out, or write a profile for each value",
                )


def _node_flags(service: Service, rank: int, laid_over: Mapping[str, ArgumentType]) -> dict[str, ArgumentType]:
    """What SGLang is told of the nodes; nothing where there is only one."""
    if not service.nodes or service.dist_init_addr is None:
        return {}
    for flag in NODE_FLAGS:
        if flag in laid_over:
            raise UsageError(f"a backend profile sets {flag}, which the service's nodes say", next_step="take it out of the profile")
    return dict(zip(NODE_FLAGS, (len(service.nodes) + 1, rank, service.dist_init_addr), strict=True))


def _merged(kind: str, parts: Sequence[tuple[str, Mapping[str, Value]]]) -> dict[str, Value]:
    merged: dict[str, Value] = {}
    owner: dict[str, str] = {}
    for profile, settings in parts:
        for name, value in settings.items():
            if name in merged and repr(merged[name]) != repr(value):  # repr: 1 is not true
                raise UsageError(
                    f"backend profiles {owner[name]} and {profile} set {kind} {name} differently",
                    evidence=[f"{owner[name]}: {merged[name]}", f"{profile}: {value}"],
                    next_step="fab backends",
                )
            merged[name] = value
            owner.setdefault(name, profile)
    return merged


def _command_line(service: Service, flags: Mapping[str, ArgumentType]) -> list[str]:
    arguments = ["--model-path", service.model, "--host", service.bind, "--port", str(service.port)]
    for flag, value in flags.items():
        arguments += _rendered(flag, value)
    return arguments


def _rendered(flag: str, value: ArgumentType) -> list[str]:
    if value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *(str(item) for item in value)]
    return [flag, str(value)]
