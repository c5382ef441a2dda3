"""What a runbook's guards and checks are told by: facts of the service, findings of a diagnosis, and the checks made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from orchestrator.agent import wire
from orchestrator.agent.wire import Outcome
from orchestrator.agent.wire_host import KnobOutcome, PlaceKind
from orchestrator.config import playbook_words as words
from orchestrator.errors import NotRootError, UnreachableError
from orchestrator.flows import doctor as diagnosis
from orchestrator.flows import look
from orchestrator.flows.observer import Observer
from orchestrator.flows.prep import Open, open_agent, prep_all
from orchestrator.flows.prep_outcome import PrepOptions, is_unproven
from orchestrator.flows.rollback import launches
from orchestrator.flows.runbook import NewestOrder
from orchestrator.flows.status import BootTuning, status
from orchestrator.flows.target import Connect, Target, connect

if TYPE_CHECKING:
    from orchestrator.agent.wire_launches import LaunchesReport
    from orchestrator.flows.doctor import Diagnosis

_GRAVEST_FIRST = (Outcome.REFUSE, Outcome.UNKNOWN, Outcome.WARN, Outcome.PASS)
_OF_PLACE = ("cuda", "device_nodes", "nvidia_smi")
"""Findings that the service's place tells by itself, in a few seconds: neither a server that hangs nor the host is waited for."""
_PAUSE_SECONDS = 2.0
"""Between two looks of a check that waits."""


class View:
    """What a service's place shows now. Each thing is asked for once: make a new one when something may have changed since."""

    def __init__(self, target: Target, observer: Observer, connect: Connect = connect, open: Open = open_agent) -> None:  # noqa: A002
        self.target = target
        self.observer = observer
        self._connect = connect
        self._open = open

    def fresh(self) -> View:
        return View(self.target, self.observer, self._connect, self._open)

    @cached_property
    def survey(self) -> wire.SurveyReport:
        with self._connect(self.target) as agent:
            return look.survey(agent, self.target)

    @cached_property
    def launches(self) -> LaunchesReport:
        return launches(self.target, self._connect)

    @cached_property
    def tuned_at_boot(self) -> BootTuning:
        return status(self.target, self._connect, self._open).boot

    @cached_property
    def diagnosis(self) -> Diagnosis:
        inventory, service = self.target.inventory, self.target.service
        profiles = inventory.backends_named(service.backend or "auto")
        return diagnosis.doctor(inventory, self.target.host, self.target, profiles, self.observer, self._connect, self._open)

    @cached_property
    def place_verdicts(self) -> list[wire.Verdict]:
        """What the service's place says of itself, with CUDA asked as the server would."""
        inventory, host, service = self.target.inventory, self.target.host, self.target.service
        kind = PlaceKind.CONTAINER if service.in_container else PlaceKind.HOST
        with self._connect(self.target) as agent:
            report = look.examine(agent, look.diagnosis(inventory, host, kind, service, cuda=True))
        return self.target.advised(report.verdicts)

    def verdicts_of(self, name: str) -> list[wire.Verdict]:
        """What is said of a check.

        Raises:
            UnreachableError: the place that matters could not be asked.
            LockedError: an order is at work, beside which nothing is diagnosed.
        """
        if name in _OF_PLACE:
            return [verdict for verdict in self.place_verdicts if verdict.check == name]
        return [verdict for verdict in self.verdicts if verdict.check == name]

    @property
    def verdicts(self) -> list[wire.Verdict]:
        """All that the whole diagnosis says. Raises as :meth:`verdicts_of`."""
        if self.diagnosis.unreached:
            raise UnreachableError(f"{self.target.place} could not be asked how it is", next_step=self.target.command("doctor"))
        return [verdict for section in self.diagnosis.sections for verdict in section.verdicts]

    def drift(self) -> list[str]:
        """The knobs of the service's host that are not as its tuning profile says, or of which that can't be told.

        Raises:
            UsageError: the host has no tuning profile.
            UnreachableError, LockedError: it could not be asked.
        """
        (found,) = prep_all(self.target.inventory, [self.target.host], None, PrepOptions(write=False), lambda _: None, open=self._open)
        for error in (found.error, *(part.error for part in found.reports)):
            if error is not None and not isinstance(error, NotRootError):
                raise error
        unlike = [result for result in found.results if result.outcome in KnobOutcome.DRIFT or is_unproven(result)]
        return [f"{result.setting.name or result.setting.kind}: {result.outcome}" for result in unlike]

    def fact(self, name: str) -> str:
        """One of :data:`words.FACTS` as it reads now.

        Raises:
            UnreachableError: the place can't be reached, trusted or used.
        """
        return FACTS[name](self)

    def finding(self, name: str) -> str:
        """The gravest outcome of a check of the diagnosis, ``absent`` where it said nothing of it. Raises as :meth:`verdicts_of`."""
        found = {verdict.outcome for verdict in self.verdicts_of(name)}
        return next((outcome for outcome in _GRAVEST_FIRST if outcome in found), "absent")

    def newest_order(self) -> NewestOrder:
        """The box's newest order."""
        order = self.survey.order
        if order is None:
            return NewestOrder(None, self.fact("order"), "")
        return NewestOrder(order.order_id, self.fact("order"), order.operator)


def _backend(view: View) -> str:
    server = view.survey.server
    return "none" if server is None else server.backend or "unknown"


def _manager(view: View) -> str:
    server = view.survey.server
    return "none" if server is None else server.manager.kind


def _order(view: View) -> str:
    order = view.survey.order
    if order is None:
        return "none"
    return "at_work" if order.live else "half_done" if order.half_done else "ended"


def _comes_back(view: View) -> str:
    unit = view.survey.boot
    return "none" if unit is None else "armed" if unit.armed else "off"


