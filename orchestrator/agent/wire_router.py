"""What crosses about an SGLang router: where it is, what it knows of its workers, and what is asked of it.

The router is sglang-router (0.3.2) or smg (1.13.0), its successor under another name. Both have the same endpoints for workers and the
same counters.
"""

from typing import Dict, List, Optional

from orchestrator.agent.codec import field, record


@record(frozen=True)
class RouterAddress:
    """Where a router is. `metrics` is the url of its counters (``http://127.0.0.1:29000/metrics``), None where nobody reads them.

    `key` is its ``--api-key``: a secret.
    """

    name: str
    url: str
    metrics: Optional[str] = None
    key: Optional[str] = None


@record(frozen=True)
class Worker:
    """A worker as its router tells it. `id` is another one after each addition, and after a restart of the router.

    `load` counts under some policies only (0.3.2: cache_aware), so it is nothing to wait for. `status` is smg's alone: pending, ready,
    not_ready, failed, draining.
    """

    id: str
    url: str
    model_id: Optional[str] = None
    healthy: bool = False
    load: int = 0
    status: Optional[str] = None
    job_status: Optional[str] = None
    job_message: Optional[str] = None

    @property
    def model_known(self) -> bool:
        """Whether the router has heard from the worker what it serves. A worker that wants a key and was added without is taken by 0.3.2
        as healthy, its model unknown; each of its clients gets 401."""
        return self.model_id not in (None, "", "unknown")

    @property
    def serves(self) -> bool:
        """Whether it gets requests and can answer them."""
        return self.healthy and self.model_known and self.status in (None, "ready")


@record(frozen=True)
class Counters:
    """The router's counters since its start.

    Attributes:
        requests: that clients have sent for generation.
        answered: of workers' answers to those, the ones with status 2xx.
        failed: answers to clients with a status of 5xx, or for want of a worker.
        retries: attempts that were made again.
        exhausted: requests of which the last attempt failed too.
        upstream_errors: attempts that ended with 5xx, or with no connection.
        by_worker: successes by the worker's url.
        broken: urls of workers whose circuit breaker is open: nothing is sent to them, though they look healthy.
    """

    requests: int = 0
    answered: int = 0
    failed: int = 0
    retries: int = 0
    exhausted: int = 0
    upstream_errors: int = 0
    by_worker: Dict[str, int] = field(default_factory=dict)
    broken: List[str] = field(default_factory=list)


@record(frozen=True)
class RouterSettings:
    """What of a router's flags decides what becomes of a request while no worker serves; the defaults are the router's own.

    Attributes:
        attempts: ``--retry-max-retries``: in all, the first included.
        first, multiplier, longest: seconds before the second attempt, how much longer each wait is than the one before, and at most.
        jitter: the share by which a wait is longer or shorter, at random.
        breaker_failures: after so many in a row a worker's circuit breaker opens; None: never.
        breaker_seconds: for how long it is open.
        check_every, check_failures, check_successes: of its health checks: seconds from one to the next, after how many it takes a
            worker for unhealthy (None: it makes none), and for healthy again.
        source: where they were read, in words.
    """

    attempts: int = 5
    first: float = 0.05
    multiplier: float = 1.5
    longest: float = 30.0
    jitter: float = 0.2
    breaker_failures: Optional[int] = 10
    breaker_seconds: float = 60.0
    check_every: float = 60.0
    check_failures: Optional[int] = 3
    check_successes: int = 2
    source: str = ""


@record(frozen=True)
class RouterView:
    """What a router says of itself. ``/readiness`` is 200 with one healthy worker: the number counts.

    `healthy` is 0 where it says that it is not ready. `counters` is None where they were not asked for or can't be had; `remark` says why.
    """

    workers: List[Worker]
    healthy: int
    counters: Optional[Counters] = None
    remark: Optional[str] = None

    def worker(self, url: str) -> Optional[Worker]:
        """The worker of that url, None where the router has none."""
        wanted = plain_url(url)
        return next((worker for worker in self.workers if plain_url(worker.url) == wanted), None)


