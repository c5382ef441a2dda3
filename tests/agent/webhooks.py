"""Webhooks of every temper, on loopback: one that answers, that refuses, that is silent, that drips, and with a certificate of its own."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Webhook:
    """A listening webhook, and what it was told. `connections` were accepted."""

    port: int
    scheme: str = "http"
    bodies: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    connections: int = 0
    times: list[float] = field(default_factory=list)
    """When each of them was, by the monotonic clock."""
    path: str = "/services/T0/B0/canary-hook-41x"
    statuses: list[int] = field(default_factory=list)
    """Answers to the first requests; the rest get a 200."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{self.path}"

    @property
    def texts(self) -> list[str]:
        return [body["text"] for body in self.bodies]


@contextmanager
def answering(*statuses: int, said: str = "no_text", context: ssl.SSLContext | None = None) -> Iterator[Webhook]:
    """A webhook that takes what it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            webhook.connections += 1
            webhook.times.append(time.monotonic())
            webhook.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            webhook.paths.append(self.path)
            status = webhook.statuses.pop(0) if webhook.statuses else 200
            body = b"ok" if status == 200 else said.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that left early."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    webhook = Webhook(server.server_address[1], "http" if context is None else "https", statuses=list(statuses))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield webhook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def stubborn(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[Webhook]:
    """A webhook that accepts, reads nothing and does what `answer` says with each connection until the block ends."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    webhook = Webhook(listener.getsockname()[1])
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            answer(connection, over)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            webhook.connections += 1
            webhook.times.append(time.monotonic())
            threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield webhook
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [accepting, *threads]:
            thread.join(10)


def silent(connection: socket.socket, over: threading.Event) -> None:
    """Accepts and never answers."""
    over.wait(60)


def dripping(connection: socket.socket, over: threading.Event) -> None:
    """A byte of an answer's headers ten times a second, for ever."""
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        end = time.monotonic() + 60
        while not over.wait(0.1) and time.monotonic() < end:
            connection.sendall(b"x")
    except OSError:
        return


def hanging_up(connection: socket.socket, over: threading.Event) -> None:
    """Reads the request and closes without a word."""
    connection.recv(65536)


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that nobody knows, and a server's context with it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook.test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context
