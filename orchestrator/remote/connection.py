"""The one strict SSH connection.

What Fabric and paramiko leave open is closed here: the host key is always verified (Fabric never does), only the named keys are
offered, every step has a deadline (paramiko's channel default is an hour), a peer that has silently gone is given up, and
neither ``~/.ssh/config`` nor ``/etc/ssh/ssh_config`` nor Fabric's own configuration files are read: the inventory is the truth.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fabric  # type: ignore[import-untyped]
import paramiko

from orchestrator.errors import ConnectError, ConnectionLostError, OrchestratorError
from orchestrator.remote.authentication import KeyAuthentication
from orchestrator.remote.beside import Beside
from orchestrator.remote.endpoint import Deadlines, Endpoint
from orchestrator.remote.host_keys import KnownKey, known_keys, preferred_algorithms, verify
from orchestrator.remote.liveness import Liveness
from orchestrator.remote.waiting import waiting

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else it prints tracebacks on the operator's screen

ATTEMPTS = 3


class TransientConnectError(ConnectError):
    """No connection, and nothing asked yet: trying again may help."""


@functools.cache
def _no_configuration() -> Any:
    """Fabric's defaults, for all connections: nothing here changes them, and making them takes longer than a key exchange."""
    return fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())


class StrictConnection(fabric.Connection):  # type: ignore[misc]
    """A Fabric connection to an :class:`Endpoint` that is trusted by `known_hosts`, the first file that speaks of it.

    Raises (from :meth:`open` and :meth:`start`):
        ConnectError: network, banner, authentication or a deadline; each with its own words.
        HostKeyError: the host's, or a jump host's, key is unknown, changed or revoked.
        ConnectionLostError: it was open, and is no more.
    """

    # Fabric's Connection takes attributes that its class does not declare for configuration, also one that it sets itself: each new
    # connection would empty and refill the configuration that the others, in their threads, are reading.
    inline_ssh_env: Any = None
    endpoint: Any = None
    known_hosts: Any = ()
    deadlines: Any = None
    liveness: Any = None
    owns_gateway: Any = True

    def __init__(
        self,
        endpoint: Endpoint,
        known_hosts: Sequence[Path],
        deadlines: Deadlines | None = None,
        gateway: StrictConnection | None = None,
    ) -> None:
        """Args:
        gateway: a connection to the endpoint's jump host that others use too, and that is theirs to close; else one of its own.
        """
        deadlines = deadlines or Deadlines()
        own_gateway = StrictConnection(endpoint.jump, known_hosts, deadlines) if endpoint.jump and gateway is None else None
        super().__init__(
            host=endpoint.address,
            user=endpoint.user,
            port=endpoint.port,
            gateway=gateway or own_gateway,
            config=_no_configuration(),
        )
        self.owns_gateway = own_gateway is not None
        self.endpoint = endpoint
        self.known_hosts = tuple(known_hosts)
        self.deadlines = deadlines

    def open(self) -> None:
        """Connect, verify the host key and log in; tried again up to three times while nothing has been asked yet."""
        if self.is_connected:
            return
        try:
            self._open_once()
        except TransientConnectError:
            from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_exponential

            for attempt in Retrying(
                retry=retry_if_exception_type(TransientConnectError),
                stop=stop_after_attempt(ATTEMPTS - 1) | stop_after_delay(self.deadlines.connect),
                wait=wait_exponential(multiplier=0.25),
                reraise=True,
            ):
                with attempt:
                    self._open_once()
        self.liveness = Liveness(self.transport, self.deadlines.interval, self.deadlines.unanswered)

    def _open_once(self) -> None:
        known = known_keys(self.endpoint, self.known_hosts)
        sock = open_socket(self.endpoint, self.gateway, self.deadlines)
        try:
            self._negotiate(sock, known)
        except BaseException:
            self.client.close()
            sock.close()
            raise
        self.transport = self.client.get_transport()

    def _negotiate(self, sock: Any, known: Sequence[KnownKey]) -> None:
        endpoint, deadlines = self.endpoint, self.deadlines
        started = time.monotonic()
        self.client.set_missing_host_key_policy(_VerifyPolicy(endpoint, known))
        told = waiting(f"logging in to {endpoint.label} at {endpoint.where}", deadlines.banner + deadlines.authentication)
        try:
            with told:
                self.client.connect(
                    hostname=endpoint.address,
                    port=endpoint.port,
                    username=endpoint.user,
                    sock=sock,
                    timeout=deadlines.handshake,
                    banner_timeout=deadlines.banner,
                    auth_timeout=deadlines.authentication,
                    channel_timeout=deadlines.channel,
                    transport_factory=_transport_factory(known),
                    auth_strategy=KeyAuthentication(endpoint),
                )
        except OrchestratorError:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise explain_handshake(endpoint, error, deadlines, time.monotonic() - started) from error

    def start(self, command: str) -> paramiko.Channel:
        """Run `command` by the login shell, without a pty, and return its channel. Raises: see the class."""
        self.open()
        try:
            channel: paramiko.Channel = self.transport.open_session(timeout=self.deadlines.channel)
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self.lost(error) if not self.transport.is_active() else _no_channel(self.endpoint, error) from error
        return channel

    def lost(self, error: BaseException | None = None) -> ConnectionLostError:
        """The error that says how the connection ended."""
        endpoint = self.endpoint
        if self.liveness is not None and self.liveness.gave_up:
            what = f"{endpoint.where} gave no sign of life for {self.liveness.unanswered:g} s"
        else:
            what = f"the connection to {endpoint.where} was closed" + (f" ({error})" if error and str(error) else "")
        return ConnectionLostError(
            f"{endpoint.label}: {what}; what was started there goes on there", next_step=f"fab status --host {endpoint.host}"
        )

    def close(self) -> None:
        """End the connection, and those to its jump hosts where nobody else uses them."""
        if self.liveness is not None:
            self.liveness.stop()
        super().close()
        if self.gateway is not None and self.owns_gateway:
            self.gateway.close()


