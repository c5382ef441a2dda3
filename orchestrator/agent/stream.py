"""Reading streamed answers with the time at which each event arrived: one, or many at once.

Bytes are only taken and stamped while the streams run, by one thread on non-blocking sockets; they are parsed afterwards, so that parsing
never delays a stamp.
"""

import contextlib
import gc
import json
import re
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from orchestrator.agent.clock import Deadline
from orchestrator.agent.http import BrokenError, Client, HttpError, RefusedError, StatusError, TimedOutError

Arrival = Tuple[float, bytes]
"""Bytes as one read brought them, with the moment (monotonic)."""

_READ = 1 << 16
"""Bytes at once. A larger buffer would be mapped and unmapped by malloc for each read."""


@dataclass(frozen=True)
class StreamEvent:
    """One ``data:`` event. `moment` is when its last byte had arrived, seconds since the request was sent."""

    moment: float
    data: Dict[str, Any]


@dataclass
class Exchange:
    """One request and the stamped bytes of its answer. `sent` is monotonic; `problem` says why the answer has no end."""

    path: str
    sent: float = 0.0
    arrivals: List[Arrival] = field(default_factory=list)
    problem: Optional[HttpError] = None

    def events(self) -> List[StreamEvent]:
        """The events up to ``[DONE]``.

        Raises:
            HttpError: there was no stream, it broke off before its end, or the deadline passed.
        """
        if self.problem is not None:
            raise self.problem
        return parse_stream(self.path, self.arrivals, self.sent)


@dataclass(frozen=True)
class Reading:
    """Several exchanges at once. `late` is the longest time for which the thread was not waiting for bytes: no stamp is later than that.

    `waited` is for how long in all it wanted to run and had no processor, None where the kernel does not tell.
    """

    exchanges: List[Exchange]
    late: float
    waited: Optional[float]


def stream_events(client: Client, path: str, body: Dict[str, Any], timeout: float) -> List[StreamEvent]:
    """POST `body` and return the events of the answer up to ``[DONE]``. The connection is made before the clock starts.

    Raises:
        HttpError: there was no stream, it broke off before its end, or the deadline passed.
    """
    [exchange] = read_streams(client, path, [body], timeout).exchanges
    return exchange.events()


def read_streams(client: Client, path: str, bodies: Sequence[Dict[str, Any]], timeout: float) -> Reading:
    """POST all `bodies` at once, each over a connection of its own, and read the answers to their ends.

    All connections are made before the first request is sent. What goes wrong with one exchange is its own problem.

    Raises:
        HttpError: not every connection could be made.
    """
    deadline = Deadline(timeout)
    requests = [_request(client, path, body) for body in bodies]
    with contextlib.ExitStack() as stack:
        try:
            connections = [stack.enter_context(_connect(client, deadline)) for _ in requests]
        except OSError as error:
            raise _http_error(path, error, client, timeout) from error
        exchanges = [Exchange(path) for _ in requests]
        with _no_collection(), selectors.DefaultSelector() as selector:
            before = _waited()
            for connection, request, exchange in zip(connections, requests, exchanges):  # noqa: B905 - equal lengths
                exchange.sent = time.monotonic()
                try:
                    connection.sendall(request)
                    connection.setblocking(False)
                    selector.register(connection, selectors.EVENT_READ, exchange)
                except OSError as error:
                    exchange.problem = _http_error(path, error, client, timeout)
            late = _receive(selector, deadline)
            after = _waited()
            for key in list(selector.get_map().values()):
                key.data.problem = TimedOutError(f"{path}: the stream did not end within {timeout:g} s")
    return Reading(exchanges, late, None if before is None or after is None else after - before)


