"""What becomes of the requests on a server that is being stopped, and when it last answered.

After SIGTERM SGLang lets running requests finish without a deadline of its own and takes new ones all the while (0.5.6 to 0.5.23); it
ends at a look, each 5 s, at which it has none.
"""

import contextlib
import time
from pathlib import Path
from threading import Event, Thread
from typing import Callable, Optional

from orchestrator.agent import sglang
from orchestrator.agent.clock import wait_set
from orchestrator.agent.http import Client, HttpError, RefusedError

Load = Callable[[], Optional[int]]
"""Running and queued requests, None when the server does not say; raises RefusedError once nobody listens. Bounded."""

_ANSWER_EVERY = 0.1
_ANSWER_SECONDS = 1.0
_QUICK_PATHS = ("/v1/models", "/model_info", "/get_model_info", "/ping")
"""What answers at once and as long as new requests are taken: the first that a server knows is asked. /health takes 1 s, and is 503
from SIGTERM on.
"""


def nothing_known() -> Optional[int]:
    """The load of a server that does not say."""
    return None


class Requests:
    """The requests on one server, from SIGTERM to its end.

    A request counts as lost when it was aborted or cut off. Requests that came in and were aborted between two looks are not seen,
    so this is the least number.
    """

    def __init__(self, load: Load, abort: Optional[Callable[[], object]] = None) -> None:
        self._load = load
        self._abort = abort
        self._seen: Optional[int] = None
        self._silent = False
        self._lagging = False
        self._closed = False
        self._lost = 0
        self._counted = 0

    @property
    def running(self) -> Optional[int]:
        """Running and queued at the last look; None when the server has never said, or has closed its port."""
        return None if self._closed else self._seen

    @property
    def abortable(self) -> bool:
        return self._abort is not None

    def read(self) -> None:
        """Look. A server that can't be understood for once keeps the number of the last look."""
        try:
            answer = self._load()
        except RefusedError:
            self._closed = True
            # Nobody listened from the first look on: there can have been no request.
            self._seen = 0 if self._seen is None else self._seen
            return
        except Exception:  # noqa: BLE001 - whatever a server that goes down says, a stop that has begun is carried to its end
            answer = None
        self._silent = answer is None
        self._lagging = self._lagging or isinstance(answer, sglang.Lagging)
        if answer is not None:
            self._seen = answer
            self._counted = min(self._counted, answer)

    def abort(self) -> None:
        """Abort what was seen at the last look."""
        if self._abort is None or not self.running:
            return
        self._count(self.running)
        with contextlib.suppress(Exception):
            self._abort()

    def cut_off(self) -> None:
        """Look for the last time: what is there now ends with the server."""
        if self._seen is None:
            return
        self.read()
        if self._silent:
            self._seen = None
        elif not self._closed:
            self._count(self._seen)
            self._seen = 0

    def lost(self, *, finished: Optional[bool]) -> Optional[int]:
        """How many were lost, once the server has ended; None when that is not known.

        Args:
            finished: whether it ended of itself, which it does without requests only; None when nothing tells, and then what the last
                look saw may have finished since.
        """
        if self._seen is None or self._lagging or (self._seen > self._counted and finished is None):
            return None
        if self._seen and not finished:
            self._count(self._seen)
        return self._lost

    def _count(self, seen: int) -> None:
        """Count those that were not aborted before: an abort that did nothing leaves as many as there were."""
        self._lost += seen - self._counted
        self._counted = seen


def load_of(client: Client) -> Optional[int]:
    """The load of the server that `client` asks."""
    return sglang.running_and_queued(client, _ANSWER_SECONDS)


def abort_all(client: Client) -> bool:
    """Abort every request on the server that `client` asks."""
    return sglang.abort_all(client, _ANSWER_SECONDS)


class SaysItIsDone:
    """Whether a server has said since now that it ends and has no request left; a server without a log never does.

    What is new in the log is read whole each time: no more than a stop's few seconds leave there.
    """

    def __init__(self, log: Optional[Path]) -> None:
        self._log = log
        self._from = self._size()

    def __call__(self) -> bool:
        if self._log is None:
            return False
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._from if self._size() >= self._from else 0)  # it was rotated
                return sglang.says_it_is_done(stream.read().decode("utf-8", "replace"))
        except OSError:
            return False

    def _size(self) -> int:
        try:
            return 0 if self._log is None else self._log.stat().st_size
        except OSError:
            return 0


class LastAnswer:
    """Asks a server small questions while it is being stopped, so that the moment of its last good answer is known.

    Args:
        keep: a file for that moment, so that a supervisor that takes the stop over from one that was killed knows it too.
    """

    def __init__(self, client: Client, keep: Optional[Path] = None) -> None:
        self.moment: Optional[float] = read_last_answer(keep)
        """Monotonic, as all of it."""
        self._client = client
        self._keep = keep
        self._paths = list(_QUICK_PATHS)
        self._ended = Event()
        self._thread = Thread(target=self._ask, name="last-answer", daemon=True)

    def _ask(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(HttpError):
                self._take(self._client.get(self._paths[0], _ANSWER_SECONDS).status)
            wait_set(self._ended, _ANSWER_EVERY)

    def _take(self, status: int) -> None:
        # Where another key is wanted than is known here, the refusal is as quick and as good a sign.
        if status in (200, 401, 403):
            self.moment = time.monotonic()
            if self._keep is not None:
                with contextlib.suppress(OSError):
                    self._keep.write_text(repr(self.moment), encoding="ascii")
        elif status in (404, 405) and len(self._paths) > 1:
            del self._paths[0]

    def __enter__(self) -> "LastAnswer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def read_last_answer(keep: Optional[Path]) -> Optional[float]:
    """The moment that a :class:`LastAnswer` has kept; None where there is none."""
    try:
        return None if keep is None else float(keep.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
