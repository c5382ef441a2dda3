"""Find the agent's events in what a channel delivers, whatever else was printed before or between them."""

from __future__ import annotations

import json
import re

from orchestrator.agent import wire

MAX_FRAME = 64 * 1024 * 1024
"""Bytes; a single event is far below (collect cuts long logs)."""

FRAME = re.compile(rb"(?P<protocol>\d+)(?P<more>[+ ])(?P<piece>.*)", re.DOTALL)

KEPT = 16 * 1024
"""Bytes of stray output kept as evidence: the last ones."""


class FrameError(ValueError):
    """A frame that carries the token but is no event of this protocol."""


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._kept = b""

    def add(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-self._limit :]

    def lines(self) -> list[str]:
        """The kept text by lines, empty ones left out."""
        text = self._kept.decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()]


class FrameDecoder:
    """Takes bytes as they come, gives events; `stray` keeps the rest, `greeting` is the first line that `greets` finds at its end.

    For the format see :mod:`orchestrator.agent.main`. Text that was printed without a newline may stand before a frame.
    """

    def __init__(self, token: str, greets: re.Pattern[bytes] = re.compile(rb"(?!)")) -> None:
        self.stray = Tail()
        self.greeting: str | None = None
        self._greets = greets
        self._token = token.encode("ascii")
        self._buffer = bytearray()
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[wire.Event]:
        """The events that `data` completes.

        Raises:
            FrameError: a frame is damaged, too long or of another protocol.
        """
        self._buffer += data
        if len(self._buffer) + len(self._begun) > MAX_FRAME:
            raise FrameError(f"more than {MAX_FRAME >> 20} MiB without an end")
        if b"\n" not in data:
            return []
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        return [event for line in lines if (event := self._decode(bytes(line))) is not None]

    def finish(self) -> None:
        """Count what is left, at the end of the stream, as stray output."""
        self.stray.add(bytes(self._buffer))
        self._buffer.clear()

    def _take_stray(self, line: bytes) -> None:
        found = self._greets.search(line.rstrip(b"\r")) if self.greeting is None else None
        if found is None:
            self.stray.add(line + b"\n")
            return
        self.greeting = found[0].decode()
        if found.start():
            self.stray.add(line[: found.start()] + b"\n")

    def _decode(self, line: bytes) -> wire.Event | None:
        before, token, frame = line.partition(self._token)
        if not token:
            self._take_stray(line)
            return None
        if before:
            self.stray.add(before + b"\n")
        header = FRAME.match(frame)
        if header is None:
            raise FrameError("a damaged event: no header")
        if int(header["protocol"]) != wire.PROTOCOL:
            raise FrameError(f"the agent speaks protocol {int(header['protocol'])}, this program {wire.PROTOCOL}")
        self._begun += header["piece"]
        if header["more"] == b"+":
            return None
        text, self._begun = self._begun, bytearray()
        try:
            return wire.from_json(wire.Event, json.loads(text))
        except ValueError as error:
            raise FrameError(f"a damaged event: {error}") from error
