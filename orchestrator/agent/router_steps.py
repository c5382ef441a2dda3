"""How an order takes its server out of a router before the stop and has what serves in the end in again: a part of what the state machine
asks of the world, apart from :mod:`steps` as most orders have no router.

Nothing here is worth a serving server: what can't be had of the router before the stop refuses the order, with the server put back, and
what can't be had of it afterwards is a warning, unless it is the router's only server: then clients have none, and the order says so.
"""

import contextlib
import time
from typing import Callable, List, Optional, Protocol

from orchestrator.agent import previous, sglang, wire
from orchestrator.agent.box_router import box_router
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.http import Client
from orchestrator.agent.quiet import wait_quiet
from orchestrator.agent.router import Router, not_serving
from orchestrator.agent.router_protocol import RouterFailed
from orchestrator.agent.steps import LaunchFailed, Report
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_router import RouterSeat, RouterView

SETTLE_SECONDS = 10.0
"""For the others to serve: whoever made the order has seen them do so a moment ago."""
REMOVE_SECONDS = 30.0
_LOAD_SECONDS = 2.0
_POLL = 0.5
_PHASE = "router"


class RouterSteps(Protocol):
    """What the machine asks of the router."""

    def leave(self, old: wire.Launch, report: Report, pulse: Callable[[], None]) -> None:
        """Have the router send the old server no more, and wait until that has no request left. `pulse` is called all the while.

        Raises:
            LaunchFailed: the router does not answer, too few others serve, or requests are left when the time is over; or what `pulse`
                raises. The server may be out then.
        """

    def withdraw(self, report: Report) -> None:
        """Take a server that has failed out, if it is in, and wait for none of its requests. Never raises."""

    def join(self, launch: wire.Launch, report: Report) -> List[Verdict]:
        """Have what serves in again; what the router has to say to that: ``refuse`` when it has no server now. Never raises."""


class BoxRouterSteps:
    """:class:`RouterSteps` on a real box, which reaches the router."""

    def __init__(self, seat: RouterSeat, settle: float = SETTLE_SECONDS) -> None:
        self._seat = seat
        self._settle = settle

    def leave(self, old: wire.Launch, report: Report, pulse: Callable[[], None]) -> None:
        try:
            router = box_router(self._seat.router)
            self._require_others(router, pulse)
            report(_PHASE, f"taking {self._seat.worker} out of router {self._seat.router.name}")
            router.remove(self._seat.worker, Deadline(REMOVE_SECONDS))
            self._require_others(router, pulse)
        except RouterFailed as failed:
            raise _failed(str(failed), failed.trouble.evidence) from failed
        self._wait_quiet(old, report, pulse)

    def _require_others(self, router: Router, pulse: Callable[[], None]) -> None:
        seen: List[RouterView] = []

        def all_serve() -> bool:
            pulse()
            seen[:] = [router.look()]
            return not not_serving(seen[0], self._seat.others)

        if not wait_until(all_serve, Deadline(self._settle), _POLL):
            evidence = not_serving(seen[0], self._seat.others)
            raise _failed(f"behind router {self._seat.router.name} not all others serve, so this one is not taken out", evidence)

    def _wait_quiet(self, old: wire.Launch, report: Report, pulse: Callable[[], None]) -> None:
        client = Client(old.port, old.host, previous.api_key(old))

        def told(load: Optional[int], waited: float) -> None:
            pulse()
            left = "it does not say how many requests it has" if load is None else f"{load} requests running or queued"
            report(_PHASE, f"out of router {self._seat.router.name}; {left}")

        quiet = wait_quiet(lambda: sglang.running_and_queued(client, _LOAD_SECONDS), self._seat.drain, told)
        if not quiet.quiet:
            left = "it does not say how many requests it has" if quiet.load is None else f"{quiet.load} requests are left"
            raise _failed(f"{left} {self._seat.drain:g} s after the router was told to send no more", [])

    def withdraw(self, report: Report) -> None:
        report(_PHASE, f"taking {self._seat.worker} out of router {self._seat.router.name}")
        with contextlib.suppress(Exception):  # what can't be had of the router is not worth the way back
            box_router(self._seat.router).remove(self._seat.worker, Deadline(REMOVE_SECONDS))

    def join(self, launch: wire.Launch, report: Report) -> List[Verdict]:
        seat, began = self._seat, time.monotonic()
        report(_PHASE, f"having {seat.worker} in router {seat.router.name} again")
        try:
            box_router(seat.router).add(seat.worker, previous.api_key(launch), Deadline(seat.join))
        except RouterFailed as failed:
            return [self._outside(str(failed))]
        except Exception as error:  # noqa: BLE001 - see above
            return [self._outside(f"an unexpected error: {error!r}")]
        return [Verdict(_PHASE, Outcome.PASS, f"in router {seat.router.name} again after {time.monotonic() - began:.1f} s")]

    def _outside(self, why: str) -> Verdict:
        name, alone = self._seat.router.name, not self._seat.others
        said = f"it is not in router {name}{', which has no server now' if alone else ''}: {why}"
        return Verdict(_PHASE, Outcome.REFUSE if alone else Outcome.WARN, said, next_step=f"fab roll --router {name} --repair")


def _failed(summary: str, evidence: List[str]) -> LaunchFailed:
    return LaunchFailed(wire.Failure(Category.NOT_DRAINED, summary, evidence))
