"""What is about to be changed, why, what it would be by hand, and what speaks against it. Pure: built from reports."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.agent import wire
from orchestrator.agent.wire_router import RouterSettings
from orchestrator.flows.retry_cover import Coverage
from orchestrator.results.redaction import MASK

_OWN_RELEASE_SECONDS = 20.0
_SERVICE_KEYS = {"argument": "arguments", "environment": "environment", "python": "python", "user": "user"}
"""The kinds of :class:`orchestrator.agent.wire.Difference` and where a service's file says the same."""


class Origin:
    """The values of :attr:`orchestrator.agent.wire.Difference.origin`."""

    BACKEND = "backend"
    SWEEP = "sweep"
    OURS = "ours"
    INHERITED = "inherited"
    DRIFT = "drift"


class Sender:
    """The values of :attr:`NoticePlan.sender`."""

    BOX = "box"
    """The supervisor, so that it is sent whoever watches."""
    OPERATOR = "operator"
    """Whoever sees the end here."""
    NOBODY = "nobody"


@dataclass(frozen=True)
class HookPlan:
    """A command around an order: ``before`` or ``after`` it (`when`). `on_failure` is of those before it: ``refuse`` or ``warn``."""

    when: str
    command: Sequence[str]
    timeout: float
    on_failure: str = ""


@dataclass(frozen=True)
class NoticePlan:
    """A notice of an order's end. `to` is the webhook's host; `why` the box does not send it; `when` holds ``failure``, ``success``."""

    to: str
    sender: str
    why: str
    when: Sequence[str]


@dataclass(frozen=True)
class Failing:
    """How many requests are expected to fail: those that come within the dark seconds, `shortest` to `longest`.

    `request_rate` is what the server has ended a second while it was looked at; None where it has no counter (``--enable-metrics``), and
    `least` and `most` with it.
    """

    request_rate: float | None
    shortest: float
    longest: float
    least: int | None
    most: int | None


@dataclass(frozen=True)
class Held:
    """What a router does with requests while its only worker is switched.

    Attributes:
        kind: ``sglang-router`` or ``smg``.
        way: what becomes of the worker in its list: ``removed`` by the supervisor before the stop and had in again once its successor is
            proven, or ``kept``.
        why: the reason for that.
        settings: of its retries, with their source; None where nobody knows them.
        coverage: whether they hold requests for as long as is expected; None where that is not known.
        failing: those that are expected to fail where they do not.
        flags: what to start the router with where it is not covered, or not known to be.
    """

    router: str
    url: str
    kind: str
    way: str
    why: str = ""
    settings: RouterSettings | None = None
    coverage: Coverage | None = None
    failing: Failing | None = None
    flags: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """Shown before the question, kept in the run folder. Holds no secret values.

    Attributes:
        verb: a value of :class:`orchestrator.agent.wire.OrderKind`.
        place: where the server runs, for the screen.
        server: what runs now, None when nothing does.
        launch: what will run, None for a teardown.
        load: running and queued requests now, None when unknown.
        by_hand: the commands that come nearest to what the supervisor will do.
        remarks: what to know before saying yes.
        refusals: why it will not be done; empty when nothing speaks against it.
        overruled: what speaks against it and the operator has overruled.
        next_step: what to try when it is refused.
        reason: why, as the operator says.
        order_id: what the order will be called that carries it out, once it was said yes to; empty: it is named then.
        staging: whether the new server starts beside the old one, and how long it will be dark; None where there is no old one.
        changes_nothing: a healthy server would be replaced by its equal; unless that is wanted, it is one of the refusals.
        hooks: commands that are run here before and after it.
        notice: of its end, to a webhook; None where the inventory names none.
        held: what the router before it does with requests meanwhile; None where it is behind none, or has other replicas beside it.
        failing: the requests that are expected to fail where no router stands before it; None where nothing is known of them.
    """

    verb: str
    host: str
    place: str
    service: str
    policy: wire.Policy
    server: wire.ServerInfo | None = None
    launch: wire.Launch | None = None
    sglang_version: str | None = None
    load: int | None = None
    differences: Sequence[wire.Difference] = ()
    verdicts: Sequence[wire.Verdict] = ()
    by_hand: Sequence[str] = ()
    remarks: Sequence[str] = ()
    refusals: Sequence[str] = ()
    overruled: Sequence[str] = ()
    next_step: str | None = None
    gpus: Sequence[wire.Gpu] = ()
    reason: str = ""
    staging: wire.StagingPlan | None = None
    order_id: str = ""
    changes_nothing: bool = False
    hooks: Sequence[HookPlan] = ()
    notice: NoticePlan | None = None
    held: Held | None = None
    failing: Failing | None = None


def masked(launch: wire.Launch) -> wire.Launch:
    """The launch without its secret values."""
    return dataclasses.replace(launch, secrets=dict.fromkeys(launch.secrets, MASK))


