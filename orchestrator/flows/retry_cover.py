"""Whether a router's retries hold the requests that come while its only worker does not serve, and what to set so that they do. Pure.

By experiment on sglang-router 0.3.2 and smg 1.13.0 with one worker, under requests of five kinds:

- An attempt that finds nobody listening is made again by both.
- Without any worker in the list 0.3.2 tries again too, also with its only worker unhealthy or its circuit breaker open. smg answers
  503 (`no_available_workers`) or 404 (`model_not_found`) at once to all of these.
- ``--retry-max-retries`` counts all attempts, so there is one wait less. A wait is FIRST x MULTIPLIER^n, at most LONGEST, and then up to
  the jitter's share of that shorter or longer.
- A breaker that opened in the dark is closed again by the first request after its time; each failure until then begins that time anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.agent.wire_router import RouterSettings


class Kind:
    """Which router it is."""

    SGLANG_ROUTER = "sglang-router"
    SMG = "smg"


class Way:
    """What becomes of the only worker in the router's list during a switch."""

    REMOVED = "removed"
    """It is taken out before the stop and had in again once it is proven: no request is cut, and the breaker and checks forget it."""
    KEPT = "kept"
    """It stays in the list."""


_SUGGESTED_WAIT = 0.5
_MARGIN = 1.5
"""Half as much again as what is expected: a load that has to compile, or a busy machine."""
_CHECK_SECONDS = 1.0
"""SGLang's /health makes a token, and takes so long."""


@dataclass(frozen=True)
class Dark:
    """How long a router's only worker will not serve, seconds, at the longest that is expected.

    Attributes:
        dark: from its last good answer to the first of its successor.
        around: what comes to that where it is taken out of the list before and had in again after.
        unwell: from the signal on, so with the wait for running requests: for so long its /health is not 200.
    """

    dark: float
    around: float
    unwell: float


@dataclass(frozen=True)
class Coverage:
    """What the retries do for requests that come while nothing serves.

    Attributes:
        way: a value of :class:`Way`.
        covered: all of them are answered in the end, by arithmetic.
        span: seconds for which there is nothing to send them to.
        holds: seconds for which a request is tried again at least, by the worst of its jitter.
        fails_for: of that span, the first seconds, in which a request that comes is given up before its end; all of it where something
            makes the router answer at once.
        longest_wait: seconds that the one waits that comes at the worst moment, at most; None where it is given up.
        against: what stands against it, in words.
        flags: what to start the router with instead; empty where it is covered.
    """

    way: str
    covered: bool
    span: float
    holds: float
    fails_for: float
    longest_wait: float | None
    against: list[str]
    flags: list[str]


def covered(settings: RouterSettings, kind: str, way: str, dark: Dark) -> Coverage:
    """Whether a router of that kind and with these settings holds requests through a switch that is made that way."""
    span, at_once = _span(settings, kind, way, dark)
    holds = held_for(settings)
    fails_for = span if at_once else max(0.0, span - holds)
    against = list(at_once)
    if holds < span:
        against.append(f"a request is tried {settings.attempts} times within {holds:.1f} s, and there is no server for {span:.1f} s")
    return Coverage(
        way=way,
        covered=not against,
        span=span,
        holds=holds,
        fails_for=fails_for,
        longest_wait=None if against else _longest_wait(settings, span),
        against=against,
        flags=suggested(settings, kind, way, dark) if against else [],
    )


def waits(settings: RouterSettings) -> Iterator[float]:
    """The seconds from each attempt to the next, without their jitter."""
    for number in range(settings.attempts - 1):
        grown = settings.first * settings.multiplier ** min(number, 200)
        yield min(grown, settings.longest)


def held_for(settings: RouterSettings) -> float:
    """From a request's first attempt to its last, at least."""
    return (1.0 - settings.jitter) * sum(waits(settings))


def suggested(settings: RouterSettings, kind: str, way: str, dark: Dark) -> list[str]:
    """The flags with which it would be covered, half as much again included. All of them are the same words for both routers."""
    words = []
    breaks = way == Way.KEPT and settings.breaker_failures is not None
    if breaks:
        words.append("--disable-circuit-breaker")
    if way == Way.KEPT and _marks(settings, dark.unwell):
        words.append(f"--health-failure-threshold {math.ceil(_MARGIN * dark.unwell / settings.check_every) + 1}")
    span = dark.dark + (dark.around if way == Way.REMOVED else 0.0)
    attempts = math.ceil(_MARGIN * span / (_SUGGESTED_WAIT * (1.0 - min(settings.jitter, 0.9)))) + 1
    if held_for(settings) >= _MARGIN * span:
        return words
    milliseconds = f"{_SUGGESTED_WAIT * 1000:.0f}"
    return [
        f"--retry-max-retries {attempts}",
        f"--retry-initial-backoff-ms {milliseconds}",
        f"--retry-max-backoff-ms {milliseconds}",
        "--retry-backoff-multiplier 1.0",
        *words,
    ]


def _span(settings: RouterSettings, kind: str, way: str, dark: Dark) -> tuple[float, list[str]]:
    """For how long there is nobody to send a request to, and why such a request would be answered at once."""
    if way == Way.REMOVED:
        return dark.dark + dark.around, [] if kind == Kind.SGLANG_ROUTER else [f"{kind} answers at once while it has no worker"]
    at_once, more = [], 0.0
    if settings.breaker_failures is not None:
        more = settings.breaker_seconds
        if kind == Kind.SMG:
            opens = f"{settings.breaker_failures} failures in a row"
            at_once.append(f"{opens} open the worker's circuit breaker, and {kind} then answers at once, for {more:g} s")
    if _marks(settings, dark.unwell):
        more = max(more, settings.check_successes * settings.check_every + _CHECK_SECONDS)
        if kind == Kind.SMG:
            after = f"{settings.check_failures} failed checks, {settings.check_every:g} s apart,"
            at_once.append(f"{after} make the worker unhealthy, and {kind} then answers at once")
    return dark.dark + more, at_once


def _marks(settings: RouterSettings, unwell: float) -> bool:
    """Whether health checks may take the worker for unhealthy: the first of them may come at any moment."""
    return settings.check_failures is not None and (settings.check_failures - 1) * settings.check_every < unwell


def _longest_wait(settings: RouterSettings, span: float) -> float:
    """Of the request that comes as the span begins: the attempt before its end just misses it, and the wait after that is a long one."""
    gone = 0.0
    for wait in waits(settings):
        gone += (1.0 - settings.jitter) * wait
        if gone >= span:
            return span + (1.0 + settings.jitter) * wait
    return span
