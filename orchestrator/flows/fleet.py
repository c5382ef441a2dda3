"""Asking many services and hosts the same question: each has its own answer, deadline and error."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from orchestrator.errors import AgentError, InterruptedByOperatorError, OrchestratorError, UsageError
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.side_by_side import Endings, Overdue, all_of, unforeseen
from orchestrator.flows.target import Connect, Target, connect

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory, Service
    from orchestrator.remote.shared import SharedConnections

T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """What one question is about: a service, or a host that has none."""

    host: Host
    target: Target | None = None

    @property
    def service(self) -> str | None:
        return None if self.target is None else self.target.service.name

    @property
    def label(self) -> str:
        """For the screen: ``gpu1``, or ``gpu1 glm5``."""
        return self.host.name if self.target is None else f"{self.host.name} {self.target.service.name}"

    def command(self, verb: str) -> str:
        """A command line about it alone."""
        return f"fab {verb} --host {self.host.name}" if self.target is None else self.target.command(verb)


@dataclass(frozen=True)
class Ways:
    """How places are reached while many are asked."""

    connect: Connect = connect
    open: Open = open_agent


@dataclass(frozen=True)
class Answered(Generic[T]):
    """What became of one question: an answer, or why there is none."""

    subject: Subject
    answer: T | None = None
    error: OrchestratorError | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Question(Generic[T]):
    """What all are asked.

    Attributes:
        verb: for commands about one of them.
        ask: gets the answer; raises OrchestratorError.
        seconds: after which one of them is waited for no longer. It must leave time for the deadlines below it, whose words say more.
    """

    verb: str
    ask: Callable[[Subject, Ways], T]
    seconds: float


def subjects_of(inventory: Inventory, hosts: Sequence[Host], service: str | None = None) -> list[Subject]:
    """Every service on `hosts`, host by host, and those that have none; with `service` that one alone.

    Raises:
        UsageError: there is no such service, or not on these hosts.
    """
    if service is not None:
        chosen = inventory.service(service)
        if chosen.host not in [host.name for host in hosts]:
            raise UsageError(f"service {service} is on host {chosen.host}, which is none of those named", next_step="fab services")
        return [_subject(inventory, inventory.host(chosen.host), chosen)]
    by_host: dict[str, list[Service]] = {}
    for item in inventory.services.values():
        by_host.setdefault(item.host, []).append(item)
    return [
        subject
        for host in hosts
        for subject in ([_subject(inventory, host, item) for item in by_host.get(host.name, [])] or [Subject(host)])
    ]


def _subject(inventory: Inventory, host: Host, service: Service) -> Subject:
    return Subject(host, Target(inventory, host, service))


@dataclass
class Fleet(Generic[T]):
    """One question to many. `at_work` holds what is being asked, with the moment (monotonic) at which that began."""

    subjects: Sequence[Subject]
    question: Question[T]
    ways: Ways
    at_work: dict[int, float] = field(default_factory=dict)

    def ask(self, told: Callable[[int, Answered[T]], None], bound: int) -> list[Answered[T]]:
        """Ask all, at most `bound` at a time, and return what became of each in the order given; `told` hears each as it comes.

        Nothing that can happen to one of them is raised, and Ctrl-C ends the wait at once: those without an answer have an
        InterruptedByOperatorError.
        """
        subjects, seconds = self.subjects, self.question.seconds
        endings = Endings[Answered[T]](
            failed=self._failed, interrupted=lambda index, _: Answered(subjects[index], error=self._cut_off(index))
        )

        def heard(index: int, answered: Answered[T]) -> None:
            self.at_work.pop(index, None)
            told(index, answered)

        return all_of(len(subjects), self._work, endings, heard, bound, Overdue(seconds, self._overdue))

    def _work(self, index: int, permit: Callable[[], None]) -> Answered[T]:
        permit()
        begun = self.at_work[index] = time.monotonic()
        try:
            answer, error = self.question.ask(self.subjects[index], self.ways), None
        except OrchestratorError as raised:
            answer, error = None, raised
        return Answered(self.subjects[index], answer, error, time.monotonic() - begun)

    def _failed(self, index: int, error: BaseException) -> Answered[T]:
        subject = self.subjects[index]
        known = error if isinstance(error, OrchestratorError) else unforeseen(subject.label, error)
        return Answered(subject, error=known)

    def _overdue(self, index: int) -> Answered[T]:
        subject, seconds = self.subjects[index], self.question.seconds
        text = f"{subject.label}: no answer within {seconds:g} s, and it is waited for no longer"
        return Answered(subject, error=AgentError(text, next_step=subject.command(self.question.verb)), seconds=seconds)

    def _cut_off(self, index: int) -> InterruptedByOperatorError:
        subject = self.subjects[index]
        when = "it answered" if index in self.at_work else "it was asked"
        return InterruptedByOperatorError(f"{subject.label}: interrupted before {when}", next_step=subject.command(self.question.verb))


def sharing(shared: SharedConnections) -> Ways:
    """By connections that are shared where several places go through one."""
    return Ways(functools.partial(connect, shared=shared), functools.partial(open_agent, shared=shared))
