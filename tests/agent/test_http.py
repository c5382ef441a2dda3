"""The HTTP client against small servers on loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.agent import http, sglang
from orchestrator.agent.http import Client
from tests.agent.serving import free_port
from tests.agent.standin_sglang import StandIn, stand_in


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in() as started:
        yield started


@pytest.fixture
def raw() -> Iterator[tuple[int, list[bytes]]]:
    """A listener that answers each connection with the bytes it is given, and closes it; b"" means: never answer."""
    answers: list[bytes] = []
    held: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            if answers and answers[0]:
                connection.recv(65536)
                connection.sendall(answers[0])
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1], answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for connection in held:
        connection.close()


def test_an_answer_with_a_length_is_read_to_its_end_at_once(server: StandIn) -> None:
    server.info["filler"] = "x" * 500_000
    begun = time.monotonic()

    info = Client(server.port).get_json("/server_info", 10.0)

    assert len(info["filler"]) == 500_000
    assert time.monotonic() - begun < 2.0


def test_a_status_is_an_answer(server: StandIn) -> None:
    assert Client(server.port).get("/nope").status == 404
    with pytest.raises(http.StatusError) as caught:
        Client(server.port).get_json("/nope")
    assert (caught.value.status, "Not Found" in caught.value.body) == (404, True)


def test_the_key_is_sent(server: StandIn) -> None:
    server.key = "k-1"

    assert Client(server.port, key="k-1").get("/server_info").status == 200
    assert Client(server.port).get("/server_info").status == 401
    assert Client(server.port, key="other").post("/generate", {}).status == 401


def test_no_proxy_is_used(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    assert Client(server.port).get("/ready").status == 200


def test_refused() -> None:
    port = free_port()

    assert not http.listens("127.0.0.1", port)
    with pytest.raises(http.RefusedError):
        Client(port).get("/health")


def test_a_silent_listener_is_a_timeout(raw: tuple[int, list[bytes]]) -> None:
    assert http.listens("0.0.0.0", raw[0])
    with pytest.raises(http.TimedOutError):
        Client(raw[0]).get("/health", 0.2)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"])
def test_what_is_no_whole_answer_is_broken(raw: tuple[int, list[bytes]], answer: bytes) -> None:
    raw[1].append(answer)

    with pytest.raises(http.BrokenError):
        Client(raw[0]).get("/health", 2.0)


def test_a_deadline_holds_for_a_body_that_drips(server: StandIn) -> None:
    """Each byte comes soon after the last one; all of them would take 10 s."""
    server.token_seconds = 0.02
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 500}}
    begun = time.monotonic()

    with pytest.raises(http.TimedOutError):
        Client(server.port).post("/generate", body, 0.3)

    assert time.monotonic() - begun < 1.5


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("[::]", "::1"), ("", "127.0.0.1"), ("10.0.0.5", "10.0.0.5"), ("127.0.0.1", "127.0.0.1")],
)
def test_where_a_server_answers(host: str, address: str) -> None:
    assert http.reachable_address(host) == address


@pytest.mark.slow
def test_health_of_each_kind(server: StandIn, raw: tuple[int, list[bytes]]) -> None:
    client = Client(server.port)
    assert sglang.health(client) == "serving"
    server.health_status = 503
    assert sglang.health(client) == "starting"
    server.health_seconds = 0.8
    assert sglang.health(client) == "unhealthy"
    assert sglang.health(client, 0.2) == "unhealthy"
    assert sglang.health(Client(raw[0]), 0.2) == "silent"
    assert sglang.health(Client(free_port())) == "down"


def test_admission_with_and_without_the_ready_endpoint(server: StandIn) -> None:
    client = Client(server.port)
    assert sglang.admits_requests(client) is True
    server.ready_status = 503
    assert sglang.admits_requests(client) is False
    server.ready_status = 404
    assert sglang.admits_requests(client) is None
    server.health_seconds = 1.0
    assert not sglang.warms_up(client)
    server.health_seconds, server.health_status = 0.0, 503
    assert sglang.warms_up(client)
