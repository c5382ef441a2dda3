"""Each way in which there is no connection has its own words and next step, and only some are tried again."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
import time

import fabric  # type: ignore[import-untyped]
import paramiko
import pytest

from orchestrator.errors import ConnectError
from orchestrator.remote.connection import StrictConnection, TransientConnectError, explain_handshake, explain_network, open_tcp, said
from orchestrator.remote.endpoint import Deadlines, Endpoint

ENDPOINT = Endpoint("gpu1", "gpu1.example", "root")
DEADLINES = Deadlines()


@pytest.mark.parametrize(
    ("error", "message", "next_step", "transient"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "can't be resolved: Name or", "getent hosts gpu1.example", False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "can't be resolved: Temp", "getent hosts", True),
        (TimeoutError("timed out"), "no answer from gpu1.example:22 within 10 s", "nc -vz gpu1.example 22", False),
        (ConnectionRefusedError(111, "Connection refused"), "refuses connections", "systemctl status ssh", True),
        (OSError(113, "No route to host"), "can't be reached: No route to host", "ip route get gpu1.example", True),
    ],
)
def test_network(error: OSError, message: str, next_step: str, transient: bool) -> None:
    explained = explain_network(ENDPOINT, error, DEADLINES)

    assert explained.message.startswith("gpu1: ")
    assert message in explained.message
    assert next_step in (explained.next_step or "")
    assert isinstance(explained, TransientConnectError) is transient


@pytest.mark.parametrize(
    ("error", "waited", "message", "transient"),
    [
        (paramiko.SSHException("Error reading SSH protocol banner"), 10.1, "showed no SSH banner within 10 s", False),
        (paramiko.SSHException("Error reading SSH protocol banner"), 0.1, "ended the connection before login", True),
        (paramiko.ssh_exception.IncompatiblePeer("Incompatible ssh peer (no acceptable kex algorithm)"), 0.1, "share no algorithm", False),
        (paramiko.SSHException("No existing session"), 15.1, "did not finish the key exchange within 15 s", False),
        (EOFError(), 0.1, "ended the connection before login: not an SSH server, or it turns us away (EOFError)", True),
        (ConnectionResetError(104, "Connection reset by peer"), 0.1, "Connection reset by peer", True),
    ],
)
def test_handshake(error: BaseException, waited: float, message: str, transient: bool) -> None:
    explained = explain_handshake(ENDPOINT, error, DEADLINES, waited)

    assert message in explained.message
    assert explained.next_step
    assert isinstance(explained, TransientConnectError) is transient


def test_an_unresolvable_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*args: object, **options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    with pytest.raises(ConnectError, match=r"the name gpu1\.example can't be resolved"):
        open_tcp(ENDPOINT, DEADLINES)


def test_a_container_that_refuses_is_named_not_its_host() -> None:
    endpoint = Endpoint("gpu1", "192.0.2.2", "root", place="gpu1/sglang")

    explained = explain_network(endpoint, ConnectionRefusedError(111, "Connection refused"), DEADLINES)

    assert explained.message.startswith("gpu1/sglang: 192.0.2.2:22 refuses")
    assert "check port: of gpu1's container in hosts.yml" in (explained.next_step or "")


def test_paramikos_errors_are_shown_in_words() -> None:
    assert said(paramiko.ChannelException(2, "Connect failed")) == "connect failed"
    assert said(EOFError()) == "EOFError"


def test_a_resolver_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait(30.0))

    with pytest.raises(ConnectError, match=r"the name gpu1\.example was not resolved within 0\.3 s") as caught:
        open_tcp(ENDPOINT, dataclasses.replace(DEADLINES, connect=0.3))

    answers.set()
    assert "getent hosts gpu1.example" in (caught.value.next_step or "")


def test_ctrl_c_does_not_wait_for_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), threading.Event()

    def resolve(*_: object, **__: object) -> object:
        asked.set()
        return answers.wait(30.0)

    def press() -> None:
        asked.wait(10.0)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    presses = threading.Thread(target=press)
    presses.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        open_tcp(ENDPOINT, DEADLINES)
    answers.set()
    presses.join()
    assert time.monotonic() - begun < 1.0


def test_the_second_address_is_tried_where_the_first_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def connect(address: tuple[str, int], timeout: float) -> object:
        tried.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 22)) for address in ("192.0.2.1", "192.0.2.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ConnectError, match="refuses connections"):
        open_tcp(ENDPOINT, DEADLINES)
    assert tried == [("192.0.2.1", 22), ("192.0.2.2", 22)]


def test_a_connection_leaves_what_all_share_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    StrictConnection(ENDPOINT, [])
    merged: list[fabric.Config] = []
    monkeypatch.setattr(fabric.Config, "merge", merged.append)
    StrictConnection(ENDPOINT, []).close()

    assert merged == []