class _VerifyPolicy(paramiko.MissingHostKeyPolicy):
    """Decides on each offered key: paramiko itself is told of no known keys, so that all are judged here."""

    def __init__(self, endpoint: Endpoint, known: Sequence[KnownKey]) -> None:
        self._endpoint = endpoint
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        verify(self._endpoint, key, self._known)


def _transport_factory(known: Sequence[KnownKey]) -> Any:
    def make(sock: Any, **options: Any) -> paramiko.Transport:
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        security.key_types = preferred_algorithms(known, security.key_types)
        # Those that authenticate what they encrypt: else paramiko compares a MAC for each packet, byte by byte in Python.
        security.ciphers = sorted(security.ciphers, key=lambda name: "gcm" not in name)
        return transport

    return make


def open_socket(endpoint: Endpoint, gateway: StrictConnection | None, deadlines: Deadlines) -> Any:
    """A socket, or a channel through `gateway` that serves as one, to the endpoint.

    Raises:
        ConnectError: nobody answers there, or the jump host can't or won't connect to it.
        HostKeyError: the jump host's key is not to be trusted.
    """
    if gateway is None:
        return open_tcp(endpoint, deadlines)
    gateway.open()
    try:
        return gateway.transport.open_channel("direct-tcpip", (endpoint.address, endpoint.port), ("", 0), timeout=deadlines.connect)
    except (paramiko.SSHException, EOFError, OSError) as error:
        jump = gateway.endpoint.host
        raise ConnectError(
            f"{endpoint.label}: jump host {jump} could not reach {endpoint.where}: {said(error)}",
            next_step=f"on {jump}: nc -vz {endpoint.address} {endpoint.port}; its sshd must allow AllowTcpForwarding",
        ) from error


class _PromptSocket(socket.socket):
    """Acknowledges at once what it has received.

    sshd leaves Nagle's algorithm on for a session without a terminal (OpenSSH, channels.c), so between two small messages of its own it
    waits for our kernel's delayed acknowledgement: 40 ms on Linux, for every command. The kernel forgets the option after a while.
    """

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if hasattr(socket, "TCP_QUICKACK"):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def open_tcp(endpoint: Endpoint, deadlines: Deadlines) -> socket.socket:
    """A TCP connection to the endpoint itself.

    Raises:
        ConnectError: the name is unknown, nobody answers, or the port is closed.
    """
    try:
        with waiting(f"connecting to {endpoint.label} at {endpoint.where}", deadlines.connect):
            sock = _connected(endpoint, deadlines)
    except OSError as error:
        raise explain_network(endpoint, error, deadlines) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _PromptSocket(sock.family, sock.type, sock.proto, fileno=sock.detach())