def _request(client: Client, path: str, body: Dict[str, Any]) -> bytes:
    payload = json.dumps(body).encode("utf-8")
    headers = {**client.headers(), "Host": f"{client.address}:{client.port}", "Content-Type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(payload)}\r\n\r\n".encode("latin-1") + payload


def _connect(client: Client, deadline: Deadline) -> socket.socket:
    connection = socket.create_connection((client.address, client.port), timeout=max(deadline.left(), 1e-3))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _http_error(path: str, error: OSError, client: Client, timeout: float) -> HttpError:
    if isinstance(error, ConnectionRefusedError):
        return RefusedError(f"nobody listens on {client.address} port {client.port}")
    if isinstance(error, socket.timeout):
        return TimedOutError(f"{path}: the stream did not end within {timeout:g} s")
    return BrokenError(f"{path}: {type(error).__name__}: {error}")


def _receive(selector: selectors.BaseSelector, deadline: Deadline) -> float:
    """Take bytes until every answer has ended or the deadline has passed; the longest time away from waiting.

    One stamp serves all that were ready together: their bytes had arrived by then.
    """
    late = 0.0
    while selector.get_map() and not deadline.passed:
        ready = selector.select(deadline.left())
        now = time.monotonic()
        for key, _ in ready:
            connection, exchange = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            try:
                piece = connection.recv(_READ)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                exchange.problem = BrokenError(f"{exchange.path}: {type(error).__name__}: {error}")
                piece = b""
            if piece:
                exchange.arrivals.append((now, piece))
            else:
                selector.unregister(connection)
        late = max(late, time.monotonic() - now)
    return late


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A collection of garbage stops this thread for milliseconds."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _waited() -> Optional[float]:
    """Seconds for which this thread has waited for a processor (Documentation/scheduler/sched-stats.rst, the second field)."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as stream:
            return int(stream.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def parse_stream(path: str, arrivals: List[Arrival], sent: float) -> List[StreamEvent]:
    """Turn the stamped bytes of one HTTP/1.1 answer into events.

    Raises:
        StatusError: an answer with another status.
        BrokenError: not HTTP, an error event, or cut off before ``[DONE]``.
    """
    raw = b"".join(piece for _, piece in arrivals)
    head, separator, _ = raw.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if status is None or not separator:
        raise BrokenError(f"{path}: the answer is not HTTP: {raw[:80]!r}")
    start = len(head) + 4
    chunked = re.search(rb"^transfer-encoding:\s*chunked", head, re.IGNORECASE | re.MULTILINE) is not None
    spans = _chunk_spans(raw, start) if chunked else [(start, len(raw))]
    if status.group(1) != b"200":
        body = b"".join(raw[begin:end] for begin, end in spans)
        raise StatusError(path, int(status.group(1)), body.decode("utf-8", "replace")[:2000])
    return _read_events(path, raw, spans, _Clock(arrivals, sent))


class _Clock:
    """When the byte at a position had arrived. Positions are asked in ascending order."""

    def __init__(self, arrivals: List[Arrival], sent: float) -> None:
        self._arrivals = arrivals
        self._sent = sent
        self._index = 0
        self._end = len(arrivals[0][1]) if arrivals else 0

    def moment(self, position: int) -> float:
        while position >= self._end and self._index + 1 < len(self._arrivals):
            self._index += 1
            self._end += len(self._arrivals[self._index][1])
        return self._arrivals[self._index][0] - self._sent


def _chunk_spans(raw: bytes, start: int) -> List[Tuple[int, int]]:
    """Where the data of each chunk lies (RFC 9112, 7.1); a last chunk that was cut off is left out."""
    spans: List[Tuple[int, int]] = []
    while True:
        line_end = raw.find(b"\r\n", start)
        if line_end < 0:
            return spans
        size_text = raw[start:line_end].split(b";")[0].strip()
        try:
            size = int(size_text, 16)
        except ValueError:
            return spans
        begin = line_end + 2
        if size == 0 or begin + size > len(raw):
            return spans
        spans.append((begin, begin + size))
        start = begin + size + 2


def _read_events(path: str, raw: bytes, spans: List[Tuple[int, int]], clock: _Clock) -> List[StreamEvent]:
    """An event ends at a blank line, which may come in a later chunk than its beginning."""
    events: List[StreamEvent] = []
    pending = b""
    for begin, end in spans:
        pending += raw[begin:end]
        while b"\n\n" in pending:
            block, _, pending = pending.partition(b"\n\n")
            payload = block.strip()
            if not payload.startswith(b"data:"):
                continue
            if payload == b"data: [DONE]":
                return events
            events.append(StreamEvent(clock.moment(end - len(pending) - 1), _event_data(path, payload[5:])))
    raise BrokenError(f"{path}: the stream ended after {len(events)} events without [DONE]")


def _event_data(path: str, payload: bytes) -> Dict[str, Any]:
    try:
        data = json.loads(payload)
    except ValueError as error:
        raise BrokenError(f"{path}: an event is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BrokenError(f"{path}: an event is not an object")
    if "error" in data:
        # SGLang reports errors inside the stream, with status 200.
        raise BrokenError(f"{path}: the stream reports: {json.dumps(data['error'])[:300]}")
    return data
