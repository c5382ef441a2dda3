"""The screen of a decode timing. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from orchestrator.agent.wire_measure import MOST_DIFFERENCE, BatchTiming, Covariates, GpuSeries, Interval, MeasureReport, OwnWord
from orchestrator.cli.blocks import Block, Line, Table, Tone, indented, verdict_blocks
from orchestrator.cli.text import duration
from orchestrator.flows.measure import Measured, reasons, told_knobs
from orchestrator.results.floor import Given, floor_document, floors, report_lines
from orchestrator.results.weight_formats import NotCountableError

_COLUMNS = ("batch", "ms a token", "tok/s a stream", "tok/s in all", "first token, ms")


def measure_blocks(service: str, place: str, measured: Measured) -> list[Block]:
    """What was timed, what it depends on, and what speaks against it."""
    report = measured.report
    blocks: list[Block] = [
        Line(f"decode of {service} in {place}", "strong"),
        Line(f"  {report.input_tokens} tokens in, {report.output_tokens} out, {_sampling(report)}, over {report.endpoint}"),
        Line(),
        Table(
            list(_COLUMNS),
            [_row(batch) for batch in report.batches],
            right=frozenset(_COLUMNS),
            notes=[_note(batch) for batch in report.batches],
            tones=tuple((index, tone) for index, batch in enumerate(report.batches) for tone in [_tone(batch)] if tone),
        ),
        Line(f"  medians, with the interval that holds them in 95 % of cases{_less_sure(report)}", "quiet"),
    ]
    told = [sentence for batch in report.batches for sentence in batch.disagreements]
    remarks = [f"batch {batch.batch_size}: {remark}" for batch in report.batches for remark in batch.remarks]
    blocks += [Line(), *indented(told, "warn")] if told else []
    blocks += [Line(), Line("what it depends on", "strong"), *indented(covariate_lines(report.covariates))]
    blocks += indented([*remarks, *report.remarks], "quiet")
    return [*blocks, *verdict_blocks(reasons(measured.report.invalid))]


def _sampling(report: MeasureReport) -> str:
    temperature = report.sampling.get("temperature")
    return f"temperature {temperature:g}" if temperature else "greedy"


def _less_sure(report: MeasureReport) -> str:
    counted = [batch.time_per_output_token for batch in report.batches if batch.time_per_output_token is not None]
    least = min((item.coverage for item in counted), default=1.0)
    return f"; of {min(item.count for item in counted)} repeats only in {least:.0%}" if least < 0.95 else ""


def _row(batch: BatchTiming) -> list[str]:
    return [
        str(batch.batch_size),
        _interval(batch.time_per_output_token, 1000.0, 2),
        "-" if batch.tokens_per_second_per_stream is None else f"{batch.tokens_per_second_per_stream.median:.1f}",
        _interval(batch.tokens_per_second, 1.0, 1),
        _interval(batch.time_to_first_token, 1000.0, 0),
    ]


def _note(batch: BatchTiming) -> str:
    """What has no interval: gaps in the median of the repeats, and how far the server's own word is off."""
    if batch.skipped is not None:
        return batch.skipped
    gaps = [(item.gaps.p50, item.gaps.p90, item.gaps.p99, item.gaps.max) for item in batch.repeats]
    middle = [f"{statistics.median(values) * 1000:.1f}" for values in zip(*gaps, strict=True)]
    named = ", ".join(f"{name} {value}" for name, value in zip(("p50", "p90", "p99", "max"), middle, strict=True))
    return f"gaps {named} ms; {_own(batch.own_words)}"


def _interval(value: Interval | None, scale: float, digits: int) -> str:
    if value is None:
        return "-"
    median, low, high = (f"{part * scale:.{digits}f}" for part in (value.median, value.low, value.high))
    return f"{median} ({low}-{high})"


def _own(words: Sequence[OwnWord]) -> str:
    if not words:
        return "the server says nothing that can be compared"
    worst = max(words, key=lambda word: abs(word.difference))
    return f"the server says {worst.time_per_output_token * 1000:.2f} ms a token, {worst.difference:+.1%} ({worst.source})"


def _tone(batch: BatchTiming) -> Tone:
    if batch.skipped is not None:
        return "bad"
    return "warn" if any(abs(word.difference) > MOST_DIFFERENCE for word in batch.own_words) else ""


