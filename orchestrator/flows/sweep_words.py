"""The words of a sweep. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.agent import wire
from orchestrator.agent.wire_measure import BatchTiming
from orchestrator.results.sweep import Point, Standing
from orchestrator.results.sweep_records import Seen


def serves_words(standing: Standing) -> str:
    """What serves now."""
    if standing.at_start:
        return "what served before serves again" if standing.launches else "what served before still serves"
    if standing.point is None:
        return f"what serves is none of its points: {told(standing.seen)}"
    return f"{standing.design.points[standing.point].label} serves, as launch {standing.seen.launch_id}"


def keeping_words(point: Point) -> list[str]:
    """What to write into the service's file so that the next relaunch does not take the point's arguments for drift."""
    return [f"{flag}: {str(value).lower() if isinstance(value, bool) else value}" for flag, value in point.arguments.items()]


def change_words(result: wire.OrderResult) -> str:
    dark = "" if result.dark_seconds is None else f"; dark for {result.dark_seconds:.1f} s"
    failure = f" [{result.failure.category}]" if result.failure is not None else ""
    return f"{result.state}: {result.summary}{failure}; {result.service}{dark}"


def timing_words(batches: Sequence[BatchTiming]) -> str:
    words = [
        f"batch {batch.batch_size}: {batch.time_per_output_token.median * 1000:.2f} ms a token"
        for batch in batches
        if batch.time_per_output_token is not None
    ]
    return ", ".join(words)


def told(found: Seen) -> str:
    if found.launch_id is not None:
        return f"launch {found.launch_id}"
    return f"process {found.pid}" if found.pid is not None else "another server"
