"""Answers of the verbs about runbooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.config.playbook import Playbook


@dataclass(frozen=True)
class RunbookListed:
    """One runbook. `path` is its file."""

    name: str
    title: str
    path: str


@dataclass(frozen=True)
class RunbookList:
    """Which runbooks there are, by name."""

    runbooks: list[RunbookListed]


@dataclass(frozen=True)
class RunbookShown:
    """One runbook: `playbook` as its file at `path` has it, `markdown` for paper."""

    runbook: str
    path: str
    playbook: Playbook
    markdown: str


@dataclass(frozen=True)
class RunbookStep:
    """One step that would be taken. `kind` is ``verb``, ``check`` or ``manual``."""

    step: str
    kind: str


@dataclass(frozen=True)
class RunbookPlan:
    """The steps in their order."""

    steps: list[RunbookStep]


@dataclass(frozen=True)
class RunbookPlanned:
    """What a run would be, with its inputs."""

    runbook: str
    host: str
    service: str | None
    inputs: dict[str, Any]
    plan: RunbookPlan


@dataclass(frozen=True)
class StepTaken:
    """What became of a step.

    Attributes:
        kind: ``verb``, ``check`` or ``manual``.
        verdict: how it ended, in the words that guards have for it; ``skipped`` where it was not taken.
        exit_code: the verb's or the check's.
        goes_on: whether the runbook went on after it.
        seen: what a check saw, or why the step was skipped.
        run: the run folder that its verb kept.
        document: what its verb would have printed with ``--json``: a document of its own.
    """

    step: str
    kind: str
    verdict: str
    exit_code: int
    goes_on: bool
    seen: str
    run: str | None
    document: dict[str, Any] | None


@dataclass(frozen=True)
class RunbookWalked:
    """How a run went. `ended` is ``done``, ``refused`` (by a guard), ``failed`` (a step) or ``left`` (by a person)."""

    runbook: str
    host: str
    service: str | None
    inputs: dict[str, Any]
    ended: str
    because: str
    steps: list[StepTaken]
