"""Connections that several places share: one login for each, however many go through it.

Many hosts behind one jump host would else log in there as often as there are hosts, and a container that is entered from its host a second
time. An sshd turns such crowds away at random (MaxStartups, 10 at once by default); over one connection it opens up to 10 sessions
(MaxSessions), and forwards any number of connections to others, which are no sessions (sshd_config(5)).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import UnreachableError
from orchestrator.remote.connection import StrictConnection
from orchestrator.remote.endpoint import Deadlines, Endpoint

LOGINS_AT_ONCE = 8
"""At one server: below its MaxStartups, with room for somebody else."""


@dataclass
class _Shared:
    """One login. `users` go through it now; `failure` is why it could not be had."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: StrictConnection | None = None
    users: int = 0
    failure: UnreachableError | None = None


class SharedConnections:
    """Opens each login once and closes it when nobody uses it any more; jump hosts stay open until :meth:`close`.

    Threads may share it. A jump host that can't be reached is tried once, and what it said then is told to all behind it.
    """

    def __init__(self, known_hosts: Sequence[Path], deadlines: Deadlines | None = None) -> None:
        self._known_hosts = tuple(known_hosts)
        self._deadlines = deadlines
        self._lock = threading.Lock()
        self._logins: dict[Endpoint, _Shared] = {}
        self._jumps: dict[Endpoint, _Shared] = {}
        self._rooms: dict[tuple[Endpoint | None, str, int], threading.Semaphore] = {}

    @contextmanager
    def opened(self, endpoint: Endpoint) -> Iterator[StrictConnection]:
        """The open connection to `endpoint`, its own or one that others use too. Raises as :class:`StrictConnection`."""
        with self._lock:
            jump = self._jumps.get(endpoint)
            shared = jump or self._logins.setdefault(endpoint, _Shared())
            shared.users += 1
        try:
            with shared.lock:
                connection = shared.connection = self._usable(endpoint, shared)
            yield connection
        finally:
            self._leave(endpoint, shared)

    def close(self) -> None:
        """End those to jump hosts, the last ones first. Whoever still uses another one closes it."""
        with self._lock:
            jumps = list(reversed(self._jumps.values()))
        for shared in jumps:
            if shared.connection is not None:
                shared.connection.close()

    def _usable(self, endpoint: Endpoint, shared: _Shared) -> StrictConnection:
        if shared.connection is not None and shared.connection.is_connected:
            return shared.connection
        gateway = None if endpoint.jump is None else self._gateway(endpoint.jump)
        connection = StrictConnection(endpoint, self._known_hosts, self._deadlines, gateway)
        with self._room(endpoint):
            connection.open()
        return connection

    def _gateway(self, endpoint: Endpoint) -> StrictConnection:
        with self._lock:
            shared = self._jumps.get(endpoint)
            if shared is None:  # a host's own login serves as well, and stays open from now on
                shared = self._jumps[endpoint] = self._logins.pop(endpoint, _Shared())
        with shared.lock:
            if shared.failure is not None:
                raise _again(shared.failure)
            try:
                shared.connection = self._usable(endpoint, shared)
            except UnreachableError as error:
                shared.failure = error
                raise
        return shared.connection

    def _room(self, endpoint: Endpoint) -> threading.Semaphore:
        with self._lock:
            return self._rooms.setdefault((endpoint.jump, endpoint.address, endpoint.port), threading.Semaphore(LOGINS_AT_ONCE))

    def _leave(self, endpoint: Endpoint, shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            if shared.users or self._jumps.get(endpoint) is shared:
                return
            if self._logins.get(endpoint) is shared:
                del self._logins[endpoint]
            connection = shared.connection
        if connection is not None:
            connection.close()


def _again(error: UnreachableError) -> UnreachableError:
    """The same for somebody else: an exception that two threads raise would get both their tracebacks."""
    return type(error)(error.message, evidence=error.evidence, next_step=error.next_step, see=error.see)
