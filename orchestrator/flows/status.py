"""Reading without changing: status and logs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire_host import Persistence, PlaceKind, TuneReport, TuneRequest
from orchestrator.agent.wire_status import StatusReport, StatusRequest
from orchestrator.errors import AgentError, OrchestratorError
from orchestrator.flows import look
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.target import Agent, Connect, Target, connect, decoded
from orchestrator.remote.beside import Beside

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory

BOOT_SECONDS = 15.0
"""For the host's own answer: what systemd and its journal say of one unit."""
RANK_SECONDS = 15.0
"""How much longer than for the node that is asked first the status waits for the others."""
HOST_SECONDS = 2.0
"""How much longer than for the service's place the status waits for the host."""


@dataclass(frozen=True)
class BootTuning:
    """What applies a tuning profile when the host boots. `problem` says why that isn't known; nothing of both: nothing is applied."""

    host: str
    persistence: Persistence | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Status:
    """The service's place, and its host; of a service over several nodes also the other nodes."""

    survey: wire.SurveyReport
    boot: BootTuning
    ranks: Sequence[RankStatus] = ()


@dataclass(frozen=True)
class RankStatus:
    """Another node of a service over several. `survey` is None where it can't be asked, and `problem` says why."""

    rank: int
    host: str
    place: str
    survey: wire.SurveyReport | None = None
    problem: str | None = None


def status(target: Target, connect: Connect = connect, open: Open = open_agent) -> Status:  # noqa: A002
    """What runs, how it is, the newest order, and what tunes the host when it boots.

    Raises:
        UnreachableError: the service's place can't be reached, trusted or used. Of the host, and of other nodes, that is part of the
            answer.
    """
    others = [part for part in target.parts() if part.rank != target.rank]
    asked = [Beside(functools.partial(_rank_status, part, connect)) for part in others]
    found = _status(target, connect, open)
    return dataclasses.replace(found, ranks=[_settled_rank(one, part) for one, part in zip(asked, others, strict=True)])


def _rank_status(part: Target, connect: Connect) -> RankStatus:
    with connect(part) as agent:
        return RankStatus(part.rank, part.host.name, part.place, look.survey(agent, part))


def _settled_rank(asked: Beside[RankStatus], part: Target) -> RankStatus:
    try:
        return asked.result(RANK_SECONDS)
    except OrchestratorError as error:
        return RankStatus(part.rank, part.host.name, part.place, problem=error.message)
    except TimeoutError as error:
        return RankStatus(part.rank, part.host.name, part.place, problem=str(error))


def _status(target: Target, connect: Connect, open: Open) -> Status:  # noqa: A002
    if not target.service.in_container:
        with connect(target) as agent:
            return _in_one(agent, target)

    def ask_host() -> TuneReport:
        with open(target.inventory, target.host, PlaceKind.HOST) as agent:
            return _boot_tuning(agent, target.host)

    asked = Beside(ask_host)
    with connect(target) as agent:
        found = look.survey(agent, target)
    return Status(found, _settled(asked, target))


def host_status(inventory: Inventory, host: Host, open: Open = open_agent) -> BootTuning:  # noqa: A002
    """What tunes a host without a service when it boots.

    Raises:
        UnreachableError: it can't be reached, trusted or used.
    """
    with open(inventory, host, PlaceKind.HOST) as agent:
        return BootTuning(host.name, _boot_tuning(agent, host).persistence)


def _in_one(agent: Agent, target: Target) -> Status:
    """Of a service on the host itself both are asked at once: a login shell and a Python more would cost more than the answer."""
    request = StatusRequest(look.survey_request(target), _tune_request(target.host))
    report = agent.ask("status", request, StatusReport, look.SURVEY_SECONDS)
    host = target.host.name
    if report.tuning is None:
        return Status(report.survey, BootTuning(host, problem=f"{host}: {report.problem}"))
    return Status(report.survey, BootTuning(host, report.tuning.persistence))


def _boot_tuning(agent: Agent, host: Host) -> TuneReport:
    return agent.ask("tune", _tune_request(host), TuneReport, BOOT_SECONDS)


def _tune_request(host: Host) -> TuneRequest:
    return TuneRequest("", [], state_root=host.place(container=False).state_root, place=PlaceKind.HOST)


def _settled(asked: Beside[TuneReport], target: Target) -> BootTuning:
    try:
        return BootTuning(target.host.name, asked.result(HOST_SECONDS).persistence)
    except OrchestratorError as error:
        return BootTuning(target.host.name, problem=error.message)
    except TimeoutError as error:
        return BootTuning(target.host.name, problem=f"{target.host.name}: {error}")


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
