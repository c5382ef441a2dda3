"""Kernel time by class of a decode step, rank by rank: what is kept and shown of traces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.agent.wire_budget import ProfileReport
from orchestrator.results.account import Account
from orchestrator.results.trace import Trace, Work

_LONGEST_NAME = 60
_MOST = 5


@dataclass(frozen=True)
class ClassTime:
    """What a step has of one class of kernels: seconds in all, how many, and the names that most of it is of."""

    seconds: float
    launches: int
    most: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankProfile:
    """The step of median length in one rank's trace; seconds. `steps` has the lengths of all that are in it.

    `trace` is the file's name, `on_gpu` False where only a CPU's operators are in it, `told_by` by what steps are told apart. What
    overlapped is in `classes` more than once.
    """

    trace: str
    on_gpu: bool
    told_by: str
    steps: tuple[float, ...]
    step: float
    busy: float
    overlap: float
    gaps: float
    classes: dict[str, ClassTime]

    @property
    def launches(self) -> int:
        return sum(item.launches for item in self.classes.values())

    def seconds_of(self, name: str) -> float:
        """Of one class; 0 where the step has none of it."""
        found = self.classes.get(name)
        return 0.0 if found is None else found.seconds


@dataclass(frozen=True)
class Profiled(Account):
    """The box's answer, and what is in the traces."""

    report: ProfileReport
    ranks: Sequence[RankProfile]


def rank_profile(trace: Trace) -> RankProfile:
    """What a trace's middle step is made of."""
    step = trace.middle
    return RankProfile(
        trace=trace.label,
        on_gpu=trace.on_gpu,
        told_by=trace.told_by,
        steps=tuple(item.seconds for item in trace.steps),
        step=step.seconds,
        busy=step.busy,
        overlap=step.overlap,
        gaps=step.gaps,
        classes={name: _class_time(work) for name, work in sorted(step.by_class().items())},
    )


def _class_time(work: Iterable[Work]) -> ClassTime:
    found = list(work)
    by_name: dict[str, float] = {}
    for item in found:
        name = short_name(item.name)
        by_name[name] = by_name.get(name, 0.0) + item.own
    longest = sorted(by_name, key=lambda name: -by_name[name])
    return ClassTime(sum(item.own for item in found), len(found), tuple(longest[:_MOST]))


def short_name(name: str) -> str:
    """A kernel's name without the template arguments that make it long."""
    text = name.removeprefix("void ").split("<")[0].split("(")[0].strip() or name
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
