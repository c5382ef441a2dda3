"""What is sent to an SGLang router and how its answers read, for sglang-router 0.3.2 and smg 1.13.0. Pure.

Seen on both (tests/data/router holds their answers): a 202 says that a job was queued and nothing of the worker; a worker is named by an
id that its router made, so it is looked up by its url; one that is being added is told under its id and stands in no list (0.3.2) or is
``pending`` (smg); one that is being removed is gone at once (0.3.2) or ``draining`` for 5 s (smg). The url of a worker that is there may
be added again: 0.3.2 answers 202 with the same id and fails the job, smg answers 409.
"""

import json
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from orchestrator.agent.wire_router import Counters, RouterTrouble, Trouble, Worker

WORKERS = "/workers"
READINESS = "/readiness"

_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OPEN = 1
"""Of a circuit breaker; 0 is closed, 2 half-open, -1 that of a worker which was removed."""
_FOR_WANT_OF_A_WORKER = ("no_available_workers", "model_not_found", "no_workers")


class RouterFailed(Exception):  # noqa: N818
    """A router did not do what was asked of it."""

    def __init__(self, category: str, message: str, evidence: Optional[List[str]] = None) -> None:
        super().__init__(message)
        self.trouble = RouterTrouble(category, message, evidence or [])

    @property
    def category(self) -> str:
        return self.trouble.category


class Ask(NamedTuple):
    """One request. `body` is sent as JSON."""

    method: str
    path: str
    body: Optional[Dict[str, Any]] = None

    @property
    def reads(self) -> bool:
        """Whether it changes nothing, so that it may be sent again."""
        return self.method == "GET"


class Reply(NamedTuple):
    """A whole answer, whatever its status."""

    status: int
    text: str


def list_workers() -> Ask:
    return Ask("GET", WORKERS)


def show_worker(worker_id: str) -> Ask:
    return Ask("GET", f"{WORKERS}/{worker_id}")


def remove_worker(worker_id: str) -> Ask:
    return Ask("DELETE", f"{WORKERS}/{worker_id}")


def add_worker(url: str, key: Optional[str]) -> Ask:
    """The key has to come with the worker: the router does not pass its own on."""
    return Ask("POST", WORKERS, {"url": url, "api_key": key} if key else {"url": url})


def readiness() -> Ask:
    return Ask("GET", READINESS)


def read_workers(reply: Reply) -> List[Worker]:
    """The list of GET /workers.

    Raises:
        RouterFailed: it is none.
    """
    body = _body(reply, WORKERS)
    listed = body.get("workers")
    if not isinstance(listed, list):
        raise _not_understood(WORKERS, reply)
    return [_worker(item, reply) for item in listed]


def read_worker(reply: Reply) -> Optional[Worker]:
    """The worker of GET /workers/ID; None where there is none of that id, any more or after a restart of the router.

    Raises:
        RouterFailed: it can't be understood.
    """
    if reply.status == 404 and _code(reply) == "WORKER_NOT_FOUND":
        return None
    return _worker(_body(reply, WORKERS), reply)


def read_removed(reply: Reply) -> None:
    """The answer to DELETE /workers/ID: the removal is queued, or there is no such worker.

    Raises:
        RouterFailed: neither.
    """
    if reply.status == 404 and _code(reply) == "WORKER_NOT_FOUND":
        return
    _body(reply, WORKERS, 202)


def read_added(reply: Reply) -> Optional[str]:
    """The id of POST /workers under which its job can be asked for; None where the worker is there already (smg: 409).

    Raises:
        RouterFailed: it was not accepted.
    """
    if reply.status == 409 and _code(reply) == "WORKER_ALREADY_EXISTS":
        return None
    worker_id = _body(reply, WORKERS, 202).get("worker_id")
    if not isinstance(worker_id, str):
        raise _not_understood(WORKERS, reply)
    return worker_id


def read_healthy(reply: Reply) -> int:
    """How many workers are healthy, by GET /readiness: 503 where none is.

    Raises:
        RouterFailed: it does not say.
    """
    if reply.status == 503:
        return 0
    healthy = _body(reply, READINESS).get("healthy_workers")
    if not isinstance(healthy, int):
        raise _not_understood(READINESS, reply)
    return healthy


def read_counters(text: str) -> Counters:
    """The counters of the metrics port.

    smg forgets a worker's own when it is removed; 0.3.2 goes on counting where it was.
    """
    total: Dict[str, int] = dict.fromkeys(("requests", "answered", "failed", "retries", "exhausted", "upstream_errors"), 0)
    by_worker: Dict[str, int] = {}
    broken: List[str] = []
    for name, labels, value in _samples(text):
        status, code = labels.get("status_code", ""), labels.get("error_code", "")
        if name == "smg_router_requests_total":
            total["requests"] += value
        elif name == "smg_worker_retries_total":
            total["retries"] += value
        elif name == "smg_worker_retries_exhausted_total":
            total["exhausted"] += value
        elif name == "smg_router_upstream_responses_total":
            total["answered"] += value if status.startswith("2") else 0
            total["upstream_errors"] += value if status.startswith("5") else 0
        elif name == "smg_http_responses_total":
            # Its own /readiness is 503 too, and has no code.
            total["failed"] += value if (code and status.startswith("5")) or code in _FOR_WANT_OF_A_WORKER else 0
        elif name == "smg_worker_cb_outcomes_total" and labels.get("outcome") == "success":
            by_worker[labels.get("worker", "")] = value
        elif name == "smg_worker_cb_state" and value == _OPEN:
            broken.append(labels.get("worker", ""))
    return Counters(by_worker=by_worker, broken=broken, **total)


def _samples(text: str) -> Iterator[Tuple[str, Dict[str, str], int]]:
    for name, labels, value in _SAMPLE.findall(text):
        yield name, dict(_LABEL.findall(labels)), round(float(value))


def _body(reply: Reply, path: str, status: int = 200) -> Dict[str, Any]:
    if reply.status == 401:
        raise RouterFailed(Trouble.UNAUTHORIZED, "the router wants another key: it answers 401")
    body = _object(reply)
    if reply.status == status and body is not None:
        return body
    if 400 <= reply.status < 500 and body is not None and "code" in body:
        raise RouterFailed(Trouble.REFUSED, f"the router refuses: {str(body.get('error', reply.text))[:300]}")
    raise _not_understood(path, reply)


def _object(reply: Reply) -> Optional[Dict[str, Any]]:
    try:
        body = json.loads(reply.text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _code(reply: Reply) -> Optional[str]:
    body = _object(reply)
    code = None if body is None else body.get("code")
    return code if isinstance(code, str) else None


def _not_understood(path: str, reply: Reply) -> RouterFailed:
    message = f"what answers there is no router that this program knows: {path} gives HTTP {reply.status}"
    return RouterFailed(Trouble.NOT_UNDERSTOOD, message, [reply.text[:300]] if reply.text else [])


def _worker(data: Any, reply: Reply) -> Worker:
    if not isinstance(data, dict) or not isinstance(data.get("id"), str) or not isinstance(data.get("url"), str):
        raise _not_understood(WORKERS, reply)
    job = data.get("job_status")
    job = job if isinstance(job, dict) else {}
    load = data.get("load")
    return Worker(
        id=data["id"],
        url=data["url"],
        model_id=_text(data.get("model_id")),
        healthy=data.get("is_healthy") is True,
        load=load if isinstance(load, int) else 0,
        status=_text(data.get("status")),
        job_status=_text(job.get("status")),
        job_message=_text(job.get("message")),
    )


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None
