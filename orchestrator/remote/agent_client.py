"""Ship the agent to a place over one raw channel, send one request, yield its events.

Fabric's own ``run`` is never used: its standard input is fed 90 bytes a second, and its timeout leaves the remote process alive.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.main import VERBS
from orchestrator.errors import AgentError
from orchestrator.remote.endings import Ending, explain_ending, explain_failure
from orchestrator.remote.frames import FrameDecoder, FrameError, Tail
from orchestrator.remote.place import Place
from orchestrator.remote.shipment import FIRST_STAGE, GREETING, boot_code, package_for
from orchestrator.remote.waiting import LONGEST_DEAF, waiting

if TYPE_CHECKING:
    import paramiko

T = TypeVar("T")

CHUNK = 64 * 1024
LAST_WORDS = 3.0
"""Seconds that standard error and the exit status may lag behind the end of standard output."""


class AgentClient:
    """Asks the agent in one place. Each call is one process there, which ends with the answer or with the caller's interest."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def call(self, verb: str, request: Any, timeout: float | None = None) -> Iterator[wire.Event]:
        """Send `request` (a data class of :mod:`wire`) and yield the events as they arrive; ``result`` is the last.

        Closing the iterator ends the agent. `timeout` bounds the whole call, in seconds.

        Raises:
            ConnectionLostError: the connection ended first.
            ContainerError, RightsError, PythonError, KernelError, DiskFullError: the agent could not run.
            RefusedError, LockedError: the agent would not.
            AgentError: it was killed, raised, spoke nonsense or did not answer in time.
        """
        yield from self._events(self._begin(verb, request, timeout))

    def ask(self, verb: str, request: Any, kind: type[T], timeout: float | None = None) -> T:
        """The answer alone, validated. Raises as :meth:`call`."""
        exchange = self._begin(verb, request, timeout)
        events = self._events(exchange)
        try:
            for event in events:
                if event.kind == wire.EventKind.RESULT:
                    return validate(kind, event.data)
        finally:
            exchange.close()
        raise AgentError(f"{self._place.label}: the agent ended its answer to {verb} without a result")

    def _begin(self, verb: str, request: Any, timeout: float | None) -> _Exchange:
        token = secrets.token_hex(16)
        deadline = Deadline(timeout)
        channel = self._place.start([self._place.description.python, "-I", "-S", "-c", FIRST_STAGE])
        return _Exchange(channel, verb, deadline, FrameDecoder(token, GREETING), lambda greeting: compose(token, verb, request, greeting))

    def _events(self, exchange: _Exchange) -> Iterator[wire.Event]:
        try:
            while data := self._receive_telling(exchange):
                events = self._decode(exchange, data)
                exchange.answer_greeting()
                for event in events:
                    if event.kind == wire.EventKind.ERROR:
                        raise explain_failure(self._place.description, wire.from_json(wire.AgentFailure, event.data))
                    if event.kind == wire.EventKind.MODULES:
                        exchange.send_rest()
                        continue
                    yield event
                    if event.kind == wire.EventKind.RESULT:
                        return
            raise self._no_answer(exchange)
        finally:
            exchange.close()

    def _receive_telling(self, exchange: _Exchange) -> bytes:
        with waiting(f"waiting for {self._place.label}: {exchange.verb}", exchange.deadline.seconds, exchange.began):
            return self._receive(exchange)

    def _receive(self, exchange: _Exchange) -> bytes:
        """Wait for what comes next, in short pieces: see :data:`waiting.LONGEST_DEAF`."""
        limit = exchange.deadline.seconds
        while True:
            left = LONGEST_DEAF if limit is None else max(exchange.deadline.left(), 0.001)
            exchange.channel.settimeout(min(left, LONGEST_DEAF))
            with contextlib.suppress(TimeoutError):
                return exchange.channel.recv(CHUNK)
            if limit is not None and exchange.deadline.passed:
                raise AgentError(
                    f"{self._place.label}: no answer to {exchange.verb} within {limit:g} s; {_after_giving_up(exchange.verb)}",
                    evidence=exchange.evidence,
                    next_step=f"look at the load there: ssh {self._place.description.endpoint.address} uptime",
                )

    def _decode(self, exchange: _Exchange, data: bytes) -> list[wire.Event]:
        try:
            return exchange.decoder.feed(data)
        except FrameError as error:
            raise AgentError(
                f"{self._place.label}: {error}",
                evidence=exchange.evidence,
                next_step=f"try once more; if it stays, find what prints at login: ssh {self._place.description.endpoint.address} true",
            ) from None

    def _no_answer(self, exchange: _Exchange) -> Exception:
        """Exit, signal and disconnect are three different answers."""
        exchange.wait_end(LAST_WORDS)
        status = exchange.exit_status
        if status is None and not self._place.connection.is_connected:
            return self._place.connection.lost()
        return explain_ending(self._place.description, Ending(status, exchange.decoder.stray.lines(), exchange.errors.lines()))


