"""What decode timings differ in besides their figures: two sides of a comparison, or any number of timings. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.agent.command_lines import without_gate
from orchestrator.agent.wire_host import KnobOutcome
from orchestrator.agent.wire_measure import Covariates, GpuSeries
from orchestrator.results.measurements import Measurement

CLOCK_DIFFERENCE = 0.02
"""Between the sides' median clocks, as a share, before it counts as a difference."""
TEMPERATURE_DIFFERENCE = 5.0
"""Degrees Celsius."""
AGE_FACTOR = 10.0
"""Between how long the servers had been up."""
_ABSENT = "-"


@dataclass(frozen=True)
class Differing:
    """One thing, as each side has it; several values of a side with `` | ``. `asked`: what was timed itself differs."""

    name: str
    first: str
    second: str
    asked: bool = False


@dataclass(frozen=True)
class Varying:
    """One thing, as each of several sides has it, in their order. `asked`: what was timed itself differs."""

    name: str
    values: tuple[str, ...]
    asked: bool = False


Sides = Sequence[Sequence[Measurement]]


def differing(first: Sequence[Measurement], second: Sequence[Measurement]) -> list[Differing]:
    """All that differs: first how it was timed and what, then kernels and arguments, then where it ran."""
    return [Differing(item.name, item.values[0], item.values[1], item.asked) for item in varying((first, second))]


def varying(sides: Sides) -> list[Varying]:
    """What is not the same on all sides, in the order of :func:`differing`."""
    return [
        *_named(sides, _asked, asked=True),
        *_named(sides, _kernels),
        *_arguments(sides),
        *_named(sides, _surroundings),
        *_gpus(sides),
        *_age(sides),
    ]


def _named(sides: Sides, read: Callable[[Measurement], dict[str, str | None]], *, asked: bool = False) -> Iterator[Varying]:
    """What `read` names; absent on a side is a value too."""
    texts = [[read(item) for item in side] for side in sides]
    names = list(dict.fromkeys(name for side in texts for text in side for name in text))
    for name in names:
        values = tuple(_joined(text.get(name) for text in side) for side in texts)
        if len(set(values)) > 1:
            yield Varying(name, values, asked)


def _joined(values: Iterator[str | None]) -> str:
    return " | ".join(sorted({_ABSENT if value is None else value for value in values}))


def _asked(item: Measurement) -> dict[str, str | None]:
    report = item.report
    sampling = ", ".join(f"{name} {value}" for name, value in sorted(report.sampling.items()))
    gpus = [f"{_count(report.covariates.gpus, name)} x {name}" for name in dict.fromkeys(gpu.name for gpu in report.covariates.gpus)]
    return {
        "model": report.floor.model_path,
        "input tokens": _rounded(report.input_tokens),
        "output tokens": str(report.output_tokens),
        "sampling": sampling,
        "endpoint": report.endpoint,
        "GPUs": ", ".join(gpus) or None,
    }


def _rounded(tokens: int) -> str:
    """Prompts of random words vary by a few tokens."""
    return f"about {round(tokens, -1)}" if tokens >= 100 else str(tokens)


def _count(gpus: Sequence[GpuSeries], name: str) -> int:
    return sum(gpu.name == name for gpu in gpus)


def _kernels(item: Measurement) -> dict[str, str | None]:
    found = item.report.covariates
    named: dict[str, str | None] = {"backend": found.backend}
    for kind, values in (("", found.requested_kernels), (" by the log", found.resolved_kernels), (" by the server", found.echoed_kernels)):
        named.update({f"{name}{kind}": value for name, value in values.items()})
    named["KV cache, tokens"] = None if found.max_total_num_tokens is None else str(found.max_total_num_tokens)
    return named


def _arguments(sides: Sides) -> Iterator[Varying]:
    """Flags with their values. What the kernels' names say already is said once."""
    told = {name for side in sides for item in side for name in item.report.covariates.requested_kernels}

    def flags(item: Measurement) -> dict[str, str | None]:
        named = _flags(item.report.covariates)
        return {flag: value for flag, value in named.items() if flag.removeprefix("--").replace("-", "_") not in told}

    yield from _named(sides, flags)


