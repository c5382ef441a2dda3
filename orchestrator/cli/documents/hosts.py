"""The answer of prep."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.agent.wire_host import TuneReport
from orchestrator.cli.documents.envelope import Problem


@dataclass(frozen=True)
class PreparedPlace:
    """One place of a host.

    Attributes:
        place: the host or its container, as the screen names it.
        kind: ``host`` or ``container``.
        stands_in: whether a container was read because its host could not be.
        report: what was found and done; null where it could not be asked, and `error` says why.
    """

    place: str
    kind: str
    stands_in: bool
    error: Problem | None
    report: TuneReport | None


@dataclass(frozen=True)
class PreparedHost:
    """One host.

    Attributes:
        profile: its tuning profile.
        exit_code: its own; that of the verb is the worst one.
        seconds: how long it took.
        counts: outcome -> how many knobs came to it.
        error: why the host could not be prepared at all.
        warnings: what was told on the way.
    """

    host: str
    profile: str
    exit_code: int
    seconds: float
    counts: dict[str, int]
    error: Problem | None
    warnings: list[str]
    places: list[PreparedPlace]


@dataclass(frozen=True)
class Prepared:
    """Every host that was named. `mode` is ``apply``, ``revert``, ``unpersist``, ``check``, or ``plan`` and one of the first three."""

    inventory: str
    mode: str
    hosts: list[PreparedHost]
