"""How an order went: its states and the phases inside them on one time axis, and when nothing answered. From a run folder's files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.agent import wire
from orchestrator.agent.codec import WireError, from_json
from orchestrator.agent.history import read_history
from orchestrator.agent.journal import JOURNAL, PROGRESS
from orchestrator.agent.steps import Stopped
from orchestrator.agent.wire import State
from orchestrator.results.kept_runs import KeptRun, read_lines

T = TypeVar("T")

LEAST_SECONDS = 0.05
"""Of a phase that is shown."""


@dataclass(frozen=True)
class Span:
    """Something that lasted: seconds from the order's first line. `detail` is its last word."""

    name: str
    began: float
    ended: float
    detail: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True)
class Step:
    """A state with what went on in it. `reason` is the journal's."""

    span: Span
    reason: str
    phases: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Course:
    """An order's whole way.

    Attributes:
        began: Unix time of its first line, by the box's clock.
        steps: a final state is a step without length.
        dark: when nothing answered, from the old server's last good answer; None where there was no such time or nobody knows when it
            began. Its length is the result's.
    """

    began: float
    steps: tuple[Step, ...]
    dark: Span | None = None

    @property
    def seconds(self) -> float:
        return max([step.span.ended for step in self.steps] + ([self.dark.ended] if self.dark else []), default=0.0)


def read_course(run: KeptRun) -> Course | None:
    """The course of a run's order; None where it had none, or nothing was heard of it."""
    states = _states(run.path)
    if not states:
        return None
    return course_of(states, _progress(run.path), run.result)


def course_of(states: Sequence[wire.StateEntry], progress: Sequence[wire.Progress], result: wire.OrderResult | None) -> Course:
    """Put it on one axis.

    The axis is the box's monotonic clock, which nobody sets; where the machine was restarted in between, that of its wall clock.
    """
    monotonic = all(earlier.monotonic <= later.monotonic for earlier, later in itertools.pairwise(states))
    moments = [entry.monotonic - states[0].monotonic if monotonic else entry.time - states[0].time for entry in states]
    ends = [*moments[1:], moments[-1]]
    steps = []
    for entry, began, ended in zip(states, moments, ends, strict=True):
        inside = [item for item in progress if item.sequence == entry.sequence and item.state == entry.state]
        steps.append(Step(Span(entry.state, began, ended), entry.reason, tuple(_phases(inside, began, ended))))
    dark = _dark(states, result, monotonic=monotonic)
    return Course(states[0].time, tuple(_joined(steps)), dark)


def _phases(progress: Sequence[wire.Progress], began: float, ended: float) -> Iterable[Span]:
    """Each phase from when it was first heard of to the next one; one that comes again directly goes on."""
    for _, group in itertools.groupby(_with_ends(progress, began, ended), key=lambda item: item[0].phase):
        parts = list(group)
        yield Span(parts[0][0].phase, parts[0][1], parts[-1][2], parts[-1][0].detail)


def _with_ends(progress: Sequence[wire.Progress], began: float, ended: float) -> list[tuple[wire.Progress, float, float]]:
    moments = [*(min(began + item.elapsed, ended) for item in progress), ended]
    return [(item, start, after) for item, (start, after) in zip(progress, itertools.pairwise(moments), strict=True)]


def _joined(steps: Sequence[Step]) -> list[Step]:
    """States that were said twice in a row, such as a staged start's beginning and its arrival at the gate, as one."""
    joined: list[Step] = []
    for step in steps:
        if joined and joined[-1].span.name == step.span.name:
            before = joined.pop()
            span = Span(step.span.name, before.span.began, step.span.ended)
            step = Step(span, step.reason, (*before.phases, *step.phases))
        joined.append(step)
    return joined


def _dark(states: Sequence[wire.StateEntry], result: wire.OrderResult | None, *, monotonic: bool) -> Span | None:
    """From the old server's last good answer, as the journal's line on its stop has it."""
    history = read_history(states)
    stopped = history.stopped if history is not None else None
    if result is None or result.dark_seconds is None or stopped is None:
        return None
    began = _last_answer(states[0], stopped, monotonic=monotonic)
    return None if began is None else Span("dark", began, began + result.dark_seconds)


def _last_answer(first: wire.StateEntry, stopped: Stopped, *, monotonic: bool) -> float | None:
    if monotonic:
        return None if stopped.last_answer is None else stopped.last_answer - first.monotonic
    return None if stopped.answered_at is None else stopped.answered_at - first.time


def load_phases(step: Step) -> tuple[Span, ...]:
    """The phases of a step in which a server starts; of other steps, whose phases are their own waits, none."""
    return step.phases if step.span.name in {State.STAGING, State.STARTING, State.LOADING} else ()


def _states(folder: Path) -> list[wire.StateEntry]:
    """As the box has journaled them; where that did not come any more, as they were heard here."""
    journaled = _decoded(wire.StateEntry, read_lines(folder / JOURNAL))
    heard = _decoded(wire.StateEntry, _heard(folder, wire.EventKind.STATE))
    chosen = journaled if len(journaled) >= len(heard) else heard
    return sorted({entry.sequence: entry for entry in chosen}.values(), key=lambda entry: entry.sequence)


def _progress(folder: Path) -> list[wire.Progress]:
    kept = _decoded(wire.Progress, read_lines(folder / PROGRESS))
    return kept or _decoded(wire.Progress, _heard(folder, wire.EventKind.PROGRESS))


def _heard(folder: Path, kind: str) -> list[Any]:
    return [event.get("data") for event in read_lines(folder / "events.jsonl") if event.get("kind") == kind]


def _decoded(kind: type[T], items: Iterable[Any]) -> list[T]:
    """Those that can be understood."""
    found = []
    for item in items:
        try:
            found.append(from_json(kind, item))
        except WireError:
            continue
    return found
