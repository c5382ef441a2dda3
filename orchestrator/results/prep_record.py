"""What a run folder keeps of a ``prep``: host by host, as far as a list of runs tells it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.agent.codec import WireError, from_json
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, TuneReport


@dataclass(frozen=True)
class PrepHost:
    """One host. `counts` tells how many knobs ended how, `changes` what was and is; `error` why it could not be done."""

    host: str
    profile: str
    counts: dict[str, int]
    changes: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class PrepRecord:
    """`mode` is what was asked for: ``apply``, ``revert``, ``unpersist``."""

    mode: str
    exit_code: int
    hosts: tuple[PrepHost, ...]


def prep_record(data: Any) -> PrepRecord:
    """Read a ``prep.json``.

    Raises:
        ValueError: it is something else.
    """
    try:
        return PrepRecord(str(data["mode"]), int(data["exit_code"]), tuple(map(_host, data["hosts"])))
    except (KeyError, TypeError, AttributeError, WireError) as error:
        raise ValueError(f"not what prep keeps: {error!r}") from error


def _host(data: Any) -> PrepHost:
    reports = [from_json(TuneReport, place["report"]) for place in data["places"] if place["report"] is not None]
    errors = [item["error"] for item in (data, *data["places"]) if item["error"] is not None]
    return PrepHost(
        host=str(data["host"]),
        profile=str(data["profile"] or ""),
        counts={str(outcome): int(number) for outcome, number in data["counts"].items()},
        changes=tuple(_changes(result for report in reports for result in report.results)),
        error="; ".join(str(error["message"]) for error in errors),
    )


def _changes(results: Iterator[KnobResult]) -> Iterator[str]:
    for result in results:
        if result.outcome == KnobOutcome.CHANGED:
            was, now = (" | ".join(sorted(set(values.values()))) for values in (result.before, result.after))
            yield f"{result.setting.name or result.setting.kind}: {was} -> {now}"
