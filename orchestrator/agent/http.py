"""A small HTTP client for a server in the same place. No proxy is ever used, no redirect followed, no connection kept.

::

    HttpError
    +-- RefusedError     nobody listens on the port
    +-- TimedOutError    somebody listens, and did not answer in time
    +-- BrokenError      the connection was dropped, or what came back is not HTTP
    +-- StatusError      an answer, with a status that is not 200
"""

import json
import socket
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from orchestrator.agent.clock import Deadline, steady
from orchestrator.agent.codec import record

if TYPE_CHECKING:
    import http.client

_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}  # noqa: S104 - looked up, not bound
_LARGEST_BODY = 64 * 1024 * 1024


class HttpError(Exception):
    """No good answer."""


class RefusedError(HttpError):
    """Nobody listens on the port."""


class TimedOutError(HttpError):
    """Somebody listens, and did not answer in time."""


class BrokenError(HttpError):
    """The connection was dropped, or what came back is not HTTP."""


class StatusError(HttpError):
    """An answer with a status that is not 200. `body` is its beginning."""

    def __init__(self, path: str, status: int, body: str) -> None:
        super().__init__(f"{path}: HTTP {status} {body[:300]}".rstrip())
        self.path = path
        self.status = status
        self.body = body


@record(frozen=True)
class Response:
    """A whole answer, whatever its status."""

    status: int
    body: bytes

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def reachable_address(host: str) -> str:
    """The address under which a server bound to `host` answers in its own place."""
    return _LOOPBACK.get(host.strip("[]"), host.strip("[]"))


def listens(host: str, port: int, timeout: float = 0.5) -> bool:
    """Whether a TCP connection to the port is accepted: cheap, and nothing is asked."""
    try:
        socket.create_connection((reachable_address(host), port), timeout=timeout).close()
    except OSError:
        return False
    return True


class Client:
    """Asks one server. `key` travels as ``Authorization: Bearer``; every call has one deadline for the whole exchange."""

    def __init__(self, port: int, host: str = "127.0.0.1", key: Optional[str] = None) -> None:
        self.port = port
        self.address = reachable_address(host)
        self._key = key

    def headers(self) -> Dict[str, str]:
        """Headers of every request, the key among them."""
        headers = {"Accept": "*/*", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def get(self, path: str, timeout: float = 5.0) -> Response:
        """GET `path`.

        Raises:
            RefusedError, TimedOutError, BrokenError: there was no answer. A status that is not 200 is an answer.
        """
        return self._ask("GET", path, None, timeout)

    def post(self, path: str, body: Any, timeout: float = 30.0) -> Response:
        """POST `body` as JSON; raises like :meth:`get`."""
        return self._ask("POST", path, json.dumps(body).encode("utf-8"), timeout)

    def get_json(self, path: str, timeout: float = 5.0) -> Any:
        """The JSON under `path`; raises like :meth:`get`, and :class:`StatusError`."""
        return _json(path, self.get(path, timeout))

    def post_json(self, path: str, body: Any, timeout: float = 30.0) -> Any:
        """The JSON answer to `body`; raises like :meth:`get`, and :class:`StatusError`."""
        return _json(path, self.post(path, body, timeout))

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 5.0) -> Response:
        """`method` on `path`, with `body` as JSON where there is one; raises like :meth:`get`."""
        return self._ask(method, path, None if body is None else json.dumps(body).encode("utf-8"), timeout)

    def _ask(self, method: str, path: str, body: Optional[bytes], timeout: float) -> Response:
        before = len(steady.gaps())
        try:
            return self._ask_once(method, path, body, timeout)
        except TimedOutError:
            steady.now()
            if len(steady.gaps()) == before:
                raise
            # This place stood still meanwhile, and the kernel's timers did not: that says nothing of the server.
            return self._ask_once(method, path, body, timeout)

    def _ask_once(self, method: str, path: str, body: Optional[bytes], timeout: float) -> Response:
        import http.client  # with email and ssl half of what a look at a place costs where nothing is asked

        deadline = Deadline(timeout)
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        headers = self.headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            # Kept aside: http.client lets go of its socket once the answer's headers say "close".
            stream = connection.sock
            connection.request(method, path, body=body, headers=headers)
            _limit(stream, deadline)
            response = connection.getresponse()
            return Response(response.status, _read(stream, response, deadline))
        except ConnectionRefusedError as error:
            raise RefusedError(f"nobody listens on {self.address} port {self.port}") from error
        except socket.timeout as error:  # noqa: UP041 - before Python 3.10 it is not yet TimeoutError
            raise TimedOutError(f"{path}: no answer within {timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise BrokenError(f"{path}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _limit(stream: socket.socket, deadline: Deadline) -> None:
    if deadline.passed:
        raise socket.timeout("deadline")  # noqa: UP041 - see above
    stream.settimeout(deadline.left())


def _read(stream: socket.socket, response: "http.client.HTTPResponse", deadline: Deadline) -> bytes:
    import http.client

    pieces: List[bytes] = []
    size = 0
    while not response.isclosed():
        _limit(stream, deadline)
        piece = response.read1(65536)
        if not piece:
            break
        size += len(piece)
        if size > _LARGEST_BODY:
            raise http.client.HTTPException(f"the answer is larger than {_LARGEST_BODY} bytes")
        pieces.append(piece)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _json(path: str, response: Response) -> Any:
    if response.status != 200:
        raise StatusError(path, response.status, response.text()[:2000])
    try:
        return json.loads(response.body)
    except ValueError as error:
        raise BrokenError(f"{path}: not JSON: {error}") from error