def _tuned_at_boot(view: View) -> str:
    tuning = view.tuned_at_boot
    if tuning.problem is not None:
        return "unknown"
    if tuning.persistence is None:
        return "none"
    return {"active": "applied", "failed": "failed"}.get(tuning.persistence.state, "unknown")


FACTS: Mapping[str, Callable[[View], str]] = {
    "health": lambda view: view.survey.health,
    "server": lambda view: "none" if view.survey.server is None else "there",
    "backend": _backend,
    "manager": _manager,
    "order": _order,
    "lock": lambda view: "free" if view.survey.lock is None else "locked",
    "comes_back": _comes_back,
    "tuned_at_boot": _tuned_at_boot,
    "previous_launch": lambda view: "none" if view.launches.previous is None else "there",
}
"""How each of :data:`words.FACTS` is read."""


@dataclass(frozen=True)
class Checked:
    """How a check ended: what was seen, and what to type where it does not hold."""

    holds: bool
    seen: str
    evidence: Sequence[str] = field(default_factory=list)
    next_step: str | None = None
    exit_code: int = 0


def make_check(view: View, name: str, arguments: Mapping[str, str]) -> Checked:
    """Make one of :data:`words.CHECKS`; with ``within`` again and again until it holds or the time is over.

    Raises:
        UnreachableError: the place can't be reached, trusted or used (still, at the end of ``within``).
        OrchestratorError: what it asks could not be asked.
    """
    within = float(arguments.get("within", "0"))

    def once() -> Checked:
        return CHECKS[name](view.fresh(), arguments)

    def wait(state: RetryCallState) -> None:
        if state.attempt_number == 1:
            view.observer.note(f"waiting up to {within:g} s until {words.CHECKS[name].about}")

    checked = Retrying(
        stop=stop_after_delay(within),
        wait=wait_fixed(_PAUSE_SECONDS),
        before_sleep=wait,
        retry=retry_if_result(lambda result: not result.holds) | retry_if_exception_type(UnreachableError),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else None,
    )(once)
    return checked if checked.holds else dataclasses.replace(checked, exit_code=words.CHECKS[name].exit_code)


def _serves(view: View, arguments: Mapping[str, str]) -> Checked:
    health, backend, wanted = view.fact("health"), view.fact("backend"), arguments.get("backend")
    holds = health == "serving" and wanted in (None, backend)
    return Checked(holds, f"health {health}, backend {backend}", [], view.target.command("logs"))


def _nothing_serves(view: View, arguments: Mapping[str, str]) -> Checked:
    server = view.survey.server
    seen = "no server" if server is None else f"process {server.main.pid} on port {server.port}, as {server.user}"
    return Checked(server is None, seen, [], view.target.command("status"))


def _no_order(view: View, arguments: Mapping[str, str]) -> Checked:
    order = view.fact("order")
    step = {"at_work": "attach", "half_done": "resume"}.get(order)
    return Checked(step is None, f"newest change: {order}", [], view.target.command(step) if step else None)


def _finding_absent(view: View, arguments: Mapping[str, str]) -> Checked:
    name = arguments["finding"]
    outcome = view.finding(name)
    return Checked(outcome != Outcome.REFUSE, f"{name}: {outcome}", *_refusals(view, name))


def _finding_passes(view: View, arguments: Mapping[str, str]) -> Checked:
    name = arguments["finding"]
    outcome = view.finding(name)
    return Checked(outcome == Outcome.PASS, f"{name}: {outcome}", *_told(view, name))


def _nothing_refused(view: View, arguments: Mapping[str, str]) -> Checked:
    refused = list(dict.fromkeys(verdict.check for verdict in view.verdicts if verdict.outcome == Outcome.REFUSE))
    return Checked(not refused, f"refused: {', '.join(refused) or 'nothing'}", *_refusals(view, *refused))


def _told(
    view: View, *names: str, outcomes: Sequence[str] = (Outcome.REFUSE, Outcome.UNKNOWN, Outcome.WARN)
) -> tuple[list[str], str | None]:
    """The lines and the next step of what the diagnosis says under `names`."""
    found = [verdict for name in names for verdict in view.verdicts_of(name) if verdict.outcome in outcomes]
    return [verdict.detail for verdict in found], next((verdict.next_step for verdict in found if verdict.next_step), None)


def _refusals(view: View, *names: str) -> tuple[list[str], str | None]:
    return _told(view, *names, outcomes=[Outcome.REFUSE])


def _no_drift(view: View, arguments: Mapping[str, str]) -> Checked:
    unlike = view.drift()
    seen = f"{len(unlike)} knobs differ or can't be read" if unlike else "as the profile says"
    return Checked(not unlike, seen, unlike, f"fab prep --host {view.target.host.name} --plan")


def _check_comes_back(view: View, arguments: Mapping[str, str]) -> Checked:
    unit = view.survey.boot
    seen = "nothing starts it again" if unit is None else f"{unit.unit}: {'armed' if unit.armed else 'not armed'}"
    return Checked(unit is not None and unit.armed, seen, [], view.target.command("boot", "--on"))


def _previous_launch(view: View, arguments: Mapping[str, str]) -> Checked:
    found = view.launches
    return Checked(found.previous is not None, found.previous or found.why, [], view.target.command("rollback", "--list"))


CHECKS: Mapping[str, Callable[[View, Mapping[str, str]], Checked]] = {
    "serves": _serves,
    "nothing_serves": _nothing_serves,
    "no_order": _no_order,
    "finding_absent": _finding_absent,
    "finding_passes": _finding_passes,
    "nothing_refused": _nothing_refused,
    "no_drift": _no_drift,
    "comes_back": _check_comes_back,
    "previous_launch": _previous_launch,
}
"""How each of :data:`words.CHECKS` is made."""
