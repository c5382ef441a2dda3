"""How the standings of a server's supervisors travel: small questions over TCP, from each node to that of rank 0.

Every half second each of them tells rank 0 where it stands, and is answered with where everybody does. There is no state in a
connection: one that is lost, on either side, is made again by the next question, and standings only ever go further. A message counts
when it is signed with the orders' token (HMAC-SHA256) and, as an answer, repeats the question's own random number.
"""

import contextlib
import hashlib
import hmac
import json
import os
import socket
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.clock import wait_set
from orchestrator.agent.ranks import Alone, Group, Table, Together

ASK_SECONDS = 0.5
"""Between two questions."""
_ANSWER_SECONDS = 2.0
_BIND_SECONDS = 1.0
_LONGEST = 1 << 16


@contextlib.contextmanager
def joined(
    order: wire.Order, known: Sequence[wire.RankStanding] = (), keep: Callable[[List[wire.RankStanding]], None] = lambda standings: None
) -> Iterator[Group]:
    """The group that the order's node belongs to, joined; left at the end, once the others have heard how this one ended.

    Args:
        known, keep: see :class:`ranks.Table`.
    """
    if order.group is None:
        yield Alone()
        return
    table = Table(order.group.rank, order.group.count, known=known, keep=keep)
    together = Together(table)
    link = RankLink(order.group, order.order_id, table)
    link.open()
    try:
        yield together
    finally:
        together.leave()
        link.close()


class RankLink:
    """Keeps `table` true for as long as it is open, in a thread of its own that ends with the process."""

    def __init__(self, group: wire.RankGroup, order_id: str, table: Table) -> None:
        self._group = group
        self._order_id = order_id
        self._table = table
        self._closed = threading.Event()
        self._over = threading.Event()
        self._asked = threading.Lock()

    def open(self) -> None:
        """Begin to listen, or to ask. That it does not come about is the table's `trouble`, and tried again."""
        threading.Thread(target=self._work, name="ranks", daemon=True).start()

    def close(self) -> None:
        """Say once more where this one stands, and end."""
        self._closed.set()
        if self._group.rank:
            with contextlib.suppress(OSError, ValueError):
                self._ask()
        wait_set(self._over, _ANSWER_SECONDS)

    def _work(self) -> None:
        try:
            if self._group.rank == 0:
                self._listen()
            else:
                self._keep_asking()
        finally:
            self._over.set()

    def _keep_asking(self) -> None:
        while not self._closed.is_set():
            try:
                self._ask()
                self._table.trouble = ""
            except (OSError, ValueError) as error:
                self._table.trouble = f"{self._group.address}:{self._group.port} of rank 0: {error}"
            wait_set(self._closed, ASK_SECONDS)

    def _ask(self) -> None:
        with self._asked, socket.create_connection((self._group.address, self._group.port), _ANSWER_SECONDS) as connection:
            number, own = os.urandom(16).hex(), self._table.own()
            connection.sendall(self._signed({"number": number, "standing": wire.to_json(own)}))
            answer = self._read(connection)
        if answer.get("number") != number:
            raise ValueError("it answered something else than it was asked")
        self._table.told = own
        for plain in answer.get("standings", []):
            standing = wire.from_json(wire.RankStanding, plain)
            if standing.rank == 0:
                self._table.heard(standing)
            else:
                self._table.take(standing)

    def _listen(self) -> None:
        server = self._bound()
        if server is None:
            return
        with server:
            while not self._closed.is_set():
                with contextlib.suppress(OSError, ValueError):
                    self._answer(server)

    def _bound(self) -> Optional[socket.socket]:
        """Where the others are heard, as soon as that can be had; None where it was closed meanwhile."""
        while not self._closed.is_set():
            try:
                server = self._bind()
                self._table.trouble = ""
                return server
            except OSError as error:
                self._table.trouble = f"rank 0 can't listen on {self._group.address}:{self._group.port}: {error}"
                wait_set(self._closed, _BIND_SECONDS)
        return None

    def _bind(self) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(self._group.address, self._group.port, type=socket.SOCK_STREAM)[0]
        server = socket.socket(family, kind, protocol)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen(64)
            server.settimeout(ASK_SECONDS)
        except OSError:
            server.close()
            raise
        return server

    def _answer(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(_ANSWER_SECONDS)
            asked = self._read(connection)
            standing = wire.from_json(wire.RankStanding, asked.get("standing"))
            if not 0 < standing.rank < self._group.count:
                raise ValueError(f"there is no rank {standing.rank} to hear of")
            self._table.heard(standing)
            everybody = [wire.to_json(each) for each in self._table.standings()]
            connection.sendall(self._signed({"number": asked.get("number"), "standings": everybody}))

    def _signed(self, message: Dict[str, Any]) -> bytes:
        text = json.dumps({**message, "order": self._order_id})
        return json.dumps({"text": text, "mac": self._mac(text)}).encode() + b"\n"

    def _read(self, connection: socket.socket) -> Dict[str, Any]:
        """One message.

        Raises:
            ValueError: it is not of this order's supervisors.
            OSError: it did not come.
        """
        with connection.makefile("rb") as stream:
            envelope = json.loads(stream.readline(_LONGEST) or b"{}")
        text, mac = (envelope.get("text"), envelope.get("mac")) if isinstance(envelope, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(mac, str) or not hmac.compare_digest(mac, self._mac(text)):
            raise ValueError("a message that is not signed by a supervisor of this order")
        message = json.loads(text)
        if not isinstance(message, dict) or message.get("order") != self._order_id:
            raise ValueError("a message of another order")
        return message

    def _mac(self, text: str) -> str:
        return hmac.new(self._group.token.encode(), text.encode(), hashlib.sha256).hexdigest()
