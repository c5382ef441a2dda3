"""The verbs that take several hosts: what each asks, and how its answers are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli import fleet_rows
from orchestrator.cli.fleet import View
from orchestrator.flows.fleet import Question, Subject, Ways
from orchestrator.flows.observer import Hiding

if TYPE_CHECKING:
    from orchestrator.agent.wire import LockStatus, SurveyReport
    from orchestrator.agent.wire_launches import BootReport
    from orchestrator.config import Backend, Inventory
    from orchestrator.flows.doctor import Diagnosis
    from orchestrator.flows.order import Options, Outcome
    from orchestrator.flows.status import BootTuning, Status
    from orchestrator.flows.target import Target

Hide = Callable[[Sequence[str]], None]

_REACHING = 75.0
"""Seconds that a login may take at the worst before its own deadlines end it (:class:`orchestrator.remote.endpoint.Deadlines`)."""
_STATUS, _SHORT, _DOCTOR, _PREFLIGHT = 30.0, 60.0, 240.0, 780.0
"""Seconds beside the login for the whole answer."""


def status_view(inventory: Inventory) -> View[Status | BootTuning]:
    """What runs, how it is, and what tunes the host at boot; of a host without a service the last alone."""
    from orchestrator.cli.documents import reading
    from orchestrator.flows import status

    def ask(subject: Subject, ways: Ways) -> Status | BootTuning:
        if subject.target is None:
            return status.host_status(inventory, subject.host, ways.open)
        return status.status(subject.target, ways.connect, ways.open)

    def parts(found: Status | BootTuning) -> tuple[SurveyReport | None, BootTuning]:
        return (found.survey, found.boot) if isinstance(found, status.Status) else (None, found)

    def document(subject: Subject, found: Status | BootTuning) -> Any:
        place = subject.target.place if subject.target is not None else None
        return reading.Status(str(inventory.directory), subject.host.name, place, subject.service, *parts(found))

    return View(
        Question("status", ask, _REACHING + _STATUS),
        fleet_rows.STATUS_COLUMNS,
        lambda _, found: fleet_rows.status_row(*parts(found)),
        document,
        numbers=frozenset({"gpus"}),
    )


def doctor_view(inventory: Inventory, backend: str | None, hide: Hide) -> View[Diagnosis]:
    """A diagnosis of each, for `backend` or each service's own."""
    from orchestrator.cli.documents.diagnosis import Doctor
    from orchestrator.flows.doctor import doctor

    named = inventory.backends_named(backend) if backend is not None else None

    def ask(subject: Subject, ways: Ways) -> Diagnosis:
        own = [] if subject.target is None else inventory.backends_named(subject.target.service.backend or "auto")
        profiles = named if named is not None else own
        return doctor(inventory, subject.host, subject.target, profiles, Hiding(hide), ways.connect, ways.open)

    return View(
        Question("doctor", ask, _REACHING + _DOCTOR),
        fleet_rows.DOCTOR_COLUMNS,
        lambda _, found: fleet_rows.doctor_row(found),
        lambda subject, found: Doctor(subject.host.name, subject.service, found),
        exit_code=lambda found: found.exit_code,
        numbers=frozenset(fleet_rows.DOCTOR_COLUMNS),
    )


def preflight_view(profiles: Sequence[Backend], name: str, options: Options, hide: Hide) -> View[Outcome]:
    """Whether a relaunch of each could go well."""
    from orchestrator.cli.documents.changes import Change
    from orchestrator.flows.preflight import preflight

    def ask(subject: Subject, ways: Ways) -> Outcome:
        return preflight(_target(subject), profiles, name, options, Hiding(hide), ways.connect, ways.open)

    return View(
        Question("preflight", ask, _REACHING + _PREFLIGHT),
        fleet_rows.PREFLIGHT_COLUMNS,
        lambda _, found: fleet_rows.preflight_row(found.plan),
        lambda subject, found: Change(
            subject.host.name, _target(subject).service.name, found.plan, result=None, hooks=[], notice=None, see=[]
        ),
        numbers=frozenset(fleet_rows.PREFLIGHT_COLUMNS[1:]),
    )


def boot_view(action: str) -> View[BootReport]:
    """What starts each server again, or after `action`."""
    from orchestrator.agent.wire_launches import BootAction
    from orchestrator.cli.documents.changes import Boot
    from orchestrator.flows.boot import boot

    return View(
        Question("boot", lambda subject, ways: boot(_target(subject), action, ways.connect), _REACHING + _SHORT),
        fleet_rows.BOOT_COLUMNS,
        lambda _, report: fleet_rows.boot_row(report),
        lambda subject, report: Boot(subject.host.name, _target(subject).service.name, report),
        exit_code=lambda report: 1 if action == BootAction.ON and report.verdicts else 0,
    )


def lock_view() -> View[LockStatus]:
    """Who keeps changes of each service away."""
    from orchestrator.cli.documents.changes import Lock
    from orchestrator.flows.locks import status

    return View(
        Question("lock.status", lambda subject, ways: status(_target(subject), ways.connect), _REACHING + _SHORT),
        fleet_rows.LOCK_COLUMNS,
        lambda subject, found: fleet_rows.lock_row(_target(subject).service.name, found),
        lambda subject, found: Lock(subject.host.name, _target(subject).service.name, found),
    )


def _target(subject: Subject) -> Target:
    """The service of one that was chosen for having one."""
    assert subject.target is not None
    return subject.target
