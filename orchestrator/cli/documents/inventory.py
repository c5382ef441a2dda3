"""Answers of the verbs that tell what the inventory says, and of trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from orchestrator.cli.documents.envelope import Problem
from orchestrator.config import Host, Service, TuningProfile
from orchestrator.config.models import RequirementsModel
from orchestrator.flows.trust import Offer


class _NamesOnly:
    """A model as data in which a field that maps names to values became the list of the names."""

    def __init__(self, model: type[BaseModel], field: str) -> None:
        self._model = model
        self._field = field

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self._model)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(core)
        model = handler.resolve_ref_schema(whole)
        about = {name: value for name, value in model["properties"][self._field].items() if name in ("title", "description")}
        model["properties"][self._field] = {**about, "type": "array", "items": {"type": "string"}}
        return whole


@dataclass(frozen=True)
class Hosts:
    """The hosts of the inventory in a folder."""

    inventory: str
    hosts: list[Host]


@dataclass(frozen=True)
class Services:
    """The services of the inventory in a folder. Of `secrets` each has the names alone."""

    inventory: str
    services: list[Annotated[dict[str, Any], _NamesOnly(Service, "secrets")]]


def service_data(service: Service) -> dict[str, Any]:
    """A service as data, without where its secrets are."""
    return {**service.model_dump(mode="json", exclude={"secrets"}), "secrets": sorted(service.secrets)}


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
