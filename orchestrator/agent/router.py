"""Asking a router: looking at its workers, taking one out, having one in. Whoever sends the requests is handed in (:data:`Exchange`).

Each wait has a deadline, as the router's own word is only that it has queued a job. A router that is gone for a moment is waited for until
then. What is in its list is in its memory alone, so :meth:`Router.add` looks at it again each time before it says that it waits.
"""

from contextlib import AbstractContextManager
from typing import Callable, List, Optional, Sequence

from orchestrator.agent import router_protocol as protocol
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.router_protocol import Ask, Reply, RouterFailed
from orchestrator.agent.wire_router import RouterAction, RouterReport, RouterRequest, RouterView, Trouble, Worker, plain_url

Exchange = Callable[[Ask], Reply]
"""Sends one request to the router. Bounded. Raises RouterFailed (``unreachable``) where no answer comes."""
ReadMetrics = Callable[[], str]
"""Reads the text of the metrics port; raises like :data:`Exchange`."""

SECONDS = 5.0
"""For one answer."""
POLL = 0.1
_MODEL_SECONDS = 5.0
"""How long a worker may be healthy without its model being known. Registration finds that out first (0.3.2, smg 1.13.0)."""


class Router:
    """One router. `read_metrics` None: its counters are nobody's."""

    def __init__(self, exchange: Exchange, read_metrics: Optional[ReadMetrics] = None) -> None:
        self._exchange = exchange
        self._read_metrics = read_metrics

    def look(self) -> RouterView:
        """What it knows now.

        Raises:
            RouterFailed: it does not answer as a router. Counters that can't be read are told as the view's remark.
        """
        workers = self._workers()
        healthy = protocol.read_healthy(self._exchange(protocol.readiness()))
        if self._read_metrics is None:
            return RouterView(workers, healthy)
        try:
            return RouterView(workers, healthy, protocol.read_counters(self._read_metrics()))
        except RouterFailed as failed:
            return RouterView(workers, healthy, remark=f"its counters can't be read: {failed}")

    def remove(self, url: str, deadline: Deadline) -> None:
        """Take a worker out: no new request goes to it when this returns, and those that run go on. One that is not in is out.

        Raises:
            RouterFailed: it was not out in time, or the router does not answer.
        """
        worker = self._worker_of(url)
        if worker is None:
            return
        if worker.status != "draining":
            protocol.read_removed(self._exchange(protocol.remove_worker(worker.id)))
        out = _Patient(lambda: self._worker_of(url) is None)
        if not wait_until(out, deadline, POLL):
            raise out.trouble or RouterFailed(Trouble.TOO_LATE, f"the router has accepted the removal of {url}, and still has it")

    def add(self, url: str, key: Optional[str], deadline: Deadline) -> Worker:
        """Have a worker in: in the list, healthy, its model known. Where it is that already, nothing is asked for.

        Raises:
            RouterFailed: it was not in time, or the router does not answer, or it can't talk to the worker.
        """
        joining = _Joining(self, url, key)
        joined = _Patient(joining)
        if wait_until(joined, deadline, POLL):
            assert joining.worker is not None, "it has joined"
            return joining.worker
        raise joined.trouble or RouterFailed(Trouble.TOO_LATE, f"the router has accepted {url}, and does not use it: {joining.why}")

    def show(self, worker_id: str) -> Optional[Worker]:
        """The worker of an id, None where the router knows none."""
        return protocol.read_worker(self._exchange(protocol.show_worker(worker_id)))

    def post(self, url: str, key: Optional[str]) -> Optional[str]:
        """Ask for a worker to be added: the id of that, None where it is there."""
        return protocol.read_added(self._exchange(protocol.add_worker(url, key)))

    def worker_of(self, url: str) -> Optional[Worker]:
        """The worker of a url, None where the list has none."""
        return self._worker_of(url)

    def _workers(self) -> List[Worker]:
        return protocol.read_workers(self._exchange(protocol.list_workers()))

    def _worker_of(self, url: str) -> Optional[Worker]:
        wanted = plain_url(url)
        return next((worker for worker in self._workers() if plain_url(worker.url) == wanted), None)


def carry_out(open_router: Callable[[], AbstractContextManager[Router]], request: RouterRequest) -> RouterReport:
    """Do what is asked of a router. What goes wrong with it is part of the answer."""
    try:
        with open_router() as router:
            if request.action == RouterAction.REMOVE:
                router.remove(request.worker, Deadline(request.seconds))
            elif request.action == RouterAction.ADD:
                router.add(request.worker, request.worker_key, Deadline(request.seconds))
            return RouterReport(router.look())
    except RouterFailed as failed:
        return RouterReport(trouble=failed.trouble)


class _Patient:
    """A condition that a router which does not answer for a while does not break."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self.trouble: Optional[RouterFailed] = None
        """Why the last look failed."""

    def __call__(self) -> bool:
        try:
            met = self._condition()
        except RouterFailed as failed:
            if failed.category != Trouble.UNREACHABLE:
                raise
            self.trouble = failed
            return False
        self.trouble = None
        return met


class _Joining:
    """A worker on its way into the list. Whatever the router has forgotten meanwhile is asked of it again."""

    def __init__(self, router: Router, url: str, key: Optional[str]) -> None:
        self._router = router
        self._url = url
        self._key = key
        self._asked: Optional[str] = None
        self._unknown_until: Optional[Deadline] = None
        self.worker: Optional[Worker] = None
        self.why = "it stands in no list"

    def __call__(self) -> bool:
        listed = self._router.worker_of(self._url)
        if listed is not None and listed.status not in ("pending", "draining", "failed"):
            return self._listed(listed)
        if listed is not None and listed.status == "draining":
            self.why = "it is still being removed"
            return False
        return self._pending(self._asked if listed is None else listed.id)

    def _listed(self, worker: Worker) -> bool:
        if not worker.healthy:
            self.why = "it is in the list, and not healthy"
            return False
        if not worker.model_known:
            self._unknown_until = self._unknown_until or Deadline(_MODEL_SECONDS)
            if self._unknown_until.passed:
                message = f"the router takes {self._url} for healthy and does not know what it serves: it has no key that the worker takes"
                raise RouterFailed(Trouble.UNKEYED, message)
            return False
        self.worker = worker
        return worker.serves

    def _pending(self, worker_id: Optional[str]) -> bool:
        known = None if worker_id is None else self._router.show(worker_id)
        if known is None:
            self._asked = self._router.post(self._url, self._key)
            return False
        if known.job_status == "failed" and "already exists" not in (known.job_message or ""):
            raise RouterFailed(Trouble.REFUSED, f"the router gives {self._url} up: {known.job_message or 'it does not say why'}")
        self.why = f"it is {known.status or 'being added'}" + (f": {known.job_message}" if known.job_message else "")
        return False


def not_serving(view: RouterView, workers: Sequence[str]) -> List[str]:
    """Of these workers, those that the router would send nothing to or that could not answer, each with why."""
    broken = {plain_url(url) for url in view.counters.broken} if view.counters is not None else set()
    missing = []
    for url in workers:
        worker = view.worker(url)
        if worker is None:
            missing.append(f"{url} is not in the router's list")
        elif not worker.serves:
            missing.append(f"{url} is {_state_words(worker)}")
        elif plain_url(url) in broken:
            missing.append(f"{url} has failed so often that the router sends it nothing: its circuit breaker is open")
    return missing


def _state_words(worker: Worker) -> str:
    if worker.status not in (None, "ready"):
        return str(worker.status)
    return "in the list, and not healthy" if not worker.healthy else "healthy, and wants a key that the router has not"
