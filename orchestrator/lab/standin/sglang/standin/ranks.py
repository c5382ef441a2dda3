"""A stand-in for SGLang's distributed runtime: the nodes of one server know of each other by one connection each to rank 0's.

What the real one does by torch's store and gloo or NCCL, as seen from outside (0.5.23 over two nodes, gloo): every rank waits in its load
for all others; when rank 0 ends as asked, it tells the others to end (ShutdownReq); when any of them is killed, all end within seconds.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType

from sglang.standin.engine import CRASHED, DRAINED, Engine
from sglang.standin.log import log
from sglang.standin.plan import Plan

_RETRY = 0.1
_SHUTDOWN = b"shutdown\n"


class Ranks:
    """This node's connections: rank 0's to all others, another one's to rank 0."""

    def __init__(self, plan: Plan) -> None:
        self.count = int(plan["nnodes"])
        self.rank = int(plan["node_rank"])
        self._plan = plan
        self._links: list[socket.socket] = []
        self._ending = False

    def meet(self, engine: Engine) -> None:
        """Wait until all ranks are there, and have any end of one of them end this server from then on."""
        if self.count == 1:
            return
        address, _, port = str(self._plan["dist_init_addr"]).rpartition(":")
        log(f"Init torch distributed begin. node_rank={self.rank}")
        self._links = self._accept(address, int(port)) if self.rank == 0 else [_connect(address, int(port), self.rank)]
        for link in self._links:
            threading.Thread(target=self._watch, args=(link, engine), daemon=True).start()
        log("Init torch distributed ends.")

    def shut_down(self) -> None:
        """Tell the others to end, as rank 0 does once it has drained."""
        self._ending = True
        for link in self._links:
            try:
                link.sendall(_SHUTDOWN)
            except OSError:
                continue

    def _accept(self, address: str, port: int) -> list[socket.socket]:
        found: dict[int, socket.socket] = {}
        with socket.create_server((address, port)) as server:
            while len(found) < self.count - 1:
                link, _ = server.accept()
                found[json.loads(link.recv(16))] = link
        for link in found.values():
            link.sendall(b"ready\n")
        return list(found.values())

    def _watch(self, link: socket.socket, engine: Engine) -> None:
        try:
            heard = link.recv(64)
        except OSError:
            heard = b""
        if heard == _SHUTDOWN:
            engine.events.put(DRAINED)
        elif not self._ending:
            log("Scheduler hit an exception: Traceback (most recent call last):")
            log("RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer")
            engine.end_with_the_others()


def _connect(address: str, port: int, rank: int) -> socket.socket:
    while True:
        try:
            link = socket.create_connection((address, port))
            link.sendall(json.dumps(rank).encode())
            if link.recv(6) == b"ready\n":
                return link
        except OSError:
            pass
        time.sleep(_RETRY)


class _DummyHandler(BaseHTTPRequestHandler):
    """launch_dummy_health_check_server (srt/utils/common.py)."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path in ("/health", "/ping") else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """uvicorn's access log is off there."""


def serve_rank(engine: Engine) -> int:
    """What a node other than rank 0 does once it has loaded: two paths of HTTP, until rank 0 or a child's end says otherwise."""
    engine.begin_serving()
    signal.signal(signal.SIGTERM, _on_sigterm)
    address = (engine.plan["host"], int(engine.plan["port"]))
    server = ThreadingHTTPServer(address, _DummyHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log(f"Dummy health check server started in background thread at {address[0]}:{address[1]}")
    if engine.next_event() == CRASHED:
        engine.crash()
    engine.release_schedulers()
    return 0


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    log("SIGTERM received; waiting for the rank-0 ShutdownReq broadcast to stop the schedulers.")
