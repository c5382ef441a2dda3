"""The gate of ``--gated-launch-port`` (srt/distributed/gated_launch.py of 0.5.23): every rank waits here before it allocates anything.

Rank 0 serves it on the server's ``--host``, without a key, for as long as it lives. Where its port is taken, uvicorn's thread ends
with an error line, and everybody waits for ever.
"""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from typing import Any

from sglang.standin.log import log, raw
from sglang.standin.plan import Plan

POLL_INTERVAL_SECONDS = 1.0
LOG_INTERVAL_SECONDS = 10.0


def maybe_wait_for_gated_launch(plan: Plan, rank: int, opened: Any) -> None:
    """Wait at the gate, where there is one. `opened` is an event that the ranks share, in the place of gloo's broadcast."""
    if plan.gate_port is None:
        return
    gate = _GatedLaunchServer(plan, plan.gate_port) if rank == 0 else None
    if gate is not None:
        gate.serve()
    log(f"Gated launch waiting for activation. rank={rank}")
    began = time.perf_counter()
    death = threading.Timer(plan.settings.die_at_gate, os.kill, (os.getpid(), signal.SIGKILL))
    if gate is not None and plan.settings.die_at_gate:
        death.start()
    _wait_until_activated(plan, rank, gate, opened)
    death.cancel()
    log(f"Gated launch activated. elapsed={time.perf_counter() - began:.2f} s")


def _wait_until_activated(plan: Plan, rank: int, gate: _GatedLaunchServer | None, opened: Any) -> None:
    began = time.perf_counter()
    next_log_at = began + plan.settings.scaled(LOG_INTERVAL_SECONDS)
    while True:
        if gate is not None and gate.activated:
            opened.set()
        if opened.is_set():
            return
        if (now := time.perf_counter()) >= next_log_at:
            log(f"Gated launch still waiting for activation. rank={rank} elapsed={now - began:.0f} s")
            next_log_at = now + plan.settings.scaled(LOG_INTERVAL_SECONDS)
        time.sleep(plan.settings.scaled(POLL_INTERVAL_SECONDS))


class _GatedLaunchServer:
    """Rank 0's. `activated` is what a POST sets; with the setting `activation_lost` it is answered and sets nothing."""

    def __init__(self, plan: Plan, port: int) -> None:
        self.activated = False
        self._settings = plan.settings
        self._address = (str(plan["host"]), port)

    def activate(self) -> None:
        self.activated = not self._settings.activation_lost

    def serve(self) -> None:
        """Returns at once, whether or not the port can be bound: so does the real one, whose log line says that it has started."""
        threading.Thread(target=self._run, daemon=True).start()
        log(f"Gated launch control server started on {self._address[0]}:{self._address[1]}")

    def _run(self) -> None:
        gate = self

        class Handler(_Handler):
            server_of_gate = gate

        try:
            server = _Server(self._address, Handler)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raw(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {self._address!r}: {reason}\n")
            return
        if self._settings.activated_early:
            self.activate()
        server.serve_forever(poll_interval=3600)


class _Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in mid-answer is nobody's error."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """FastAPI's two routes, and what it says to everything else."""

    protocol_version = "HTTP/1.1"
    server_of_gate: _GatedLaunchServer

    def version_string(self) -> str:
        return "uvicorn"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """uvicorn logs warnings only here."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, "OK")
        else:
            self._refuse(405 if self.path == "/gate/activate" else 404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/gate/activate":
            self.server_of_gate.activate()
            self._answer(200, "OK")
        else:
            self._refuse(405 if self.path == "/health" else 404)

    def _refuse(self, status: int) -> None:
        words = {404: "Not Found", 405: "Method Not Allowed"}[status]
        self._answer(status, f'{{"detail":"{words}"}}', "application/json")

    def _answer(self, status: int, text: str, content_type: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(body)
