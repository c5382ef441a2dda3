"""profile: have the server trace a few decode steps, and keep the traces."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import wire
from orchestrator.agent.wire_budget import FilePiece, ProfileReport, ProfileRequest
from orchestrator.errors import AgentError
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Connect, Target, ask_with_progress, connect, decoded
from orchestrator.results.profile import Profiled, rank_profile
from orchestrator.results.trace import TraceError, read_trace

_MORE_SECONDS = 120.0
"""Beyond the bound of the tracing itself: the profiler's end, the files' way here."""

Keep = Callable[[str, bytes], None]
"""Appends to a file of the run, by its name."""


@dataclass(frozen=True)
class ProfileOptions:
    """What is traced, and for how long at most (seconds)."""

    batch_size: int = 1
    steps: int = 8
    input_tokens: int = 256
    seconds: float = 240.0


def profile(target: Target, options: ProfileOptions, observer: Observer, keep: Keep, connect: Connect = connect) -> ProfileReport:
    """Have the server trace itself, and keep its files as they come.

    Raises:
        RefusedError: there is no server, it can't be traced, or no trace came.
        LockedError: an order is at work on the service.
        UnreachableError: the place can't be reached, trusted or used.
    """
    request = ProfileRequest(
        service=target.service.name,
        state_root=target.state_root,
        port=target.service.port,
        batch_size=options.batch_size,
        steps=options.steps,
        input_tokens=options.input_tokens,
        seconds=options.seconds,
    )
    with connect(target) as agent:
        what = f"{options.steps} decode steps of {target.service.name} in {target.place}, batch {options.batch_size}"
        observer.note(f"tracing {what}, for at most {options.seconds:g} s")
        return ask_with_progress(
            agent, "profile", request, ProfileReport, options.seconds + _MORE_SECONDS, observer, lambda event: _keep(event, keep)
        )


def _keep(event: wire.Event, keep: Keep) -> None:
    piece = decoded(FilePiece, event)
    keep(piece.name, _content(piece))


def _content(piece: FilePiece) -> bytes:
    try:
        return base64.b64decode(piece.data, validate=True)
    except binascii.Error as error:
        raise AgentError(f"a piece of {piece.name} can't be understood: {error}") from error


def analysed(report: ProfileReport, folder: Path) -> Profiled:
    """Read the kept traces. One that can't be read, or whose steps are others than ours, is a doubt; the others still count."""
    traces, doubts = [], list(report.disturbed)
    for name in report.files:
        try:
            traces.append(read_trace(folder / Path(name).name, name))
        except TraceError as error:
            doubts.append(str(error))
    sizes = {step.batch_size for trace in traces for step in trace.steps} - {None, report.batch_size}
    if sizes:
        doubts.append(
            f"steps of batch {', '.join(map(str, sorted(size for size in sizes if size)))} are in the trace: others' requests ran"
        )
    if not traces and not doubts:
        doubts.append("no trace came")
    return Profiled(doubts=doubts, report=report, ranks=[rank_profile(trace) for trace in traces])