def plain_url(url: str) -> str:
    """The url in the one form in which two of them are compared."""
    scheme, colon, rest = url.strip().partition("://")
    if not colon:
        scheme, rest = "http", url.strip()
    place, _, path = rest.partition("/")
    path = path.rstrip("/")
    return f"{scheme.lower()}://{place.lower()}{'/' + path if path else ''}"


class Trouble:
    """The classes of what goes wrong with a router."""

    UNREACHABLE = "unreachable"
    """It does not answer, or not in time."""
    UNAUTHORIZED = "unauthorized"
    """It wants another key."""
    NOT_UNDERSTOOD = "not_understood"
    """What answers there is no router that this program knows."""
    REFUSED = "refused"
    """It won't do it."""
    TOO_LATE = "too_late"
    """It has accepted it, and not done it in time."""
    UNKEYED = "unkeyed"
    """It has a worker, and no key that the worker takes."""
    RESTARTED = "restarted"
    """It has lost workers that nobody has removed: its list is in its memory alone."""
    TOO_FEW = "too_few"
    """Too few of its other workers serve."""


@record(frozen=True)
class RouterTrouble:
    """What went wrong with a router. `category` is a value of :class:`Trouble`."""

    category: str
    message: str
    evidence: List[str] = field(default_factory=list)


class RouterAction:
    """The values of :attr:`RouterRequest.action`."""

    LOOK = "look"
    REMOVE = "remove"
    """No new request after it; running ones go on to their end."""
    ADD = "add"
    """Have it in the list, healthy, its model known; nothing is done where it is."""


@record(frozen=True)
class RouterRequest:
    """Something to be asked of a router from a place that reaches it. `worker` is the url under which the router knows the worker, and
    `worker_key` the key that the worker asks for. `seconds` bounds all of it.
    """

    router: RouterAddress
    action: str
    worker: str = ""
    worker_key: Optional[str] = None
    seconds: float = 30.0


@record(frozen=True)
class RouterReport:
    """The answer: one of a view, as it is when all was done, and what went wrong. `settings` come with a look, where the router's process
    can be seen from there."""

    view: Optional[RouterView] = None
    trouble: Optional[RouterTrouble] = None
    settings: Optional[RouterSettings] = None


@record(frozen=True)
class RouterSeat:
    """A server's place behind a router, for an order whose supervisor takes it out and has it in. Holds the router's key.

    `worker` is the url by which the router calls it; `others` are those that must serve while it is out. `drain` bounds the wait for its
    requests to end, `join` that for the router to use it again, seconds.
    """

    router: RouterAddress
    worker: str
    others: List[str]
    drain: float
    join: float


@record(frozen=True)
class QuietRequest:
    """Waits until a service's server has no request, for `seconds` at most. `port` is the service's."""

    service: str
    state_root: str
    port: int
    seconds: float


@record(frozen=True)
class QuietReport:
    """`load` is what was running or queued at the last look, None where the server does not say."""

    quiet: bool
    load: Optional[int]
    waited: float


class RollLockAction:
    """The values of :attr:`RollLockRequest.action`."""

    STATUS = "status"
    TAKE = "take"
    RELEASE = "release"


@record(frozen=True)
class RollLock:
    """Who rolls the replicas of a router, or did when that was cut off.

    `roll` is its run folder's name on the operator's side, `token` what tells it from another of that name. `operator` is ``user@host``,
    `since` Unix time.
    """

    router: str
    roll: str
    token: str
    operator: str
    since: float


@record(frozen=True)
class RollLockRequest:
    """Look at the lock of the roll behind a router, take it for `roll`, or release the one of `token`.

    `service` is the replica that it lies with. `instead_of` is the token of a lock that is given up for it.
    """

    service: str
    state_root: str
    action: str = RollLockAction.STATUS
    router: str = ""
    roll: str = ""
    token: str = ""
    operator: str = ""
    instead_of: Optional[str] = None


@record(frozen=True)
class RollLockStatus:
    """`held` is the lock that stands now, `released` one that this has ended."""

    held: Optional[RollLock] = None
    released: Optional[RollLock] = None
