"""Answers of the verbs that tell what the inventory says, and of trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from orchestrator.cli.documents.envelope import Problem
from orchestrator.config import Host, Service, TuningProfile
from orchestrator.config.models import RequirementsModel
from orchestrator.flows.trust import Offer

_LISTED: Mapping[str, JsonSchemaValue] = {"secrets": {"type": "array", "items": {"type": "string"}}, "webhook": {"type": "boolean"}}
"""Fields of the inventory that say where secrets are found, and what is told of each instead."""


class _AsListed:
    """A model as data without where its secrets are found."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self._model)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(core)
        properties = handler.resolve_ref_schema(whole)["properties"]
        for name in _LISTED.keys() & properties.keys():
            about = {key: value for key, value in properties[name].items() if key in ("title", "description")}
            properties[name] = {**about, **_LISTED[name]}
        return whole


@dataclass(frozen=True)
class Hosts:
    """The hosts of the inventory in a folder. Of `webhook` each says whether it names one.

    Attributes:
        groups: group -> its hosts.
    """

    inventory: str
    hosts: list[Annotated[dict[str, Any], _AsListed(Host)]]
    groups: dict[str, list[str]]


def host_data(host: Host) -> dict[str, Any]:
    """A host as data, without where its webhook's URL is."""
    return {**host.model_dump(mode="json", exclude={"webhook"}), "webhook": host.webhook is not None}


@dataclass(frozen=True)
class Services:
    """The services of the inventory in a folder. Of `secrets` each has the names alone, of `webhook` whether it names one of its own."""

    inventory: str
    services: list[Annotated[dict[str, Any], _AsListed(Service)]]


def service_data(service: Service) -> dict[str, Any]:
    """A service as data, without where its secrets are."""
    told = {"secrets": sorted(service.secrets), "webhook": service.webhook is not None}
    return {**service.model_dump(mode="json", exclude=set(told)), **told}


@dataclass(frozen=True)
class BackendVariant:
    """What a profile means for a range of SGLang versions; `refused` says why it can't be had in them."""

    sglang: str
    arguments: dict[str, Any]
    environment: dict[str, str]
    requirements: RequirementsModel
    refused: str | None


@dataclass(frozen=True)
class BackendListed:
    """A backend profile. `kind` is ``backend`` or ``overlay``, `summary` says when to use it."""

    name: str
    kind: str
    summary: str
    variants: list[BackendVariant]


@dataclass(frozen=True)
class Backends:
    """The backend profiles. `sglang` is the version that was asked for, whose variant each has alone."""

    inventory: str
    sglang: str | None
    backends: list[BackendListed]


@dataclass(frozen=True)
class Tunings:
    """The tuning profiles. `persist` of a knob says whether it would be set at boot."""

    inventory: str
    tunings: list[TuningProfile]


@dataclass(frozen=True)
class Trusted:
    """Keys that were offered, and what became of each; `errors` are of places that could not be asked."""

    known_hosts: str
    offers: list[Offer]
    errors: list[Problem]