def covariate_lines(found: Covariates) -> list[str]:
    """What the numbers depend on, a line each; what is not known is left out."""
    versions = [f"SGLang {found.sglang or 'unknown'}", *(f"{name} {value}" for name, value in _main_packages(found).items())]
    system = [f"kernel {found.kernel}", f"driver {found.driver}" if found.driver else "no NVIDIA driver"]
    kernels = {**found.requested_kernels, **{f"{name} (by its log)": value for name, value in found.resolved_kernels.items()}}
    lines = [", ".join(versions), ", ".join(system), *_launch(found)]
    lines += ["kernels: " + ", ".join(f"{name} {value}" for name, value in kernels.items())] if kernels else []
    lines += gpu_lines(found.gpus) or [f"GPUs: {found.gpu_problem or 'none was sampled'}"]
    knobs = told_knobs(found.knobs)
    lines += [f"knobs: {', '.join(knobs)}"] if knobs else []
    mps = next((fact.value for fact in found.facts if fact.name == "mps"), None)
    placed = [f"processors {found.cpuset}" if found.cpuset else "", f"MPS {'on' if mps else 'off'}" if mps is not None else ""]
    return [*lines, ", ".join(filter(None, placed))]


def _main_packages(found: Covariates) -> dict[str, str]:
    wanted = ("torch", "flashinfer_python", "triton", "sgl_kernel", "sglang_kernel")
    shown = {name: found.packages[name] for name in wanted if name in found.packages}
    return {**shown, **({"CUDA": found.cuda} if found.cuda else {})}


def _launch(found: Covariates) -> list[str]:
    launch = f"launch {found.launch_id}" if found.launch_id else f"process {found.main_pid}, not ours"
    parts = [f"backend {found.backend}" if found.backend else "", launch]
    parts.append(f"{duration(found.age)} after its start" if found.age is not None else "")
    if found.cold_caches is not None:
        parts.append(f"cold caches: {'; '.join(found.cold_caches)}" if found.cold_caches else "warm caches")
    if found.max_total_num_tokens is not None:
        than = f" (before: {found.baseline_capacity})" if found.baseline_capacity else ""
        parts.append(f"KV cache of {found.max_total_num_tokens} tokens{than}")
    return [", ".join(filter(None, parts))]


def gpu_lines(gpus: Sequence[GpuSeries]) -> list[str]:
    """GPUs during the run, those of one kind together: median, lowest and highest; then what held back each."""
    lines = []
    for name in dict.fromkeys(gpu.name for gpu in gpus):
        alike = [gpu for gpu in gpus if gpu.name == name]
        parts = [f"GPU {', '.join(str(gpu.index) for gpu in alike)} {name}"]
        parts += [_range([gpu.sm_clock for gpu in alike], "MHz"), _range([gpu.power for gpu in alike], "W")]
        parts += [_range([gpu.temperature for gpu in alike], "°C"), *_links(alike)]
        lines.append(", ".join(filter(None, parts)))
    for gpu in gpus:
        held = [f"{name} in {count} of {gpu.samples} samples" for name, count in sorted(gpu.reasons.items()) if name != "gpu_idle"]
        lines += [f"GPU {gpu.index}: {', '.join(held)}"] if held else []
    return lines


def _range(series: Sequence[list[float] | None], unit: str) -> str:
    known = [values for values in series if values]
    if not known:
        return ""
    low, high = min(values[0] for values in known), max(values[2] for values in known)
    median = f"{statistics.median(values[1] for values in known):.0f} {unit}"
    return median if low == high else f"{median} ({low:.0f}-{high:.0f})"


def _links(gpus: Sequence[GpuSeries]) -> list[str]:
    found = [f"PCIe {gpu.link_generation[1]:.0f} x{gpu.link_width[1]:.0f}" for gpu in gpus if gpu.link_generation and gpu.link_width]
    return [" | ".join(dict.fromkeys(found))] if found else []


def floor_data(report: MeasureReport, given: Given) -> dict[str, object]:
    """The same as data: ``batches``, or the ``problem`` for which there are none; and what somebody had noted."""
    problem: str | None = None
    found: list[dict[str, object]] = []
    try:
        found = floor_document(floors(report, given))
    except NotCountableError as error:
        problem = str(error)
    return {"batches": found, "problem": problem, "given": dataclasses.asdict(given)}


def floor_blocks(report: MeasureReport, given: Given) -> list[Block]:
    """How near the times come to what reading the weights must take, with every input; or why nobody can tell."""
    try:
        lines = report_lines(floors(report, given), given)
    except NotCountableError as error:
        lines = [f"{error}; floor: in the service's file can say what a token reads and the GPU's bandwidth"]
    return [Line(), Line("against the memory's speed", "strong"), *indented(lines)] if lines else []
