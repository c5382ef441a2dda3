"""Fetch the host keys that an endpoint offers, for a person to compare before :func:`~.host_keys.pin` writes them down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko

from orchestrator.remote.connection import StrictConnection, explain_handshake, open_socket
from orchestrator.remote.endpoint import Deadlines, Endpoint
from orchestrator.remote.host_keys import KEY_TYPES, SIGNATURES


def fetch_host_keys(endpoint: Endpoint, known_hosts: Sequence[Path], deadlines: Deadlines | None = None) -> list[paramiko.PKey]:
    """The endpoint's host keys, one of each type that it has, unverified: show them with :func:`~.host_keys.describe_key`.

    Jump hosts on the way are connected to in earnest, so they are verified against `known_hosts`.

    Raises:
        ConnectError: the endpoint can't be reached.
        HostKeyError: a jump host's key is not to be trusted.
    """
    deadlines = deadlines or Deadlines()
    gateway = StrictConnection(endpoint.jump, known_hosts, deadlines) if endpoint.jump else None
    try:
        offered = [_fetch(endpoint, kind, gateway, deadlines) for kind in KEY_TYPES]
    finally:
        if gateway is not None:
            gateway.close()
    return [key for key in offered if key is not None]


def _fetch(endpoint: Endpoint, kind: str, gateway: StrictConnection | None, deadlines: Deadlines) -> paramiko.PKey | None:
    with _transport(open_socket(endpoint, gateway, deadlines)) as transport:
        transport.banner_timeout = deadlines.banner
        security = transport.get_security_options()
        security.key_types = [name for name in SIGNATURES.get(kind, (kind,)) if name in security.key_types]
        started = time.monotonic()
        try:
            transport.start_client(timeout=deadlines.handshake)
            return transport.get_remote_server_key()
        except paramiko.ssh_exception.IncompatiblePeer:
            return None  # it has no key of this type
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise explain_handshake(endpoint, error, deadlines, time.monotonic() - started) from error


@contextmanager
def _transport(sock: Any) -> Iterator[paramiko.Transport]:
    transport = paramiko.Transport(sock)
    try:
        yield transport
    finally:
        transport.close()
        sock.close()
