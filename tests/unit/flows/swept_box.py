"""A box that remembers what it serves: each order that it takes ends as a script says, and a timing is of what serves then."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from orchestrator.agent import wire
from orchestrator.agent.wire_host import DoctorReport, TuneReport
from orchestrator.agent.wire_launches import KnownLaunch, LaunchesReport
from orchestrator.agent.wire_measure import BatchTiming, Covariates, FloorInputs, Gaps, Interval, Invalid, MeasureReport, RepeatTiming
from orchestrator.config import Host, Inventory
from orchestrator.errors import RefusedError
from orchestrator.flows.target import Target
from tests.unit.flows.samples import DRIFT, OLD, preflight, staging, survey

T = TypeVar("T")

STARTED = "20261130T000000Z-0000"
SIX = (1.000, 1.002, 0.999, 1.001, 1.000, 0.998)
FAILURE = wire.Failure("kernel_missing", "there is no kernel for this GPU")


def _server(launch_id: str | None, pid: int) -> wire.ServerInfo:
    return dataclasses.replace(OLD, launch_id=launch_id, main=wire.ProcessId(pid, 10 * pid))


@dataclass
class SweptBox:
    """The box, and the agent on it.

    Attributes:
        serves: the launch that serves, None for one that is not ours; `up` is whether anything does.
        ends: launched backend -> the state in which an order for it ends; DONE where nothing is said.
        milliseconds: of a token, by backend; with ``#N`` of the Nth launch of it.
        refused: backends whose check refuses them.
        invalid: backends whose timing is not to be believed.
        raising: what a verb raises the next time it is asked.
    """

    serves: str | None = STARTED
    up: bool = True
    health: str = "serving"
    drift: bool = False
    ends: dict[str, str] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    invalid: set[str] = field(default_factory=set)
    raising: dict[str, list[BaseException]] = field(default_factory=dict)
    orders: list[wire.Order] = field(default_factory=list)
    results: dict[str, wire.OrderResult] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=lambda: {STARTED: "auto"})
    status: dict[str, wire.OrderStatus] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    pid: int = 4242

    @contextmanager
    def connect(self, target: Target) -> Iterator[SweptBox]:
        yield self

    @contextmanager
    def open(self, inventory: Inventory, host: Host, kind: str) -> Iterator[SweptBox]:
        yield self

    def call(self, verb: str, request: Any, timeout: float | None = None) -> Iterator[wire.Event]:
        self.asked.append((verb, request))
        if self.raising.get(verb):
            raise self.raising[verb].pop(0)
        yield wire.Event(wire.EventKind.RESULT, wire.to_json(getattr(self, f"on_{verb}")(request)))

    def ask(self, verb: str, request: Any, kind: type[T], timeout: float | None = None) -> T:
        (event,) = self.call(verb, request, timeout)
        return wire.from_json(kind, event.data)

    def requests(self, verb: str) -> list[Any]:
        return [request for asked, request in self.asked if asked == verb]

    @property
    def launched(self) -> list[str]:
        """The backends that were launched, ``back`` for a way back by a record."""
        return [order.new.backend if order.new is not None else "back" for order in self.orders]

    def on_survey(self, request: wire.SurveyRequest) -> wire.SurveyReport:
        server = _server(self.serves, self.pid) if self.up else None
        return survey(server=server, health=self.health if self.up else "down")

    def on_preflight(self, request: wire.PreflightRequest) -> wire.PreflightReport:
        why = self.refused.get(request.launch.backend)
        verdicts = [wire.Verdict("port", wire.Outcome.REFUSE, why, next_step="look at it")] if why else []
        swept = [wire.Difference("argument", flag, None, "x", "sweep") for flag in request.launch.swept_flags]
        drift = [DRIFT] if self.drift and self.serves in (None, STARTED) else []
        server = _server(self.serves, self.pid) if self.up else None
        return preflight(verdicts=verdicts, differences=[*swept, *drift], server=server, staging=staging())

    def on_launches(self, request: Any) -> LaunchesReport:
        known = [KnownLaunch(_launch(name, backend), 1.0, name == self.serves) for name, backend in self.backends.items()]
        return LaunchesReport(known)

    def on_doctor(self, request: Any) -> DoctorReport:
        return DoctorReport([], [])

    def on_tune(self, request: Any) -> TuneReport:
        return TuneReport([], [])

    def on_submit(self, order: wire.Order) -> wire.Submitted:
        self.orders.append(order)
        self.results[order.order_id] = self._carried_out(order)
        return wire.Submitted(order.order_id, "unit")

    def on_follow(self, reference: wire.OrderReference) -> wire.OrderResult:
        return self.results[reference.order_id]

    def on_cancel(self, request: wire.Cancel) -> wire.OrderStatus:
        return wire.OrderStatus(request.order_id, "relaunch", "LOADING", True, 0.0, "kim@laptop")

    def on_resume(self, reference: wire.OrderReference) -> wire.Submitted:
        return wire.Submitted(reference.order_id, "unit")

    def on_lock(self, request: wire.LockRequest) -> wire.LockStatus:
        name = request.order_id or ""
        known = wire.OrderStatus(name, "relaunch", "DONE", False, 0.0, "kim@laptop") if name in self.results else None
        return wire.LockStatus(order=self.status.get(name, known))

    def on_measure(self, request: Any) -> MeasureReport:
        if not self.up:
            raise RefusedError("there is no server on port 30000")
        backend = self.backends.get(self.serves or "", "auto")
        count = sum(1 for order in self.orders if order.new is not None and order.new.backend == backend)
        step = self.milliseconds.get(f"{backend}#{count}", self.milliseconds.get(backend, 20.0)) / 1000
        against = [Invalid("others", "3 ran, 1 was ours", 1)] if backend in self.invalid else []
        found = Covariates(launch_id=self.serves, main_pid=self.pid, backend=backend)
        began = 1000.0 + len(self.orders)
        batches = [_timed(size, step) for size in request.batch_sizes]
        tokens = (request.input_tokens, request.output_tokens)
        return MeasureReport("/generate", *tokens, {}, began, 30.0, batches, against, found, FloorInputs())

    def _carried_out(self, order: wire.Order) -> wire.OrderResult:
        launch_id = order.launch_id
        assert launch_id is not None
        backend = order.new.backend if order.new is not None else self.backends[str(order.copy_of)]
        state = self.ends.get(backend, wire.State.DONE)
        if state == wire.State.REFUSED:
            return wire.OrderResult(order.order_id, state, 3, "the old server was left alone", "unchanged", FAILURE)
        if state == wire.State.DOWN:
            self.up = False
            return wire.OrderResult(order.order_id, state, 7, "it failed twice", "down", FAILURE, next_step="fab launch")
        self.pid += 1
        if state == wire.State.RESTORED:
            before = self.backends[self.serves] if self.serves is not None else "auto"
            self.serves = f"{launch_id}-back"
            self.backends[self.serves] = before
            return wire.OrderResult(
                order.order_id, state, 6, "no kernel", "the previous server serves again", FAILURE, None, None, None, 9.0, 0, self.serves
            )
        self.serves = launch_id
        self.backends[launch_id] = backend
        return wire.OrderResult(
            order.order_id, state, 0, f"{backend} serves", "serving", dark_seconds=4.0, lost_requests=0, launch_id=launch_id
        )


def _launch(name: str, backend: str) -> wire.Launch:
    return wire.Launch(name, "glm5", backend, "/opt/sglang/bin/python", ["--model-path", "/models/tiny"], "127.0.0.1", 30000)


def _timed(size: int, step: float) -> BatchTiming:
    values = [step * share for share in SIX]
    return BatchTiming(
        size,
        [_repeat(size, value) for value in values],
        time_per_output_token=Interval(step, min(values), max(values), 0.97, 6),
        tokens_per_second=Interval(size / step, 1.0, 2.0, 0.97, 6),
    )


def _repeat(size: int, value: float) -> RepeatTiming:
    gaps = Gaps(value, value, value, value, 9)
    return RepeatTiming(1.0, 3.0, [0.05], value, 2.0, 255, gaps, 1 / value, size / value, 9, 9, 9)
