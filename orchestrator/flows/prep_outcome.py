"""What an operator asks of a preparation and what became of it, host by host. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.agent.wire_host import KnobOutcome, KnobResult, PersistenceAction, PlaceKind, TuneAction, TuneReport
from orchestrator.errors import DRIFT, NotRootError, OrchestratorError, worst

_NOT_SET = frozenset({KnobOutcome.TOLD, KnobOutcome.NOT_SETTABLE})


@dataclass(frozen=True)
class PrepOptions:
    """What an operator may say about a preparation.

    Attributes:
        write: False for a plan and a check.
        action: a :class:`TuneAction`.
        persistence: a :class:`PersistenceAction`; ``REMOVE`` without a revert touches no knob.
        plan: what a write would change is what was asked for, so it is no drift.
        wait: seconds for which orders at work on the host, or in its container, are waited for.
    """

    write: bool = True
    action: str = TuneAction.APPLY
    persistence: str = PersistenceAction.KEEP
    reason: str = ""
    plan: bool = False
    wait: float = 0.0

    @property
    def about_knobs(self) -> bool:
        """Whether the profile's knobs are looked at."""
        return self.action == TuneAction.APPLY and self.persistence != PersistenceAction.REMOVE


@dataclass(frozen=True)
class PlaceTuning:
    """What one place answered, or why it did not. `kind` is a :class:`PlaceKind`, `label` the place's name on the screen.

    `stands_in` is True for a container in which the host's knobs were read because the host itself could not be asked.
    """

    kind: str
    label: str
    report: TuneReport | None = None
    error: OrchestratorError | None = None
    stands_in: bool = False

    @property
    def results(self) -> list[KnobResult]:
        return self.report.results if self.report is not None else []

    def fact(self, name: str) -> Any:
        """The value of a fact, None when it is not known."""
        facts = self.report.facts if self.report is not None else []
        return next((fact.value for fact in facts if fact.name == name), None)


@dataclass(frozen=True)
class HostPrep:
    """What became of one host. `profile` is empty where none was needed.

    `error` says why the host's own part could not be done; a container's is with its place in `reports`.
    """

    host: str
    profile: str
    reports: list[PlaceTuning] = field(default_factory=list)
    error: OrchestratorError | None = None
    warnings: list[str] = field(default_factory=list)
    options: PrepOptions = PrepOptions()
    seconds: float = 0.0

    @property
    def results(self) -> list[KnobResult]:
        """Every knob's result, the host's first."""
        return [result for part in self.reports for result in part.results]

    @property
    def exit_code(self) -> int:
        """The worst of what happened: 1, 4, 5, 8, 0, as the table in the README has them."""
        errors = [self.error, *(part.error for part in self.reports)]
        codes = [_error_code(error) for error in errors if error is not None]
        return worst([*codes, *(self._code(result) for result in self.results), self._persistence_code(), 0])

    def _code(self, result: KnobResult) -> int:
        if result.outcome == KnobOutcome.FAILED:
            return 1
        if is_unproven(result) and self.options.action == TuneAction.APPLY:
            return DRIFT
        drift = _NOT_SET if self.options.plan else KnobOutcome.DRIFT
        return DRIFT if result.outcome in drift else 0

    def _persistence_code(self) -> int:
        """1 where what was asked for the next boot did not come about."""
        report = next((part.report for part in self.reports if part.kind == PlaceKind.HOST), None)
        if report is None or not self.options.write:
            return 0
        there = report.persistence
        if self.options.persistence == PersistenceAction.INSTALL:
            return int(there is None or there.problem is not None or not there.enabled)
        gone = self.options.persistence == PersistenceAction.REMOVE or self.options.action == TuneAction.REVERT
        return int(gone and there is not None)


def is_unproven(result: KnobResult) -> bool:
    """Whether something is wanted of a knob and nobody can say whether it is so, as it could not be read."""
    return result.outcome == KnobOutcome.UNKNOWN and result.setting.value is not None


def _error_code(error: OrchestratorError) -> int:
    """A place that was asked and said that it takes root has been reached: that is no other thing than a knob that takes root."""
    return DRIFT if isinstance(error, NotRootError) else error.exit_code
