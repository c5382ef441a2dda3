"""The agent's way to a router, over real sockets: what is sent, with which key, and what comes of a router that is not there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestrator.agent.box_router import router
from orchestrator.agent.router_protocol import Ask
from orchestrator.agent.wire_router import RouterAction, RouterAddress, RouterReport, RouterRequest, Trouble
from orchestrator.remote.router_client import open_router
from tests.unit.fake_router import FakeRouter

A, B = "http://a:30000", "http://b:30000"
KEY = "canary-RK"


class Served:
    """A router in memory, on a port of loopback."""

    def __init__(self, fake: FakeRouter) -> None:
        self.fake = fake
        self.keys: list[str | None] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def address(self) -> RouterAddress:
        return RouterAddress("front", self.url, f"{self.url}/metrics", KEY)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                served.keys.append(self.headers["Authorization"])
                length = int(self.headers["Content-Length"] or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                if self.path == "/metrics":
                    status, text = 200, served.fake.metrics()
                elif self.headers["Authorization"] != f"Bearer {KEY}":
                    status, text = 401, ""
                else:
                    status, text = served.fake.exchange(Ask(self.command, self.path, body))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                return

        return Handler


@pytest.fixture(params=[False, True], ids=["0.3.2", "smg"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(FakeRouter.of(A, B, smg=request.param))
    yield made
    made.server.shutdown()
    made.server.server_close()


def ask(address: RouterAddress, action: str, worker: str = "", seconds: float = 5.0) -> RouterReport:
    return router(RouterRequest(address, action, worker, None, seconds), lambda kind, data: None)


def test_a_worker_is_taken_out_and_had_in_with_the_routers_key(served: Served) -> None:
    looked = ask(served.address, RouterAction.LOOK)
    assert looked.view is not None
    assert (looked.view.healthy, looked.trouble) == (2, None)
    assert looked.view.counters is not None
    out = ask(served.address, RouterAction.REMOVE, A)
    assert out.view is not None
    assert [worker.url for worker in out.view.workers] == [B]
    back = ask(served.address, RouterAction.ADD, A)
    assert back.view is not None
    assert back.view.healthy == 2
    assert [line.partition(" ")[0] for line in served.fake.writes] == ["DELETE", "POST"]
    assert set(served.keys) == {f"Bearer {KEY}"}


def test_httpx_sends_the_same(served: Served) -> None:
    with open_router(served.address) as client:
        assert client.look().healthy == 2
        assert client.worker_of(A) is not None
    assert set(served.keys) == {f"Bearer {KEY}"}


def test_another_key_is_told_and_never_shown(served: Served) -> None:
    told = ask(replace(served.address, key="canary-other"), RouterAction.LOOK)
    assert told.trouble is not None
    assert told.trouble.category == Trouble.UNAUTHORIZED
    assert "canary" not in str(told)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://127.0.0.1:443"])
def test_a_router_that_is_not_there_or_speaks_tls_is_not_reached(url: str) -> None:
    told = ask(RouterAddress("front", url), RouterAction.LOOK)
    assert told.trouble is not None
    assert told.trouble.category == Trouble.UNREACHABLE


def test_counters_that_are_not_there_are_a_remark(served: Served) -> None:
    looked = ask(replace(served.address, metrics="http://127.0.0.1:9/metrics"), RouterAction.LOOK)
    assert looked.view is not None
    assert looked.view.counters is None
    assert "can't be read" in str(looked.view.remark)