def _connected(endpoint: Endpoint, deadlines: Deadlines) -> socket.socket:
    """A connection to the first of the endpoint's addresses that takes one."""
    failed: OSError | None = None
    for address in _addresses(endpoint, deadlines):
        try:
            return socket.create_connection((address, endpoint.port), timeout=deadlines.connect)
        except OSError as error:
            failed = error
    raise failed or OSError(errno.EADDRNOTAVAIL, "it has no address")


def _addresses(endpoint: Endpoint, deadlines: Deadlines) -> list[str]:
    """What the endpoint's name stands for. The resolver can be neither interrupted nor bounded, so it is asked beside.

    Raises:
        ConnectError: it does not answer.
        OSError: there is no such name.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(endpoint.address)
        return [endpoint.address]
    asked = Beside(lambda: socket.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM))
    try:
        found = asked.result(deadlines.connect)
    except TimeoutError:
        raise ConnectError(
            f"{endpoint.label}: the name {endpoint.address} was not resolved within {deadlines.connect:g} s",
            next_step=f"is the VPN up, and its name server? getent hosts {endpoint.address}; or write an IP address in hosts.yml",
        ) from None
    return [str(sockaddr[0]) for *_, sockaddr in found]


def said(error: BaseException) -> str:
    """An error's words alone: paramiko shows some of its own as a call of their class."""
    if isinstance(error, paramiko.ChannelException):
        return str(error.text).lower()
    return str(error) or type(error).__name__


def explain_network(endpoint: Endpoint, error: OSError, deadlines: Deadlines) -> ConnectError:
    """Why there is no TCP connection."""
    host, where = endpoint.label, endpoint.where
    if isinstance(error, socket.gaierror):
        kind = TransientConnectError if error.errno == socket.EAI_AGAIN else ConnectError
        return kind(
            f"{host}: the name {endpoint.address} can't be resolved: {error.strerror}",
            next_step=f"check address: of {endpoint.declared} in hosts.yml, then: getent hosts {endpoint.address}",
        )
    if isinstance(error, TimeoutError):
        return ConnectError(
            f"{host}: no answer from {where} within {deadlines.connect:g} s",
            next_step=f"is the host up, and the VPN? ping {endpoint.address}; nc -vz {endpoint.address} {endpoint.port}",
        )
    if isinstance(error, ConnectionRefusedError):
        return TransientConnectError(
            f"{host}: {where} refuses connections: the machine answers, but no SSH server listens there",
            next_step=f"check port: of {endpoint.declared} in hosts.yml; on its console: systemctl status ssh",
        )
    return TransientConnectError(
        f"{host}: {where} can't be reached: {error.strerror or error}", next_step=f"ip route get {endpoint.address}"
    )


def explain_handshake(endpoint: Endpoint, error: BaseException, deadlines: Deadlines, waited: float) -> ConnectError:
    """Why there is no SSH session over the TCP connection. `error` is paramiko's, after `waited` seconds."""
    host, where, text = endpoint.label, endpoint.where, str(error)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return ConnectError(
            f"{host}: {where} and this program share no algorithm: its SSH server is too old or too restricted",
            evidence=[text],
            next_step=f"ssh -vv -p {endpoint.port} {endpoint.address} true",
        )
    if ("banner" in text.lower() or "protocol version" in text) and waited >= deadlines.banner:
        return ConnectError(
            f"{host}: {where} accepts connections but showed no SSH banner within {deadlines.banner:g} s: no SSH server, or it hangs",
            next_step=f"nc {endpoint.address} {endpoint.port} must print SSH-2.0-...; its log: journalctl -u ssh",
        )
    if "No existing session" in text:  # paramiko goes on after start_client's timeout
        return ConnectError(
            f"{host}: {where} did not finish the key exchange within {deadlines.handshake:g} s",
            next_step=f"look at its load and at the path to it (MTU): ping -M do -s 1400 {endpoint.address}",
        )
    return TransientConnectError(
        f"{host}: {where} ended the connection before login: not an SSH server, or it turns us away ({text or type(error).__name__})",
        next_step="its log tells why (MaxStartups, a firewall, fail2ban): journalctl -u ssh",
    )


def _no_channel(endpoint: Endpoint, error: BaseException) -> ConnectError:
    return ConnectError(
        f"{endpoint.label}: {endpoint.where} opened no session for a command: {said(error)}",
        next_step="its sshd limits sessions (MaxSessions) or forces a command for this key: look at sshd_config and authorized_keys",
    )
