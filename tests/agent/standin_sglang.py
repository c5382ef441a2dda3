"""A stand-in for SGLang's HTTP side, in threads of the test: what it answers is set by the test."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from orchestrator.agent import procfs
from orchestrator.agent.procfs import Process


class StandIn:
    """Answers like SGLang 0.5.23 unless told otherwise; `asked` holds ``METHOD path`` of every request."""

    def __init__(self, port: int = 0) -> None:
        self.info: dict[str, Any] = {"version": "0.5.23", "max_total_num_tokens": 8192, "model_path": "/models/m", "status": "ready"}
        self.ready_status = 200
        self.health_status = 200
        self.health_seconds = 0.0
        self.load = 0
        self.generate_status = 200
        self.generate_seconds = 0.0
        self.missing_tokens = 0
        self.cached_tokens = 0
        self.token_seconds = 0.002
        self.key: str | None = None
        self.logprob = -1.5
        self.says: str | None = None
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.first_good_answer: float | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"state": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def stand_in(port: int = 0) -> Iterator[StandIn]:
    server = StandIn(port)
    try:
        yield server
    finally:
        server.close()


class _Handler(BaseHTTPRequestHandler):
    state: StandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.state.asked.append(f"GET {self.path}")
        if self.path == "/health":
            time.sleep(self.state.health_seconds)
            self._answer(self.state.health_status, b"")
        elif self.path == "/ready":
            self._answer(self.state.ready_status, b"")
        elif not self._may():
            self._answer(401, b'{"error":"Unauthorized"}')
        elif self.path == "/server_info":
            self._answer(200, json.dumps(self.state.info).encode())
        elif self.path == "/v1/loads":
            self._answer(200, json.dumps({"loads": [{"num_running_reqs": self.state.load, "num_waiting_reqs": 0}]}).encode())
        elif self.path == "/model_info":
            self._answer(200, b"{}")
        else:
            self._answer(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        self.state.asked.append(f"POST {self.path}")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.state.bodies.append(body)
        if not self._may():
            self._answer(401, b'{"error":"Unauthorized"}')
        elif self.state.generate_status != 200:
            self._answer(self.state.generate_status, b'{"error":{"message":"no"}}')
        elif body.get("stream"):
            self._stream(body)
        elif self.path == "/v1/chat/completions":
            self._answer(200, json.dumps({"choices": [{"message": {"role": "assistant", "content": self.state.says}}]}).encode())
        else:
            time.sleep(self.state.generate_seconds)
            tokens = body["sampling_params"]["max_new_tokens"] - self.state.missing_tokens
            self._answer(200, json.dumps(self._event(body, tokens, last=True)).encode())
            if self.state.first_good_answer is None:
                self.state.first_good_answer = time.monotonic()

    def _may(self) -> bool:
        return self.state.key is None or self.headers.get("Authorization") == f"Bearer {self.state.key}"

    def _event(self, body: dict[str, Any], tokens: int, last: bool) -> dict[str, Any]:
        words = body.get("text", "").split()
        meta: dict[str, Any] = {
            "prompt_tokens": 2 * len(words),
            "completion_tokens": tokens,
            "cached_tokens": self.state.cached_tokens,
            "finish_reason": {"type": "length"} if last else None,
        }
        if body.get("return_logprob"):
            meta["input_token_logprobs"] = [[None, 0, None], *[[self.state.logprob, index, None] for index in range(20)]]
        text = "word " * tokens if self.state.says is None else self.state.says
        return {"text": text, "output_ids": list(range(tokens)), "meta_info": meta}

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        wanted = body["sampling_params"]["max_new_tokens"] - self.state.missing_tokens
        for tokens in range(1, wanted + 1):
            time.sleep(self.state.token_seconds)
            self._chunk(b"data: " + json.dumps(self._event(body, tokens, tokens == wanted)).encode() + b"\n\n")
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Members:
    """Processes that stand for those of a launch: they sleep, and are titled as the test says."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._processes: list[Process] = []

    def add(self, title: str, arguments: tuple[str, ...] = (), *, spins: bool = False) -> Process:
        program = "while True: pass" if spins else "import time; time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", program])
        self._children.append(child)
        process = procfs.read_process(child.pid)
        assert process is not None
        process = dataclasses.replace(process, title=title, arguments=arguments)
        self._processes.append(process)
        return process

    def read(self) -> list[Process]:
        alive = {child.pid for child in self._children if child.poll() is None}
        return [process for process in self._processes if process.pid in alive]

    def kill(self, process: Process) -> None:
        child = next(child for child in self._children if child.pid == process.pid)
        child.kill()
        child.wait()

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()
