"""A router in memory that answers as the real ones did (tests/data/router): ids of its own, jobs in the background, a list that a restart
forgets.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from orchestrator.agent.router import Router
from orchestrator.agent.router_protocol import Ask, Reply, RouterFailed
from orchestrator.agent.wire_router import Trouble


@dataclass
class Seat:
    """A worker in it. `pending` and `draining` are the looks at it that it stays so."""

    id: str
    url: str
    key: str | None = None
    pending: int = 0
    draining: int | None = None


@dataclass
class FakeRouter:
    """The router.

    Attributes:
        smg: it answers as smg does, else as sglang-router 0.3.2.
        serving: what the workers serve by url; a url that is missing is of a server that is down, and never comes in.
        keys: the keys that workers ask for.
        sick: workers that are in the list and not healthy.
        pends, drains: looks that an addition and (smg) a removal take.
        down: requests that find nobody before it answers again.
        known: the urls of its command line, all that a restart leaves.
        traffic: requests that arrive with each reading of the counters, one worker after the other.
    """

    smg: bool = False
    serving: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    sick: set[str] = field(default_factory=set)
    pends: int = 1
    drains: int = 2
    down: int = 0
    key: str | None = None
    known: tuple[str, ...] = ()
    traffic: int = 1
    asked: list[Ask] = field(default_factory=list)
    seats: dict[str, Seat] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    exhausted: int = 0
    failed: int = 0
    on_ask: Callable[[Ask], None] = lambda ask: None
    _turn: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))

    @classmethod
    def of(cls, *urls: str, **settings: Any) -> FakeRouter:
        """One that has these workers, all of them serving."""
        made = cls(serving=dict.fromkeys(urls, "m"), known=urls, **settings)
        made.restart()
        return made

    @property
    def router(self) -> Router:
        return Router(self.exchange, self.metrics)

    @property
    def urls(self) -> list[str]:
        """The workers that get requests."""
        return [seat.url for seat in self.seats.values() if not seat.pending and seat.draining is None and seat.url in self.serving]

    @property
    def writes(self) -> list[str]:
        return [f"{ask.method} {(ask.body or {}).get('url', ask.path)}" for ask in self.asked if not ask.reads]

    def restart(self) -> None:
        """Forget everything but the command line."""
        self.seats = {}
        self.counted = {}
        self.retries = self.exhausted = self.failed = 0
        for url in self.known:
            self._seat(url, None, 0)

    def forget(self, url: str) -> None:
        self.seats = {name: seat for name, seat in self.seats.items() if seat.url != url}

    def exchange(self, ask: Ask) -> Reply:
        self.on_ask(ask)
        self.asked.append(ask)
        if self.down:
            self.down -= 1
            raise RouterFailed(Trouble.UNREACHABLE, "router front at http://front: connection refused")
        if ask.path == "/readiness":
            healthy = sum(1 for url in self.urls if url not in self.sick)
            body = {"status": "ready", "healthy_workers": healthy, "total_workers": len(self.seats)}
            return _reply(200, body) if healthy else _reply(503, {"status": "not ready"})
        if ask.method == "POST":
            return self._add(str((ask.body or {})["url"]), (ask.body or {}).get("api_key"))
        if ask.path == "/workers":
            self._time_passes()
            return _reply(200, {"workers": [self._shown(seat) for seat in self.seats.values() if self.smg or self._is_in(seat)]})
        seat = self.seats.get(ask.path.rpartition("/")[2])
        if seat is None:
            return _reply(404, {"error": "Worker not found", "code": "WORKER_NOT_FOUND"})
        if ask.method == "DELETE":
            return self._remove(seat)
        self._time_passes()
        return _reply(200, self._shown(seat))

    def metrics(self) -> str:
        for url in itertools.islice(itertools.cycle(self.urls), self._turn, self._turn + self.traffic):
            self.counted[url] = self.counted.get(url, 0) + 1
        self._turn += self.traffic
        total = sum(self.counted.values())
        lines = [f'smg_worker_cb_outcomes_total{{worker="{url}",outcome="success"}} {count}' for url, count in self.counted.items()]
        lines += [f'smg_router_requests_total{{endpoint="generate"}} {total + self.failed}']
        lines += [f'smg_router_upstream_responses_total{{status_code="200",error_code=""}} {total}']
        lines += [f'smg_http_responses_total{{status_code="503",error_code="no_available_workers"}} {self.failed}']
        lines += [f'smg_worker_retries_total{{endpoint="generate"}} {self.retries}']
        lines += [f'smg_worker_retries_exhausted_total{{endpoint="generate"}} {self.exhausted}']
        return "\n".join(lines)

    def _add(self, url: str, key: str | None) -> Reply:
        there = next((seat for seat in self.seats.values() if seat.url == url), None)
        if there is not None and self.smg:
            return _reply(409, {"error": f"Worker already exists at URL '{url}'", "code": "WORKER_ALREADY_EXISTS"})
        seat = there or self._seat(url, key, self.pends)
        return _reply(202, {"status": "accepted", "worker_id": seat.id, "url": url})

    def _seat(self, url: str, key: str | None, pending: int) -> Seat:
        seat = Seat(f"id-{next(self._numbers)}", url, key, pending)
        self.seats[seat.id] = seat
        return seat

    def _remove(self, seat: Seat) -> Reply:
        if self.smg:
            seat.draining = self.drains
        else:
            del self.seats[seat.id]
        return _reply(202, {"status": "accepted", "worker_id": seat.id})

    def _time_passes(self) -> None:
        for seat in list(self.seats.values()):
            if seat.pending and seat.url in self.serving and not (self.smg and self._lacks_key(seat)):
                seat.pending -= 1
            if seat.draining is not None:
                seat.draining -= 1
                if seat.draining <= 0:
                    del self.seats[seat.id]

    def _is_in(self, seat: Seat) -> bool:
        return not seat.pending

    def _lacks_key(self, seat: Seat) -> bool:
        return seat.url in self.keys and seat.key != self.keys[seat.url]

    def _shown(self, seat: Seat) -> dict[str, Any]:
        healthy = not seat.pending and seat.draining is None and seat.url in self.serving and seat.url not in self.sick
        model = "unknown" if seat.pending or self._lacks_key(seat) else self.serving.get(seat.url, "m")
        shown: dict[str, Any] = {"id": seat.id, "url": seat.url, "model_id": model, "is_healthy": healthy, "load": 0}
        if self.smg:
            shown["status"] = "pending" if seat.pending else "draining" if seat.draining is not None else "ready"
        if seat.pending:
            shown["job_status"] = {"job_type": "AddWorker", "status": "processing", "message": None}
        return shown


def _reply(status: int, body: dict[str, Any]) -> Reply:
    return Reply(status, json.dumps(body))
