"""Answers of the verbs that look at a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.agent.wire import SurveyReport
from orchestrator.flows.status import BootTuning, RankStatus


@dataclass(frozen=True)
class Status:
    """What runs. `place`, `service` and `report` are null for a host without a service.

    Attributes:
        inventory: the folder of the inventory.
        place: the host or its container, as the screen names it.
        report: what was found in the place.
        boot: what applies a tuning profile when the host boots.
        rank: which node of a service over several this is; null for one on one node.
        other_ranks: its other nodes, each as far as it could be asked.
    """

    inventory: str
    host: str
    place: str | None
    service: str | None
    report: SurveyReport | None
    boot: BootTuning
    rank: int | None = None
    other_ranks: list[RankStatus] = field(default_factory=list)


@dataclass(frozen=True)
class Log:
    """The end of a launch's log. `path` is the file in the place."""

    host: str
    service: str
    launch_id: str
    path: str
    lines: list[str]
