"""What a roll asks of the router, and of a replica that is out of it, and how long it waits for that."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.router import not_serving
from orchestrator.agent.wire_router import Counters, QuietReport, QuietRequest, RouterSeat, RouterView, plain_url
from orchestrator.errors import AgentError, OrchestratorError, RouterError, RouterRestartedError, TooFewServingError
from orchestrator.flows import look
from orchestrator.flows.side_by_side import side_by_side
from orchestrator.flows.target import Target, decoded
from orchestrator.results.roll import Standing, ids_of
from orchestrator.results.roll_records import Returned, RolledReplica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.flows.observer import Observer
    from orchestrator.flows.roll_plan import Fleet

SETTLE_SECONDS = 30.0
"""How long the others may take to serve again before a replica is taken out: a health check that fails once is not yet a failure."""
POLL_SECONDS = 0.5
_ON_THE_WAY = 30.0
SERVING = "serving"
_ASKED_AT_ONCE = 4


class RollRouter:
    """The router of a fleet, as a roll waits for it."""

    def __init__(self, fleet: Fleet, settle: float = SETTLE_SECONDS, poll: float = POLL_SECONDS) -> None:
        self._fleet = fleet
        self._settle = settle
        self._poll = poll

    def require(self, workers: list[str], standing: Standing) -> None:
        """Wait until all of `workers` serve, by the router's own word.

        Raises:
            RouterRestartedError: the router has forgotten some that nobody has removed.
            TooFewServingError: one of them does not serve, or too few do by its count.
            RouterError: it does not answer.
        """
        seen = _Seen(workers)

        def all_serve() -> bool:
            seen.view = self._fleet.asked.look()
            return not seen.missing and seen.view.healthy >= len(workers)

        if wait_until(all_serve, Deadline(self._settle), self._poll):
            return
        assert seen.view is not None, "it was asked at least once"
        forgotten = [url for url in workers if seen.view.worker(url) is None]
        repair = self._fleet.command("--repair", "--plan")
        name = self._fleet.router.name
        if forgotten:
            what = f"router {name} has forgotten {len(forgotten)} of its {len(workers)} workers that nobody has removed: it was restarted"
            raise RouterRestartedError(what, evidence=seen.missing, next_step=repair)
        few = seen.missing or [f"the router counts {seen.view.healthy} healthy workers"]
        raise TooFewServingError(f"behind router {name} not all others serve, so none is taken out", evidence=few, next_step=repair)

    def require_servers(self, services: Sequence[str]) -> None:
        """Ask the replicas themselves whether they serve: a router with its default health checks takes two minutes to miss one.

        Raises:
            TooFewServingError: one does not, or can't be asked.
        """
        missing: list[str] = []

        def ask(index: int) -> str | None:
            try:
                target = self._fleet.target(services[index])
                with self._fleet.connect(target) as agent:
                    health = look.survey(agent, target).health
            except OrchestratorError as error:
                return f"{services[index]} can't be asked: {error.message}"
            return None if health == SERVING else f"{services[index]} is {health}, by its own word"

        side_by_side(len(services), ask, lambda index, told: missing.append(told) if told is not None else None, _ASKED_AT_ONCE)
        if missing:
            step = self._fleet.command("--repair", "--plan")
            raise TooFewServingError("not all other replicas serve, so none is taken out", evidence=sorted(missing), next_step=step)

    def seat(self, replica: RolledReplica) -> RouterSeat:
        """The replica's place behind the router, for the supervisor that takes it out and has it in."""
        router = self._fleet.router
        others = [url for url in self._fleet.workers if url != replica.worker]
        return RouterSeat(self._fleet.asked.address, replica.worker, others, router.drain, router.join)

    def wait_quiet(self, target: Target, view: Observer) -> QuietReport:
        """Wait until the replica's server has no request left, as it says itself: the router does not know."""
        service = target.service
        request = QuietRequest(service.name, target.state_root, service.port, self._fleet.router.drain)
        with self._fleet.connect(target) as agent:
            for event in agent.call("quiet", request, self._fleet.router.drain + _ON_THE_WAY):
                if event.kind == wire.EventKind.RESULT:
                    return decoded(QuietReport, event)
                if event.kind == wire.EventKind.PROGRESS:
                    view.progress(decoded(wire.Progress, event))
        raise AgentError("the agent stopped waiting for the server's requests without a result")

    def bring_in(self, replica: RolledReplica, key: str | None, view: Observer) -> Returned:
        """Have the replica in, and wait until requests have reached it.

        Raises:
            RouterError: the router does not take it, or does not answer; or requests reach the others and not this one.
        """
        began = time.monotonic()
        joined = self._fleet.asked.add(replica.worker, key, self._fleet.router.join)
        took = time.monotonic() - began
        came_in = Returned(replica.service, None, seconds=took, worker_id=ids_of(joined, [replica.worker]).get(replica.worker))
        if joined.counters is None:
            return dataclasses.replace(came_in, remark=joined.remark or "the router has no counters that can be read")
        view.note(f"waiting for requests to reach {replica.service}")
        traffic = _Traffic(replica.worker, joined.counters)

        def has_come() -> bool:
            seen = self._fleet.asked.look()
            if seen.worker(replica.worker) is None:  # the router was restarted since
                seen = self._fleet.asked.add(replica.worker, key, self._fleet.router.join)
            return traffic.has_come(seen)

        reached = wait_until(has_come, Deadline(self._fleet.router.traffic), self._poll)
        if reached:
            return dataclasses.replace(came_in, requests=traffic.requests)
        seconds = f"{self._fleet.router.traffic:g} s"
        if traffic.elsewhere:
            others = f"in {seconds} {traffic.elsewhere} requests reached other replicas"
            raise RouterError(
                f"{others} and none {replica.service}, which the router has as healthy",
                evidence=["its policy may send it few, or its circuit breaker be open (smg_worker_cb_state)"],
                next_step=f"traffic: in the file of router {self._fleet.router.name} says how long is waited",
            )
        remark = f"no request came to the router in {seconds}, so none was seen to reach it"
        return dataclasses.replace(came_in, requests=0, remark=remark)


