"""The time that a decode step can't be below: bytes read by each GPU over its memory bandwidth. And what was measured against it. Pure.

Both numbers come from the service's YAML or are derived, and each is shown with its source: a floor is worth what its inputs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from orchestrator.agent.wire_measure import FloorInputs, MeasureReport
from orchestrator.config.models import Service
from orchestrator.results.memory_bandwidths import published_bandwidth
from orchestrator.results.model_reads import Read, Step, count_reads
from orchestrator.results.weight_formats import NotCountableError

GIGABYTE = 1e9
MOST_DIFFERENCE = 0.05
"""Between the weights as counted and the files' size, or between two ceilings, before it is said."""


@dataclass(frozen=True)
class Given:
    """What somebody has written down for a service.

    Attributes:
        gigabytes_per_token: read by each GPU for a token of a single stream, in 10^9 bytes.
        memory_bandwidth: of one GPU, GB/s.
        tokens_per_second: a ceiling for a single stream, to be held against what these make.
        source: where that was written.
    """

    gigabytes_per_token: float | None = None
    memory_bandwidth: float | None = None
    tokens_per_second: float | None = None
    source: str = "the service's file"

    @classmethod
    def of(cls, service: Service) -> Given:
        """What its YAML says under ``floor:``."""
        said = service.floor
        return cls(said.gigabytes_per_token, said.memory_bandwidth, said.tokens_per_second, f"floor: of the service {service.name}")


@dataclass(frozen=True)
class Floor:
    """Of one decode step, in which each stream gets a token. `bandwidth` is bytes a second of one GPU."""

    step: Step
    reads: tuple[Read, ...]
    reads_source: str
    bandwidth: float
    bandwidth_source: str
    remarks: tuple[str, ...] = ()

    @property
    def bytes(self) -> float:
        return sum(read.bytes for read in self.reads)

    @property
    def seconds(self) -> float:
        return self.bytes / self.bandwidth

    @property
    def tokens_per_second(self) -> float:
        """Of one stream."""
        return 1 / self.seconds

    def efficiency(self, time_per_output_token: float) -> float:
        """The share of a measured time (seconds) that reading must take; above 1, an input is wrong or several tokens come a step."""
        return self.seconds / time_per_output_token


def floor(inputs: FloorInputs, given: Given, batch_size: int, context: int) -> Floor:
    """The floor at a batch size, with `context` tokens in each stream's cache.

    Raises:
        NotCountableError: a number is missing that nobody has written down either; the message says which.
    """
    bandwidth, bandwidth_source = _bandwidth(inputs, given)
    step = Step(batch_size, context, inputs.tensor_parallel)
    if given.gigabytes_per_token is not None:
        remarks: tuple[str, ...] = (
            () if batch_size == 1 else (f"at least: {batch_size} streams read no less than the one that {given.source} is about",)
        )
        reads = (Read("all", given.gigabytes_per_token * GIGABYTE, given.source),)
        return Floor(step, reads, given.source, bandwidth * GIGABYTE, bandwidth_source, remarks)
    if not inputs.config:
        raise NotCountableError("the model's config.json could not be read")
    if inputs.data_parallel > 1:
        raise NotCountableError("with data parallelism it is not known what each GPU holds of attention")
    counted = count_reads(inputs.config, step, inputs.quantization, inputs.kv_cache_dtype)
    remarks = (*counted.remarks, *_against_files(counted.weight_bytes, inputs), *_unread(inputs))
    return Floor(step, counted.reads, inputs.config_source or "config.json", bandwidth * GIGABYTE, bandwidth_source, remarks)


@dataclass(frozen=True)
class Floored:
    """A batch size's floor beside its measured time (seconds)."""

    batch_size: int
    floor: Floor
    time_per_output_token: float

    @property
    def efficiency(self) -> float:
        return self.floor.efficiency(self.time_per_output_token)


def floors(report: MeasureReport, given: Given) -> list[Floored]:
    """The floor of each batch size that was timed, with the context that its streams had half-way.

    Raises:
        NotCountableError: see :func:`floor`.
    """
    context = report.input_tokens + report.output_tokens // 2
    return [
        Floored(batch.batch_size, floor(report.floor, given, batch.batch_size, context), batch.time_per_output_token.median)
        for batch in report.batches
        if batch.time_per_output_token is not None
    ]


def _bandwidth(inputs: FloorInputs, given: Given) -> tuple[float, str]:
    if given.memory_bandwidth is not None:
        return given.memory_bandwidth, given.source
    names = list(dict.fromkeys(inputs.gpu_names))
    known = [published_bandwidth(name) for name in names]
    found = [row for row in known if row is not None]
    if not names or len(found) < len(names):
        unknown = next((name for name, row in zip(names, known, strict=True) if row is None), "the GPU")
        raise NotCountableError(f"the memory bandwidth of {unknown} is not known")
    slowest = min(found, key=lambda row: row.gigabytes_per_second)
    return slowest.gigabytes_per_second, slowest.told