class _Exchange:
    """One running agent. Its input is sent and its standard error drained beside the reader, so no side waits for a full buffer.

    `compose` makes all of the input once the Python over there has said which one it is.
    """

    def __init__(
        self, channel: paramiko.Channel, verb: str, deadline: Deadline, decoder: FrameDecoder, compose: Callable[[str], Input]
    ) -> None:
        self.channel = channel
        self.verb = verb
        self.deadline = deadline
        self.began = time.monotonic()
        self.decoder = decoder
        self.errors = Tail()
        self._drain = threading.Thread(target=self._drain_errors, name="agent-stderr", daemon=True)
        self._drain.start()
        self._compose = compose
        self._answered = False
        self._rest = b""

    @property
    def evidence(self) -> list[str]:
        """The last of what came beside the frames."""
        return [*self.decoder.stray.lines()[-20:], *self.errors.lines()[-20:]]

    @property
    def exit_status(self) -> int | None:
        """None when a signal ended it, or nobody said."""
        return self.channel.exit_status if self.channel.exit_status >= 0 else None

    def answer_greeting(self) -> None:
        """Send the agent and the request, as soon as the first stage has been heard."""
        greeting = self.decoder.greeting
        if greeting is None or self._answered:
            return
        self._answered = True
        composed = self._compose(greeting)
        self._rest = composed.rest
        self._send_beside(composed.first)

    def send_rest(self) -> None:
        """Send the modules that the agent misses."""
        self._send_beside(self._rest)

    def close(self) -> None:
        """Close the channel: the agent sees the end of its input and goes."""
        self.channel.close()

    def wait_end(self, seconds: float) -> None:
        """After the end of standard output: wait for that of standard error and for the exit status."""
        self.decoder.finish()
        self._drain.join(seconds)
        self.channel.status_event.wait(seconds)

    # A channel has one timeout for all that is done with it, and the reader of standard output sets a short one: here it ends nothing.

    def _send_beside(self, data: bytes) -> None:
        threading.Thread(target=self._send, args=(data,), name="agent-stdin", daemon=True).start()

    def _send(self, data: bytes) -> None:
        sent = 0
        # Nobody reads any more, or the channel was closed: the reader of standard output tells why.
        with contextlib.suppress(OSError, EOFError):
            while sent < len(data):
                with contextlib.suppress(TimeoutError):
                    sent += self.channel.send(data[sent : sent + CHUNK])

    def _drain_errors(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                with contextlib.suppress(TimeoutError):
                    data = self.channel.recv_stderr(CHUNK)
                    if not data:
                        return
                    self.errors.add(data)


def _after_giving_up(verb: str) -> str:
    """What becomes of an agent whose answer is waited for no longer."""
    known = VERBS.get(verb)
    return "the agent was ended" if known is None or known.ends_with_reader else "what was begun goes on there to its end"


class Input(NamedTuple):
    """All that the first stage, the boot code and the agent read from standard input: at once, and when they ask for more."""

    first: bytes
    rest: bytes


def compose(token: str, verb: str, request: Any, greeting: str | None = None) -> Input:
    """What is sent to whoever has said that `greeting`."""
    boot, package = boot_code(), package_for(verb, greeting)
    asked = json.dumps(wire.to_json(wire.Request(verb, wire.to_json(request)))).encode("ascii")
    header = f"{token} {len(package.first)} {len(asked)} {len(package.rest)}\n".encode("ascii")
    return Input(b"%d\n" % len(boot) + boot + header + package.first + asked, package.rest)


def validate(kind: type[T], data: Any) -> T:
    """One wire type out of an event's data.

    Raises:
        AgentError: it does not fit.
    """
    try:
        return wire.from_json(kind, data)
    except wire.WireError as error:
        raise AgentError(
            f"the agent's {kind.__name__} does not fit: {error}", next_step="this is a bug of the program: report it"
        ) from error
