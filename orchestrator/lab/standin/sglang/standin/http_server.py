"""SGLang's HTTP routes (srt/entrypoints/http_server.py of 0.5.23) on the standard library's threading server."""

from __future__ import annotations

import email.utils
import json
import secrets
import socketserver
import time
import uuid
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from sglang.standin import answers, openai
from sglang.standin.engine import Engine
from sglang.standin.generate import prompts_of, stream_generate
from sglang.standin.log import log, uvicorn
from sglang.standin.requests import HEALTH_CHECK, BadRequest

STARTING, UP, UNHEALTHY = "starting", "ready", "unhealthy"
_HEALTH_SECONDS = 1.0
_HEALTH_DEADLINE = 20.0
_OPEN_TO_ALL = ("/health", "/ready", "/metrics")
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Server(socketserver.ThreadingTCPServer):
    """Binds in its constructor, as late as the caller makes it."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], engine: Engine, loaded: dict[str, Any], status: list[str]) -> None:
        self.engine = engine
        self.loaded = loaded
        self.status = status
        self.started = time.time()
        super().__init__(address, Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in mid-answer is nobody's error."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def version_string(self) -> str:
        return "uvicorn"

    def date_time_string(self, timestamp: float | None = None) -> str:
        return email.utils.formatdate(timestamp, usegmt=True)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        status = HTTPStatus(int(code))
        host, port = self.client_address[:2]
        uvicorn(f'{host}:{port} - "{self.command} {self.path} HTTP/1.1" {status.value} {status.phrase}')

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """The base class's other messages have no counterpart."""

    def do_GET(self) -> None:
        self._route(_GET)

    def do_POST(self) -> None:
        self._route(_POST)

    def do_PUT(self) -> None:
        self._route(_POST)

    def _route(self, table: dict[str, Callable[[Handler, dict[str, Any]], None]]) -> None:
        while self.server.engine.frozen.is_set():
            time.sleep(1)
        path = self.path.partition("?")[0]
        payload = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._is_authorized(path):
            self.send_json({"error": "Unauthorized"}, 401)
            return
        if path.startswith("/v1/models/") and self.command == "GET":
            self._no_such_model(path.rpartition("/")[2])
            return
        route = table.get(path)
        if route is None:
            self.send_json({"detail": "Not Found"}, 404)
            return
        try:
            body = json.loads(payload) if payload else {}
        except ValueError:
            self.send_json({"object": "error", "message": "1 validation error: JSON decode error", "type": "Bad Request", "code": 400}, 400)
            return
        try:
            route(self, body)
        except BadRequest as error:
            self.send_json({"error": {"message": str(error)}}, 400)

    def _is_authorized(self, path: str) -> bool:
        """srt/utils/auth.py: only health, readiness and metrics are open when a key is set."""
        plan = self.server.engine.plan
        expected = plan["api_key"]
        if path in _ADMIN_OPTIONAL and plan["admin_api_key"]:
            expected = plan["admin_api_key"]
        if not expected or path.startswith(_OPEN_TO_ALL):
            return True
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(token, expected)

    def _no_such_model(self, name: str) -> None:
        message = f"The model '{name}' does not exist"
        error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        self.send_json({"error": error}, 404)

    def send_json(self, value: Any, status: int = 200) -> None:
        self.send_body(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), "application/json", status)

    def send_body(self, body: bytes, content_type: str | None = None, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if content_type:
            self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(body)

    def send_events(self, events: Iterator[Any]) -> None:
        """Server-sent events; headers go out before the first one, as uvicorn sends them."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self._send_chunk(f"data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}\n\n".encode())
        self._send_chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def _health(handler: Handler, _body: dict[str, Any]) -> None:
    server, settings = handler.server, handler.server.engine.plan.settings
    if server.engine.draining:
        log("Health check request received during shutdown. Returning 503.")
        handler.send_body(b"", status=503)
        return
    if server.status[0] == STARTING:
        handler.send_body(b"", status=503)
        return
    asked = time.monotonic()
    requests = server.engine.requests
    probe = {"sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
    generation = requests.submit(probe, [0], f"{HEALTH_CHECK}_{uuid.uuid4().hex}")
    while time.monotonic() - asked < settings.scaled(_HEALTH_DEADLINE):
        time.sleep(settings.scaled(_HEALTH_SECONDS))
        if requests.last_received > asked:
            requests.forget(generation)
            server.status[0] = UP
            handler.send_body(b"")
            return
    log("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.")
    requests.forget(generation)
    server.status[0] = UNHEALTHY
    handler.send_body(b"", status=503)


def _ping(handler: Handler, _body: dict[str, Any]) -> None:
    handler.send_body(b"", status=200 if handler.server.status[0] == UP else 503)


def _index(handler: Handler, _body: dict[str, Any]) -> None:
    handler.send_json("SGLang is running")


def _model_info(handler: Handler, _body: dict[str, Any]) -> None:
    handler.send_json(answers.model_info(handler.server.engine.plan))


def _server_info(handler: Handler, _body: dict[str, Any]) -> None:
    server = handler.server
    state = server.engine.requests.internal_state()["state"]
    handler.send_json(answers.server_info(server.engine.plan, server.loaded, server.status[0], state))


def _deprecated(name: str, route: Callable[[Handler, dict[str, Any]], None]) -> Callable[[Handler, dict[str, Any]], None]:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        log(f"Endpoint '/get_{name}' is deprecated and will be removed in a future version. Please use '/{name}' instead.")
        route(handler, body)

    return answer


def _models(handler: Handler, _body: dict[str, Any]) -> None:
    handler.send_json(answers.models(handler.server.engine.plan, handler.server.started))


def _loads(handler: Handler, _body: dict[str, Any]) -> None:
    engine = handler.server.engine
    handler.send_json(answers.loads(engine.plan, handler.server.loaded, len(engine.requests.rids()), engine.requests.used_tokens()))


def _metrics(handler: Handler, _body: dict[str, Any]) -> None:
    engine = handler.server.engine
    if not engine.plan["enable_metrics"]:
        handler.send_json({"detail": "Not Found"}, 404)
        return
    text = answers.metrics(engine.plan, handler.server.loaded, len(engine.requests.rids()), engine.requests.generated_tokens)
    handler.send_body(text.encode(), "text/plain; version=0.0.4; charset=utf-8")


def _generate(handler: Handler, body: dict[str, Any]) -> None:
    engine = handler.server.engine
    prompts, is_batch = prompts_of(body)
    engine.first_request()
    rid = body.get("rid") if isinstance(body.get("rid"), str) else None
    generations = [engine.requests.submit(body, prompt, rid) for prompt in prompts]
    try:
        if body.get("stream"):
            incremental = bool(engine.plan["incremental_streaming_output"])
            handler.send_events(stream_generate(engine.requests, generations, is_batch=is_batch, incremental=incremental))
            return
        results = [engine.requests.whole(generation) for generation in generations]
        handler.send_json(results if is_batch else results[0])
    finally:
        for generation in generations:
            engine.requests.forget(generation)


def _openai(shape: type[openai.Shape]) -> Callable[[Handler, dict[str, Any]], None]:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        engine = handler.server.engine
        exchange = shape(body)
        engine.first_request()
        generation = engine.requests.submit({"sampling_params": openai.sampling(body)}, exchange.prompt)
        exchange.identifier = generation.rid
        try:
            if body.get("stream"):
                handler.send_events(exchange.events(engine.requests.chunks(generation)))
            else:
                handler.send_json(exchange.whole(engine.requests.whole(generation)))
        finally:
            engine.requests.forget(generation)

    return answer


def _abort(handler: Handler, body: dict[str, Any]) -> None:
    rid = body.get("rid")
    if body.get("abort_all"):
        handler.server.engine.requests.abort(None)
    elif rid:
        handler.server.engine.requests.abort([rid])
    handler.send_body(b"")


def _flush_cache(handler: Handler, _body: dict[str, Any]) -> None:
    flushed = handler.server.engine.requests.flush_cache()
    handler.send_body(_FLUSHED.encode() if flushed else b"Flush cache failed.\n", status=200 if flushed else 400)


def _freeze_gc(handler: Handler, _body: dict[str, Any]) -> None:
    handler.send_body(b"Garbage collection frozen.\n")


_ADMIN_OPTIONAL = ("/flush_cache", "/abort_request", "/freeze_gc")

_GET: dict[str, Callable[[Handler, dict[str, Any]], None]] = {
    "/": _index,
    "/health": _health,
    "/health_generate": _health,
    "/ping": _ping,
    "/ready": _ping,
    "/model_info": _model_info,
    "/get_model_info": _deprecated("model_info", _model_info),
    "/server_info": _server_info,
    "/get_server_info": _deprecated("server_info", _server_info),
    "/v1/models": _models,
    "/v1/loads": _loads,
    "/metrics": _metrics,
    "/flush_cache": _flush_cache,
}

_POST: dict[str, Callable[[Handler, dict[str, Any]], None]] = {
    "/generate": _generate,
    "/v1/completions": _openai(openai.Completion),
    "/v1/chat/completions": _openai(openai.Chat),
    "/abort_request": _abort,
    "/flush_cache": _flush_cache,
    "/freeze_gc": _freeze_gc,
}
