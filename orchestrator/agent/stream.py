"""Reading a /generate stream with the time at which each event arrived.

Bytes are only taken and stamped while the stream runs; they are parsed afterwards, so that parsing never delays a stamp.
"""

import json
import re
import socket
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from orchestrator.agent.clock import Deadline
from orchestrator.agent.http import BrokenError, Client, RefusedError, StatusError, TimedOutError

Arrival = Tuple[float, bytes]
"""Bytes as one read brought them, with the moment (monotonic)."""

_READ = 1 << 18


@dataclass(frozen=True)
class StreamEvent:
    """One ``data:`` event. `moment` is when its last byte had arrived, seconds since the request was sent."""

    moment: float
    data: Dict[str, Any]


def stream_events(client: Client, path: str, body: Dict[str, Any], timeout: float) -> List[StreamEvent]:
    """POST `body` and return the events of the answer up to ``[DONE]``. The connection is made before the clock starts.

    Raises:
        HttpError: there was no stream, it broke off before its end, or the deadline passed.
    """
    deadline = Deadline(timeout)
    payload = json.dumps(body).encode("utf-8")
    headers = {**client.headers(), "Host": f"{client.address}:{client.port}", "Content-Type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(payload)}\r\n\r\n".encode("latin-1") + payload
    try:
        with socket.create_connection((client.address, client.port), timeout=deadline.left()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent = time.monotonic()
            connection.sendall(request)
            arrivals = _receive(connection, deadline)
    except ConnectionRefusedError as error:
        raise RefusedError(f"nobody listens on {client.address} port {client.port}") from error
    except socket.timeout as error:  # noqa: UP041 - before Python 3.10 it is not yet TimeoutError
        raise TimedOutError(f"{path}: the stream did not end within {timeout:g} s") from error
    except OSError as error:
        raise BrokenError(f"{path}: {type(error).__name__}: {error}") from error
    return parse_stream(path, arrivals, sent)


def _receive(connection: socket.socket, deadline: Deadline) -> List[Arrival]:
    arrivals: List[Arrival] = []
    while True:
        connection.settimeout(max(deadline.left(), 1e-3))
        piece = connection.recv(_READ)
        if not piece:
            return arrivals
        arrivals.append((time.monotonic(), piece))
        if deadline.passed:
            raise socket.timeout("deadline")  # noqa: UP041 - see above


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
