"""From a service and backend profiles to one launch, for the SGLang version that is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from orchestrator.agent import wire
from orchestrator.config.fields import ArgumentType
from orchestrator.config.models import Backend, Service, Variant
from orchestrator.config.versions import Version
from orchestrator.errors import RefusedError, UsageError

Value = TypeVar("Value")


def compose_launch(
    service: Service, backends: Sequence[Backend], sglang_version: str, launch_id: str, secrets: Mapping[str, str]
) -> wire.Launch:
    """The service with the profiles laid over it.

    A profile's value takes the place of the service's own; a profile's ``false`` takes the service's flag away. No flag
    comes twice. `secrets` are the values of :func:`orchestrator.config.secrets.resolve_secrets`.

    Raises:
        RefusedError: a profile can't be had in this SGLang version.
        UsageError: two profiles set the same flag or variable to different values.
    """
    variants = [(backend.name, _variant(backend, sglang_version)) for backend in backends]
    flags = _merged("flag", [(name, variant.arguments) for name, variant in variants])
    environment = _merged("environment variable", [(name, variant.environment) for name, variant in variants])
    return wire.Launch(
        launch_id=launch_id,
        service=service.name,
        backend="+".join(name for name, _ in variants),
        python=service.python,
        entry=list(service.entry),
        arguments=_command_line(service, {**service.arguments, **flags}),
        host=service.bind,
        port=service.port,
        environment={**service.environment, **environment},
        secrets=dict(secrets),
        backend_flags=list(flags),
        backend_environment=list(environment),
        user=service.user,
        directory=service.directory,
    )


def base_launch(service: Service, launch_id: str, secrets: Mapping[str, str]) -> wire.Launch:
    """The service as it stands in its file, without any profile; it needs no SGLang version."""
    return compose_launch(service, [], "0", launch_id, secrets)


def requirements(backends: Sequence[Backend], sglang_version: str) -> list[wire.Requirements]:
    """What the profiles need in this SGLang version, in their order.

    Raises:
        RefusedError: a profile can't be had in this SGLang version.
    """
    return [wire.Requirements(**_variant(backend, sglang_version).requirements.model_dump()) for backend in backends]


def policy(service: Service) -> wire.Policy:
    """The service's deadlines and thresholds."""
    return wire.Policy(**service.policy.model_dump())


def available_in(backend: Backend) -> list[str]:
    """The SGLang version ranges in which the profile can be had."""
    return [str(variant.sglang) for variant in backend.variants if variant.refused is None]


def _variant(backend: Backend, sglang_version: str) -> Variant:
    """The first variant whose range holds the version."""
    try:
        version = Version.parse(sglang_version)
    except ValueError as error:
        raise RefusedError(f"the SGLang version of the place is not understood: {error}") from None
    variant = next((item for item in backend.variants if version in item.sglang), None)
    if variant is not None and variant.refused is None:
        return variant
    reason = "it does not exist there" if variant is None else str(variant.refused)
    ranges = "; ".join(available_in(backend)) or "no version"
    raise RefusedError(
        f"backend profile {backend.name} can't be had in SGLang {sglang_version}: {reason}",
        evidence=[f"{backend.name} can be had in SGLang {ranges}"],
        next_step="fab backends",
    )


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
