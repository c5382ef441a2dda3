"""A reference for timing, not a stand-in for SGLang: one process that writes a token of every stream each so many seconds.

It answers ``/v1/completions`` alone, writes what it has made before, and knows to the microsecond when it wrote: ``/reference`` has the
moment of each chunk of each finished stream, on the clock that all processes of a machine share. Run as
``paced_server.py STEP_SECONDS TOKENS_A_CHUNK``; the port is its first line of output. Standard library only.
"""

from __future__ import annotations

import functools
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

PROMPT_TOKENS = 256
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


@dataclass
class Stream:
    """One connection, and once it has asked, what is written to it."""

    connection: socket.socket
    received: bytes = b""
    chunks: tuple[bytes, ...] = ()
    counts: tuple[int, ...] = ()
    written: int = 0
    moments: list[float] = field(default_factory=list)


class PacedServer:
    """Writes all streams in one thread. The next step is due a step after the last one was, not after it was made."""

    def __init__(self, step: float, tokens_a_chunk: int) -> None:
        self.step = step
        self.tokens_a_chunk = tokens_a_chunk
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.running: list[Stream] = []
        self.finished: list[dict[str, Any]] = []
        self.due = 0.0

    def serve(self) -> None:
        while True:
            patience = max(0.0, self.due - time.monotonic()) if self.running else None
            for key, _ in self.selector.select(patience):
                if key.fileobj is self.listener:
                    self._accept()
                else:
                    self._read(key.data)
            if self.running and time.monotonic() >= self.due:
                self._write_step()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(connection, selectors.EVENT_READ, Stream(connection))

    def _read(self, stream: Stream) -> None:
        piece = stream.connection.recv(1 << 16)
        stream.received += piece
        head, separator, body = stream.received.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        if piece and (not separator or len(body) < length):
            return
        self.selector.unregister(stream.connection)
        if not piece:
            stream.connection.close()
        elif head.startswith(b"POST /v1/completions "):
            tokens = json.loads(body)["max_tokens"]
            stream.chunks, stream.counts = events(tokens, self.tokens_a_chunk)
            stream.connection.sendall(_HEAD)
            if not self.running:
                self.due = time.monotonic() + self.step
            self.running.append(stream)
        else:
            self._answer(stream, head.split(b" ")[1].decode())

    def _answer(self, stream: Stream, path: str) -> None:
        answers: dict[str, Any] = {
            "/v1/loads": {"loads": [{"num_running_reqs": len(self.running), "num_waiting_reqs": 0}]},
            "/reference": self.finished,
        }
        body = json.dumps(answers.get(path, {})).encode()
        status = b"200 OK" if path in answers else b"404 Not Found"
        stream.connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body))
        stream.connection.close()
        if path == "/reference":
            self.finished = []

    def _write_step(self) -> None:
        for stream in list(self.running):
            stream.moments.append(time.monotonic())
            stream.connection.sendall(stream.chunks[stream.written])
            stream.written += 1
            if stream.written == len(stream.chunks):
                stream.connection.close()
                self.running.remove(stream)
                self.finished.append({"moments": stream.moments, "counts": list(stream.counts)})
        self.due += self.step


@functools.lru_cache
def events(tokens: int, tokens_a_chunk: int) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """The chunks of a whole stream, the last with all that follows it, and how many tokens each brings it to."""
    counts = (*range(tokens_a_chunk, tokens, tokens_a_chunk), tokens)
    chunks = [_chunk(_event(count, "length" if count == tokens else None)) for count in counts]
    usage = {"id": "r", "object": "text_completion", "choices": [], "usage": _usage(tokens)}
    chunks[-1] += _chunk(f"data: {json.dumps(usage)}\n\n") + _chunk("data: [DONE]\n\n") + b"0\r\n\r\n"
    return tuple(chunks), counts


def _event(count: int, finish: str | None) -> str:
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": finish, "matched_stop": None}
    event = {"id": "r", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": _usage(count)}
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"


def _usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + count, "completion_tokens": count}


def _chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


if __name__ == "__main__":
    server = PacedServer(float(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write(f"{server.listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server.serve()
