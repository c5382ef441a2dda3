"""An agent that answers from a script, speaking wire events, and the box around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from orchestrator.agent import wire
from orchestrator.agent.wire_host import DoctorReport, TuneReport
from orchestrator.config import Host, Inventory
from orchestrator.errors import AgentError, OrchestratorError
from orchestrator.flows.target import Target
from orchestrator.results.hook_run import HookRun

T = TypeVar("T")

Step = wire.Event | BaseException


def answer(value: Any) -> list[Step]:
    """A verb's events when it has only a result."""
    return [wire.Event(wire.EventKind.RESULT, wire.to_json(value))]


NO_TUNING = answer(TuneReport([], []))
"""What a host says of its tuning that is asked for nothing and has nothing for its boot."""


def state(sequence: int, name: str, reason: str = "so it is") -> wire.Event:
    """One line of the journal as an event."""
    return wire.Event(wire.EventKind.STATE, wire.to_json(wire.StateEntry(sequence, name, 1764400000.0 + sequence, float(sequence), reason)))


def progress(name: str, phase: str, elapsed: float = 1.0, detail: str = "") -> wire.Event:
    """One progress event."""
    return wire.Event(wire.EventKind.PROGRESS, wire.to_json(wire.Progress(name, phase, elapsed, detail)))


class FakeAgent:
    """Answers each call of a verb with the next script for it; the last script is used again. Remembers what it was asked."""

    def __init__(self, **scripts: Sequence[Sequence[Step]]) -> None:
        self._scripts = {verb: list(items) for verb, items in scripts.items()}
        self.asked: list[tuple[str, Any]] = []

    def call(self, verb: str, request: Any, timeout: float | None = None) -> Iterator[wire.Event]:
        self.asked.append((verb, request))
        scripts = self._scripts[verb]
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        for step in script:
            if isinstance(step, BaseException):
                raise step
            yield step

    def ask(self, verb: str, request: Any, kind: type[T], timeout: float | None = None) -> T:
        for event in self.call(verb, request, timeout):
            if event.kind == wire.EventKind.RESULT:
                return wire.from_json(kind, event.data)
        raise AgentError(f"no result of {verb}")

    def requests(self, verb: str) -> list[Any]:
        return [request for asked, request in self.asked if asked == verb]


@dataclass
class FakeBox:
    """Hands out one agent for every connection to the service's place. `refusals` are raised by the next connections instead.

    `host` is the agent on the host beside a container, or why it can't be reached.
    """

    agent: FakeAgent
    refusals: list[OrchestratorError] = field(default_factory=list)
    connections: int = 0
    host: FakeAgent | OrchestratorError = field(default_factory=lambda: FakeAgent(doctor=[answer(DoctorReport([], []))], tune=[NO_TUNING]))
    opened: list[str] = field(default_factory=list)
    """The kinds of the other places that were opened."""

    @contextmanager
    def connect(self, target: Target) -> Iterator[FakeAgent]:
        self.connections += 1
        if self.refusals and self.connections > 1:
            raise self.refusals.pop(0)
        yield self.agent

    @contextmanager
    def open(self, inventory: Inventory, host: Host, kind: str) -> Iterator[FakeAgent]:
        self.opened.append(kind)
        if isinstance(self.host, OrchestratorError):
            raise self.host
        yield self.host


@dataclass
class Heard:
    """An observer that remembers."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    plans: list[Any] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    results: list[wire.OrderResult] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    hooks: list[HookRun] = field(default_factory=list)
    notices: list[wire.Fate] = field(default_factory=list)
    kept_in: str | None = None

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def hide(self, values: Sequence[str]) -> None:
        self.hidden += values

    def plan(self, plan: Any) -> None:
        self.plans.append(plan)

    def state(self, entry: wire.StateEntry) -> None:
        self.states.append(entry.state)

    def progress(self, progress: wire.Progress) -> None:
        self.phases.append(progress.phase)

    def log(self, text: str) -> None:
        self.lines.append(text)

    def result(self, result: wire.OrderResult) -> None:
        self.results.append(result)

    def collected(self, collected: wire.Collected) -> None:
        self.files.update(collected.files)

    def hook(self, run: HookRun) -> None:
        self.hooks.append(run)

    def notice(self, fate: wire.Fate) -> None:
        self.notices.append(fate)