class _Seen:
    """The last look, and what it lacks."""

    def __init__(self, workers: list[str]) -> None:
        self._workers = workers
        self.view: RouterView | None = None

    @property
    def missing(self) -> list[str]:
        return [] if self.view is None else not_serving(self.view, self._workers)


class _Traffic:
    """Successes of one worker and of all, since it came in. A router that was restarted meanwhile counts from nothing."""

    def __init__(self, worker: str, counters: Counters) -> None:
        self._worker = plain_url(worker)
        self._before = counters
        self.requests = 0
        self.elsewhere = 0

    def has_come(self, view: RouterView) -> bool:
        if view.counters is None:
            return False
        if view.counters.requests < self._before.requests:
            self._before = Counters()
        self.requests = _of(view.counters, self._worker) - _of(self._before, self._worker)
        self.elsewhere = view.counters.requests - self._before.requests - self.requests
        return self.requests > 0


def _of(counters: Counters, worker: str) -> int:
    return sum(count for url, count in counters.by_worker.items() if plain_url(url) == worker)


def quiet_words(report: QuietReport) -> str:
    """How a wait for a server's requests went."""
    if report.quiet:
        return f"out of the router, and without a request after {report.waited:.1f} s"
    left = "it does not say how many requests it has" if report.load is None else f"{report.load} requests are left"
    return f"out of the router for {report.waited:.0f} s, and {left}"


def ended_words(returned: Returned) -> str:
    """How a replica came back."""
    told = f"in the router again after {returned.seconds:.1f} s"
    if returned.requests:
        return f"{told}, and answering: {returned.requests} request{'' if returned.requests == 1 else 's'} so far"
    return f"{told}; {returned.remark}"
