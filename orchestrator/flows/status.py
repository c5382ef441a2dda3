"""Reading without changing: status, logs, a light check-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.errors import AgentError, RefusedError
from orchestrator.flows import look
from orchestrator.flows.observer import Observer
from orchestrator.flows.plan import merged
from orchestrator.flows.target import Connect, Target, connect, decoded

if TYPE_CHECKING:
    from orchestrator.config import Backend


def status(target: Target, connect: Connect = connect) -> wire.SurveyReport:
    """What runs, how it is, and the newest order.

    Raises:
        UnreachableError: the place can't be reached, trusted or used.
    """
    with connect(target) as agent:
        return look.survey(agent, target)


def logs(
    target: Target,
    say: Callable[[str], None],
    *,
    lines: int = 200,
    follow: bool = False,
    launch_id: str | None = None,
    note: Callable[[str], None] = lambda _: None,
    connect: Connect = connect,
) -> wire.LogEnd:
    """Give `say` the last `lines` of a launch's log and, with `follow`, what is added to it from then on.

    A named launch is followed until it has ended, a service for ever: `note` hears that a launch has ended and the next has begun.

    Raises:
        RefusedError: there is no such launch, or it has no log.
        UnreachableError: the place can't be reached, trusted or used.
    """
    request = wire.LogRequest(target.service.name, target.state_root, launch_id, lines, follow)
    with connect(target) as agent:
        for event in agent.call("logs", request):
            if event.kind == wire.EventKind.LOG:
                say(str(event.data.get("text", "")))
            elif event.kind == wire.EventKind.PROGRESS:
                note(decoded(wire.Progress, event).detail)
            elif event.kind == wire.EventKind.RESULT:
                return decoded(wire.LogEnd, event)
    raise AgentError("the agent stopped reading the log without saying where it lies")


@dataclass(frozen=True)
class Checkup:
    """What a check-up found. `preflight` is None when it could not be asked; `problem` says why."""

    facts: wire.PlaceFacts
    survey: wire.SurveyReport
    preflight: wire.PreflightReport | None = None
    problem: str | None = None

    @property
    def verdicts(self) -> list[wire.Verdict]:
        return merged(self.survey.verdicts, self.preflight.verdicts if self.preflight is not None else [])

    @property
    def refused(self) -> bool:
        """Whether a relaunch would be refused now."""
        return self.problem is not None or any(verdict.outcome == wire.Outcome.REFUSE for verdict in self.verdicts)


def check_up(target: Target, backends: Sequence[Backend], observer: Observer, connect: Connect = connect) -> Checkup:
    """Ask everything that a relaunch asks before it changes something.

    Raises:
        UnreachableError: the place can't be reached, trusted or used.
        LockedError: another order is at work on the service.
        ConfigError: a secret can't be had.
    """
    with connect(target) as agent:
        observer.note(f"asking {target.place} who and where it is")
        facts = agent.ask("ping", wire.PingRequest(), wire.PlaceFacts)
        found = look.survey(agent, target)
        look.refuse_when_held(target, found)
        try:
            new = look.candidate(target, backends, found, observer)
        except RefusedError as error:
            return Checkup(facts, found, problem=error.message)
        return Checkup(facts, found, look.preflight(agent, target, new, backends, str(found.sglang_version)))
