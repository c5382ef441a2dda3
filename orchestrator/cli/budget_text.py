"""The screen of a decode budget. Pure."""

from __future__ import annotations

from orchestrator.agent.wire_budget import AllReduceTiming, Format, GemmTiming
from orchestrator.cli.blocks import Block, Line, Table, indented, verdict_blocks
from orchestrator.results.account_rows import SUM_COLUMNS, sum_rows
from orchestrator.results.budget import Budgeted, StepBudget, budget_remarks

_FORMATS = (Format.BF16, Format.FP8, Format.NVFP4)
_PART_COLUMNS = ("multiplication", "a step", "rows", "in", "out", *(f"{name}, us" for name in _FORMATS))


def budget_blocks(service: str, place: str, found: Budgeted) -> list[Block]:
    """The sums, what they are made of, and what speaks against them."""
    timed = found.timed
    where = f"{timed.ranks} x {timed.device_name}" if timed.ranks > 1 else timed.device_name
    blocks: list[Block] = [
        Line(f"a decode step of {service} in {place}", "strong"),
        Line(f"  parts timed alone on {where} with PyTorch {timed.torch}"),
    ]
    for step in found.steps:
        blocks += [Line(), _sums(step), *indented(budget_remarks(step), "quiet")]
    blocks += [Line(), Line("what was timed", "strong")]
    blocks += [_parts(found, step) for step in found.steps[:1]]
    blocks += indented(_reduced(timed.ranks, timed.all_reduces))
    blocks += indented(missing_formats(timed.gemms), "quiet")
    blocks += indented(timed.remarks, "quiet")
    return [*blocks, *verdict_blocks(found.doubts)]


def _sums(step: StepBudget) -> Table:
    rows = [["", *row] for row in sum_rows(step)]
    rows[0][0] = str(step.batch_size)
    return Table(["batch", *SUM_COLUMNS], rows, right=frozenset({"batch", "ms", "of the step"}))


def _parts(found: Budgeted, step: StepBudget) -> Table:
    """Each multiplication of the first batch size, by format, with how near it came to reading its weights at the floor's speed."""
    rows, notes = [], []
    for part in step.parts:
        gemm = part.gemm
        timings = {item.format: item for item in found.timed.gemms if item.gemm == gemm}
        groups = f"{gemm.groups} x " if gemm.groups > 1 else ""
        times = [_time(timings.get(name)) for name in _FORMATS]
        rows.append([gemm.name, str(gemm.count), f"{groups}{gemm.rows}", str(gemm.inputs), str(gemm.outputs), *times])
        hows = [f"{name}: {item.how}" for name, item in timings.items() if item.how]
        notes.append("; ".join([f"kept in {gemm.format}", *hows]))
    return Table(list(_PART_COLUMNS), rows, right=frozenset(_PART_COLUMNS[1:]), notes=notes)


def _time(found: GemmTiming | None) -> str:
    if found is None or found.seconds is None or found.low is None or found.high is None:
        return "-"
    return f"{found.seconds * 1e6:.1f} ({found.low * 1e6:.1f}-{found.high * 1e6:.1f})"


def _reduced(ranks: int, sums: list[AllReduceTiming]) -> list[str]:
    lines = []
    for item in sums:
        size = f"{item.all_reduce.bytes / 1024:.4g} KiB over {ranks} ranks"
        if item.seconds is None or item.low is None or item.high is None:
            lines.append(f"all-reduce of {size}: {item.problem}")
        else:
            lines.append(f"all-reduce of {size}: {item.seconds * 1e6:.1f} us ({item.low * 1e6:.1f}-{item.high * 1e6:.1f})")
    more = "NCCL's; where the server has a custom all-reduce (no --disable-custom-all-reduce) its own may be faster"
    return [*lines, more] if lines else ["one rank, no all-reduce"]


def missing_formats(timings: list[GemmTiming]) -> list[str]:
    """Why formats were not timed, each once."""
    found: dict[tuple[str, str], list[str]] = {}
    for item in timings:
        if item.problem:
            found.setdefault((item.format, item.problem), []).append(item.gemm.name)
    return [f"{kind} not timed for {', '.join(dict.fromkeys(names))}: {problem}" for (kind, problem), names in found.items()]