def command_line(launch: wire.Launch) -> str:
    """What would start this launch by hand, as one line of shell."""
    variables = [f"{name}={value}" for name, value in sorted(launch.environment.items())]
    words = [*(["env", *variables] if variables else []), launch.python, *launch.entry, *launch.arguments]
    line = shlex.join(words)
    if launch.secrets:
        line += f"   # and {', '.join(sorted(launch.secrets))}: from a --config file of mode 600, never on the command line"
    return line


def switch_commands(server: wire.ServerInfo | None, policy: wire.Policy, launch: wire.Launch, *, staged: bool) -> list[str]:
    """What would put the launch in the server's place by hand."""
    stop = stop_commands(server, policy) if server is not None else []
    if not staged:
        return [*stop, command_line(launch)]
    gated = dataclasses.replace(launch, arguments=[*launch.arguments, "--gated-launch-port", "GATE"])
    activate = f"curl -X POST http://{launch.host}:GATE/gate/activate"
    return [f"{command_line(gated)}   # beside the old server, up to its gate", *stop, activate]


def stop_commands(server: wire.ServerInfo, policy: wire.Policy) -> list[str]:
    """What would stop this server by hand."""
    commands = []
    if server.manager.kind in {wire.ManagerKind.SYSTEMD_UNIT, wire.ManagerKind.OWN_UNIT}:
        commands.append(f"systemctl show -p Restart,KillMode {server.manager.name}   # it must not start again while we work")
    commands.append(f"kill -TERM {server.main.pid}   # it drains for up to {policy.drain:g} s, then has {policy.grace:g} s to end")
    rest = " ".join(str(member.pid) for member in server.members)
    commands.append(f"kill -KILL {rest or server.main.pid}   # only what is left of it by then")
    return commands


def refusals(
    differences: Sequence[wire.Difference],
    verdicts: Sequence[wire.Verdict],
    *,
    accept_drift: bool,
    force: bool,
    never_forced: Collection[str] = (),
) -> list[str]:
    """Say what speaks against going on.

    Args:
        accept_drift: differences that neither the profile nor this program makes are accepted.
        force: refused checks are overruled, except those whose names are in `never_forced`.
    """
    reasons = [
        f"{verdict.check}: {verdict.detail}"
        for verdict in verdicts
        if verdict.outcome == wire.Outcome.REFUSE and (not force or verdict.check in never_forced)
    ]
    drift = [difference.name for difference in differences if difference.origin == Origin.DRIFT]
    if drift and not accept_drift:
        reasons.append(
            f"the running server differs from the service beyond the backend ({', '.join(drift)}): this relaunch would revert it in passing"
        )
    return reasons


def overruled(
    differences: Sequence[wire.Difference],
    verdicts: Sequence[wire.Verdict],
    *,
    accept_drift: bool,
    force: bool,
    never_forced: Collection[str] = (),
) -> list[str]:
    """Say what would speak against going on, had the operator not overruled it; see :func:`refusals`."""
    without = refusals(differences, verdicts, accept_drift=False, force=False)
    left = refusals(differences, verdicts, accept_drift=accept_drift, force=force, never_forced=never_forced)
    return [reason for reason in without if reason not in left]


def merged(survey: Sequence[wire.Verdict], preflight: Sequence[wire.Verdict]) -> list[wire.Verdict]:
    """All verdicts; where both asked the same, the later answer."""
    later = {verdict.check for verdict in preflight}
    return [*(verdict for verdict in survey if verdict.check not in later), *preflight]


def grace_remarks(policy: wire.Policy) -> list[str]:
    """What a short grace costs. SGLang polls for the signal every 5 s and then gives its schedulers 15 s (0.5.23)."""
    if policy.grace >= _OWN_RELEASE_SECONDS:
        return []
    return [f"a grace of {policy.grace:g} s cuts the server's own release of its GPUs, which takes SGLang up to {_OWN_RELEASE_SECONDS:g} s"]


def next_step_for(
    differences: Sequence[wire.Difference], verdicts: Sequence[wire.Verdict], never_forced: Collection[str] = ()
) -> str | None:
    """What to try after a refusal; None when nothing was refused."""
    refused = [verdict for verdict in verdicts if verdict.outcome == wire.Outcome.REFUSE]
    advice = next((verdict.next_step for verdict in refused if verdict.next_step), None)
    if advice is not None:
        return advice
    if any(verdict.check not in never_forced for verdict in refused):
        return "mend it, or give --force to overrule it"
    if any(difference.origin == Origin.DRIFT for difference in differences):
        return f"{_where_drift_belongs(differences)}; or give --accept-drift to let it go"
    return None


def _where_drift_belongs(differences: Sequence[wire.Difference]) -> str:
    """Which key of the service's file would keep each difference."""
    drift = [difference for difference in differences if difference.origin == Origin.DRIFT]
    parts = [
        f"{', '.join(names)} under `{key}:`"
        for kind, key in _SERVICE_KEYS.items()
        if (names := [difference.name for difference in drift if difference.kind == kind])
    ]
    return f"to keep what runs now, set in the service's file {' and '.join(parts)}"
