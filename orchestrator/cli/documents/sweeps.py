"""Answers of sweep: its plan, and what it has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.agent.wire import ServerInfo
from orchestrator.flows.sweep_plan import PointPlan
from orchestrator.results.sweep import Design
from orchestrator.results.sweep_choice import Choice, PointFound
from orchestrator.results.sweep_estimate import Pace
from orchestrator.results.sweep_records import Changed, Skipped, Timed


@dataclass(frozen=True)
class SweepPlanData:
    """What would be tried. Points and steps are counted from 0.

    Attributes:
        server: what serves now.
        load: its running and queued requests; null when unknown.
        start_launch: the launch by which that could be brought back; null: there is none.
        steps: the points that would be launched, in their order.
        to_time: how many more are up already and have to be timed.
        dark_seconds: of all launches together; null where one of them is not known.
    """

    host: str
    place: str
    service: str
    server: ServerInfo
    sglang_version: str | None
    load: int | None
    start_launch: str | None
    design: Design
    points: Sequence[PointPlan]
    steps: Sequence[int]
    to_time: int
    dark_seconds: float | None
    pace: Pace


@dataclass(frozen=True)
class SweepPlanned:
    """A sweep that was only planned."""

    host: str
    service: str
    plan: SweepPlanData


@dataclass(frozen=True)
class SweepStep:
    """One launch with its timing. `launch` is how the relaunch went, `end` the last word on the step; null where it was not come to."""

    step: int
    point: int
    launch: Changed | None
    end: Skipped | Changed | Timed | None


@dataclass(frozen=True)
class Serves:
    """What serves after a sweep: a point by its number, or what served at its beginning."""

    point: int | None
    at_start: bool
    launch_id: str | None


@dataclass(frozen=True)
class Swept:
    """What a sweep has found. Points and steps are counted from 0.

    Attributes:
        choice: the best point.
        end: the relaunch that came after all steps; null where there was none.
        said: how it ended, as a sentence.
    """

    host: str
    place: str
    service: str
    design: Design
    points: list[PointFound]
    steps: list[SweepStep]
    choice: Choice
    end: Skipped | Changed | Timed | None
    serves: Serves
    said: str
