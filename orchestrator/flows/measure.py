"""measure: time the server that runs, by batch size, from next to it, with what the numbers depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, PlaceKind, TuneReport, TuneRequest
from orchestrator.agent.wire_measure import Invalid, MeasureReport, MeasureRequest
from orchestrator.errors import InvalidTimingError, OrchestratorError
from orchestrator.flows.observer import Observer
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.target import Connect, Target, ask_with_progress, connect
from orchestrator.remote.beside import Beside

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory

_MORE_SECONDS = 180.0
"""Beyond the bound of the timing itself: answers that are checked, an nvidia-smi that wakes GPUs."""
_HOST_SECONDS = 30.0

KNOBS = (
    KnobSetting("sysctl", "kernel.numa_balancing"),
    KnobSetting("cpu_governor"),
    KnobSetting("pcie_max_read_request"),
    KnobSetting("gpu_power_limit"),
    KnobSetting("gpu_clocks"),
    KnobSetting("gpu_persistence_mode"),
    KnobSetting("transparent_hugepage"),
)
"""Read with every timing, on the host and where the server runs."""


@dataclass(frozen=True)
class MeasureOptions:
    """What is timed, and for how long at most (seconds)."""

    batch_sizes: Sequence[int] = (1, 4, 16)
    input_tokens: int = 256
    output_tokens: int = 256
    repeats: int = 6
    seconds: float = 900.0
    temperature: float = 0.0


@dataclass(frozen=True)
class Measured:
    """The box's answer, with the host's knobs in it."""

    report: MeasureReport

    @property
    def valid(self) -> bool:
        return not self.report.invalid

    @property
    def exit_code(self) -> int:
        return 0 if self.valid else InvalidTimingError.exit_code


def measure(
    target: Target,
    options: MeasureOptions,
    observer: Observer,
    connect: Connect = connect,
    open: Open = open_agent,  # noqa: A002
) -> Measured:
    """Time the server. What speaks against the result is in it.

    Raises:
        RefusedError: there is no server, or it can't be timed.
        LockedError: an order is at work on the service.
        UnreachableError: the place can't be reached, trusted or used.
    """
    asked = Beside(lambda: _host_knobs(target.inventory, target.host, open)) if target.service.in_container else None
    with connect(target) as agent:
        sizes = ", ".join(map(str, options.batch_sizes))
        each = f"{options.repeats} repeats each"
        observer.note(f"timing {target.service.name} in {target.place} for at most {options.seconds:g} s: batch sizes {sizes}, {each}")
        report = ask_with_progress(agent, "measure", _request(target, options), MeasureReport, options.seconds + _MORE_SECONDS, observer)
    return Measured(_with_host(report, asked, target))


def _request(target: Target, options: MeasureOptions) -> MeasureRequest:
    from orchestrator.config import expectations, policy

    service = target.service
    return MeasureRequest(
        service=service.name,
        state_root=target.state_root,
        port=service.port,
        batch_sizes=list(options.batch_sizes),
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        repeats=options.repeats,
        seconds=options.seconds,
        temperature=options.temperature,
        policy=policy(service),
        expectations=expectations(service),
        knobs=list(KNOBS),
    )


def _host_knobs(inventory: Inventory, host: Host, open: Open) -> list[KnobResult]:  # noqa: A002
    request = TuneRequest("", list(KNOBS), state_root=host.place(container=False).state_root, place=PlaceKind.HOST)
    with open(inventory, host, PlaceKind.HOST) as agent:
        return agent.ask("tune", request, TuneReport, _HOST_SECONDS).results


def _with_host(report: MeasureReport, asked: Beside[list[KnobResult]] | None, target: Target) -> MeasureReport:
    """The report with the host's own knobs instead of what its container shows of them."""
    if asked is None:
        return report
    try:
        results = asked.result(_HOST_SECONDS)
    except (OrchestratorError, TimeoutError) as error:
        return replace(report, remarks=[*report.remarks, f"the knobs of {target.host.name} are as its container shows them: {error}"])
    return replace(report, covariates=replace(report.covariates, knobs=results))


def told_knobs(knobs: Sequence[KnobResult]) -> list[str]:
    """What could be read, as ``NAME VALUE``; a knob whose items differ tells each value once."""
    told = []
    for knob in knobs:
        values = list(dict.fromkeys(knob.before.values()))
        if knob.outcome == KnobOutcome.OBSERVED and values:
            told.append(f"{knob.setting.name or knob.setting.kind} {' | '.join(values)}")
    return told


def reasons(invalid: Sequence[Invalid]) -> list[str]:
    """Each reason once, with where it holds."""
    found: dict[tuple[str, str], list[str]] = {}
    for item in invalid:
        where = "" if item.batch_size is None else f"batch {item.batch_size}"
        found.setdefault((item.reason, item.detail), []).append(where)
    lines = []
    for (reason, detail), places in found.items():
        named = [place for place in dict.fromkeys(places) if place]
        times = f" ({len(places)} times)" if len(places) > 1 else ""
        lines.append(f"{reason}: {detail}" + (f" [{', '.join(named)}]" if named else "") + times)
    return lines
