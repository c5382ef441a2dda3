"""What the operator's end says of an agent that does not answer in time."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.errors import AgentError
from orchestrator.remote.agent_client import AgentClient, Input, _Exchange
from orchestrator.remote.endpoint import Endpoint
from orchestrator.remote.frames import FrameDecoder
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


class HesitantChannel(SilentChannel):
    """Each read and each write runs into the channel's timeout first, and does a part the next time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = b""
        self.errors = [b"a warning", b" and more", b""]
        self._hesitates = {"send": True, "recv_stderr": True}

    def _hesitate(self, what: str) -> None:
        self._hesitates[what] = not self._hesitates[what]
        if not self._hesitates[what]:
            raise TimeoutError

    def send(self, data: bytes) -> int:
        self._hesitate("send")
        self.taken += data[:1000]
        return len(data[:1000])

    def recv_stderr(self, size: int) -> bytes:
        self._hesitate("recv_stderr")
        return self.errors.pop(0)


def test_what_is_sent_and_drained_beside_the_reader_outlasts_the_readers_short_waits() -> None:
    """One that ends leaves an agent without its input, or standing still at a full pipe."""
    channel: Any = HesitantChannel()
    data = bytes(range(256)) * 20
    exchange = _Exchange(channel, "ping", Deadline(60), FrameDecoder("token", re.compile(b"hello")), lambda _greeting: Input(data, b""))
    exchange.decoder.feed(b"hello\n")
    exchange.answer_greeting()
    assert wait_until(lambda: channel.taken == data and not channel.errors, Deadline(10))
    assert wait_until(lambda: exchange.evidence == ["a warning and more"], Deadline(10))
