"""What the operator's end says of an agent that does not answer in time."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.errors import AgentError
from orchestrator.remote.agent_client import AgentClient
from orchestrator.remote.endpoint import Endpoint
from orchestrator.remote.place import PlaceDescription


class SilentChannel:
    """Takes everything and never answers."""

    exit_status = -1

    def __init__(self) -> None:
        self.status_event = threading.Event()

    def settimeout(self, seconds: float | None) -> None:
        assert seconds is not None

    def recv(self, size: int) -> bytes:
        raise TimeoutError

    def recv_stderr(self, size: int) -> bytes:
        return b""

    def sendall(self, data: bytes) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("verb", "words"), [("ping", "the agent was ended"), ("tune", "what was begun goes on there"), ("submit", "goes on there")]
)
def test_an_agent_that_writes_is_not_said_to_have_ended(verb: str, words: str) -> None:
    place: Any = SimpleNamespace(
        label="gpu1", description=PlaceDescription("gpu1", Endpoint("gpu1", "192.0.2.1", "root")), start=lambda argv: SilentChannel()
    )
    with pytest.raises(AgentError, match=f"gpu1: no answer to {verb} within 0.5 s; .*{words}"):
        AgentClient(place).ask(verb, wire.PingRequest(), wire.PlaceFacts, 0.5)
