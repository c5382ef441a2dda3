"""What a file of ``routers/`` may hold: SGLang's router, and the replicas behind it.

A replica is a service of the inventory with the url under which the router knows its server: nobody but the two of them can say it, as it
is the router's view of the network.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from orchestrator.agent.router_settings import read_flags
from orchestrator.agent.wire_router import RouterAddress, RouterSettings, plain_url
from orchestrator.config.fields import Name, SecretReference
from orchestrator.config.models import PlaceKind, Seconds, StrictModel

_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9._-]*)(:[0-9]{1,5})?(/[!-~]*)?")
_LOOPBACK = re.compile(r"https?://(localhost|127\.[0-9.]+|\[::1\])(:|/|$)")


def _check_url(value: str) -> str:
    """A url such as http://10.0.0.5:30000, without a user."""
    if "@" in value:
        raise ValueError("holds a user or a password: a router's key is written in key:, a worker's in its service's secrets:")
    if _URL.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a url such as http://10.0.0.5:30000")
    return value


def _check_flags(value: str) -> str:
    """A router's flags, as a shell has them."""
    words = shlex.split(value)
    if "--api-key" in value:
        raise ValueError("holds --api-key: a router's key is written in key:")
    if not words or not words[0].startswith("--"):
        raise ValueError(f"{value!r} does not begin with a flag, such as --retry-max-retries 60")
    read_flags(words, "")
    return value


Url = Annotated[str, AfterValidator(_check_url)]


class Replica(StrictModel):
    """One of the servers behind a router: a service, and the url by which the router calls its worker."""

    service: Name
    """A service of the inventory."""
    worker: Url
    """The url in the router's ``--worker-urls``, or of its ``POST /workers``."""


class Router(StrictModel):
    """A router: sglang-router from 0.3.2 on, or smg, its successor.

    Without `host` it is asked from here, and a loopback is the operator's own (a forwarded port).
    """

    name: Name
    """What ``--router`` means."""
    url: Url
    """Its API, where requests go too."""
    metrics: Url | None = None
    """Its counters, with their path: ``http://10.0.0.5:29000/metrics``."""
    key: SecretReference | None = None
    """Its ``--api-key``. Those of its workers are in their services' secrets."""
    host: Name | None = None
    """From where it is asked, where the operator's machine does not reach its url: mostly because that is a loopback."""
    place: PlaceKind = "container"
    """Where on that host."""
    replicas: Annotated[list[Replica], Field(min_length=1)]
    """Those behind it, in the order in which they are rolled."""
    drain: Seconds = 300.0
    """How long a replica's requests may take to end once the router sends it no more: as long as the longest that there is."""
    join: Seconds = 120.0
    """How long the router may take to have a replica in again whose server answers."""
    traffic: Seconds = 60.0
    """How long it may take until requests reach a replica that is in again, while they reach others."""
    started_with: Annotated[str, AfterValidator(_check_flags)] | None = None
    """Its flags about retries, the circuit breaker and health checks, as in the command that started it. They say whether requests are held
    while its only replica is switched; what its process shows is believed before them."""

    @model_validator(mode="after")
    def _replicas_differ(self) -> Self:
        for what, values in (
            ("service", [replica.service for replica in self.replicas]),
            ("worker", [plain_url(replica.worker) for replica in self.replicas]),
        ):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"the {what} {twice!r} is there twice")
        return self

    @property
    def declared_settings(self) -> RouterSettings | None:
        """What the inventory says of its retries, None where it says nothing."""
        if self.started_with is None:
            return None
        return read_flags(shlex.split(self.started_with), f"started_with: in the file of router {self.name}")

    @property
    def is_local(self) -> bool:
        """Whether its url is of a loopback, so that only its own place reaches it."""
        return _LOOPBACK.match(self.url) is not None

    def address(self, key: str | None) -> RouterAddress:
        """Where it is, with its key's value."""
        return RouterAddress(self.name, self.url, self.metrics, key)

    def replica(self, service: str) -> Replica:
        """The replica of a service.

        Raises:
            KeyError: the service is not behind it.
        """
        return {replica.service: replica for replica in self.replicas}[service]