def _against_files(counted: float, inputs: FloorInputs) -> list[str]:
    """Whether the config was understood: all weights as counted, held against the files."""
    if not inputs.weight_bytes or abs(counted / inputs.weight_bytes - 1) <= MOST_DIFFERENCE:
        return []
    files = f"{inputs.weight_bytes / GIGABYTE:.4g} GB by {inputs.weight_source or 'the files'}"
    return [f"not to be relied on: the config makes {counted / GIGABYTE:.4g} GB of weights, and they are {files}"]


def _unread(inputs: FloorInputs) -> list[str]:
    """Lists of a quantization that were too long to be looked at."""
    found = [fact for fact in inputs.facts if "quantization_config" in fact.name or "compression_config" in fact.name]
    return [f"not to be relied on: {fact.name} was {fact.value} ({fact.source})" for fact in found]


def floor_document(found: Sequence[Floored]) -> list[dict[str, object]]:
    """Each batch size's floor as data: seconds, bytes of one GPU, bytes a second."""
    return [
        {
            "batch_size": item.batch_size,
            "context": item.floor.step.context,
            "ranks": item.floor.step.ranks,
            "seconds": item.floor.seconds,
            "bytes": item.floor.bytes,
            "reads": [asdict(read) for read in item.floor.reads],
            "reads_source": item.floor.reads_source,
            "bandwidth": item.floor.bandwidth,
            "bandwidth_source": item.floor.bandwidth_source,
            "efficiency": item.efficiency,
            "remarks": list(item.floor.remarks),
        }
        for item in found
    ]


def floor_lines(found: Floor, time_per_output_token: float | None = None, noted: Given | None = None) -> list[str]:
    """The floor, what was measured against it (seconds), and a ceiling that somebody has noted, a sentence each; then the inputs."""
    size, speed = f"{found.bytes / GIGABYTE:.3g} GB a GPU", f"{found.bandwidth / GIGABYTE:.4g} GB/s"
    rate = f"{found.tokens_per_second:.4g} tok/s a stream"
    lines = [f"floor {_milliseconds(found.seconds)} a token ({rate}): {size} at {speed}"]
    if time_per_output_token is not None:
        share = found.efficiency(time_per_output_token)
        measured = f"{_milliseconds(time_per_output_token)} ({1 / time_per_output_token:.2f} tok/s)"
        lines.append(f"measured {measured}: {_percent(share)} of the floor's speed")
        if share > 1:
            lines.append("faster than the floor: an input is wrong, or a step makes several tokens")
    if noted is not None and found.step.batch_size == 1:
        lines += noted_lines(found, noted, time_per_output_token)
    lines += [f"{read.name} {read.bytes / GIGABYTE:.3g} GB ({read.how})" for read in found.reads]
    lines.append(f"bytes from {found.reads_source}; bandwidth from {found.bandwidth_source}")
    return [*lines, *found.remarks]


def report_lines(found: Sequence[Floored], given: Given) -> list[str]:
    """The smallest batch size with all its inputs, the others with what comes of them."""
    if not found:
        return []
    first, *others = sorted(found, key=lambda item: item.batch_size)
    whole = floor_lines(first.floor, first.time_per_output_token, given)
    lines = [f"batch {first.batch_size}: {whole[0]}", *whole[1:]]
    for item in others:
        reached = f"measured {_milliseconds(item.time_per_output_token)}, {_percent(item.efficiency)} of the floor's speed"
        lines.append(
            f"batch {item.batch_size}: floor {_milliseconds(item.floor.seconds)}, {item.floor.bytes / GIGABYTE:.3g} GB a GPU; {reached}"
        )
    return lines


def noted_lines(found: Floor, noted: Given, time_per_output_token: float | None) -> Sequence[str]:
    """What a noted ceiling would mean, where it is not this floor's: which bytes or which bandwidth it takes."""
    ceiling = noted.tokens_per_second
    if ceiling is None or abs(ceiling / found.tokens_per_second - 1) <= MOST_DIFFERENCE:
        return []
    would = "" if time_per_output_token is None else f", of which this would be {_percent(1 / time_per_output_token / ceiling)}"
    size, speed = found.bytes / GIGABYTE, found.bandwidth / GIGABYTE
    takes = f"{speed / ceiling:.3g} GB at {speed:.4g} GB/s, or {size * ceiling:.0f} GB/s for {size:.3g} GB"
    said = f"{ceiling:.4g} tok/s was noted in {noted.source}{would}"
    return [f"{said}: that is {_milliseconds(1 / ceiling)} a token, which takes {takes}: one of these numbers is wrong"]


def _milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")