def _flags(found: Covariates) -> dict[str, str | None]:
    """Without the port of a staged start's gate, which is another one each time and means nothing once it is open."""
    named: dict[str, str | None] = {}
    flag = ""
    for word in without_gate(found.arguments):
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            named[flag] = value
        elif flag:
            named[flag] = f"{named[flag]} {word}".strip()
    return named


def _surroundings(item: Measurement) -> dict[str, str | None]:
    found = item.report.covariates
    named: dict[str, str | None] = {
        "place": item.place,
        "SGLang": found.sglang,
        "CUDA": found.cuda,
        "driver": found.driver,
        "kernel": found.kernel,
        "processors": found.cpuset,
        "memory nodes": found.memory_nodes,
        "caches of compiled kernels": None if found.cold_caches is None else "cold" if found.cold_caches else "warm",
        "decode_log_interval": None if found.decode_log_interval is None else str(found.decode_log_interval),
        **found.packages,
        **found.variables,
    }
    for knob in found.knobs:
        if knob.outcome == KnobOutcome.OBSERVED:
            named[knob.setting.name or knob.setting.kind] = ", ".join(sorted(set(knob.before.values())))
    named.update({fact.name: str(fact.value) for fact in found.facts})
    return named


def _gpus(sides: Sides) -> Iterator[Varying]:
    """Of the GPUs as they were while it ran; clocks and temperatures only where they lie apart."""

    def reasons(item: Measurement) -> dict[str, str | None]:
        gpus = item.report.covariates.gpus
        held = sorted({reason for gpu in gpus for reason in gpu.reasons} - {"gpu_idle"})
        limits = sorted({f"{gpu.power_limit:g} W" for gpu in gpus if gpu.power_limit is not None})
        links = sorted({f"{gpu.link_generation[1]:g} x{gpu.link_width[1]:g}" for gpu in gpus if gpu.link_generation and gpu.link_width})
        named = {"clocks held down by": held, "power limit": limits, "PCIe link": links}
        return {name: ", ".join(values) or None for name, values in named.items()}

    yield from _named(sides, reasons)
    clocks = [_median(side, lambda gpu: gpu.sm_clock) for side in sides]
    if _apart(clocks, lambda low, high: high > low * (1 + CLOCK_DIFFERENCE)):
        yield Varying("GPU clock, median", _told(clocks, "MHz"))
    heat = [_median(side, lambda gpu: gpu.temperature) for side in sides]
    if _apart(heat, lambda low, high: high - low > TEMPERATURE_DIFFERENCE):
        yield Varying("GPU temperature, median", _told(heat, "°C"))


def _apart(values: Sequence[float | None], differ: Callable[[float, float], bool]) -> bool:
    """Whether the lowest and the highest `differ`. Where a side's isn't known, nothing can be said of it."""
    known = [value for value in values if value is not None]
    return len(known) > 1 and differ(min(known), max(known))


def _told(values: Sequence[float | None], unit: str) -> tuple[str, ...]:
    return tuple(_ABSENT if value is None else f"{value:.0f} {unit}" for value in values)


def _median(side: Sequence[Measurement], read: Callable[[GpuSeries], list[float] | None]) -> float | None:
    """Over the GPUs of all runs; a series holds the lowest, the median and the highest."""
    series = [read(gpu) for item in side for gpu in item.report.covariates.gpus]
    known = [values[1] for values in series if values]
    return statistics.median(known) if known else None


def _age(sides: Sides) -> Iterator[Varying]:
    ages = [[item.report.covariates.age for item in side if item.report.covariates.age] for side in sides]
    middle = [statistics.median(known) if known else None for known in ages]
    if _apart(middle, lambda low, high: high > low * AGE_FACTOR):
        yield Varying("time since start", _told(middle, "s"))
