"""The screen of a decode budget. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.agent.wire_budget import AllReduceTiming, Format, GemmTiming
from orchestrator.cli.blocks import Block, Line, Table, indented
from orchestrator.flows.budget import Budgeted
from orchestrator.results.budget import StepBudget, budget_remarks

_FORMATS = (Format.BF16, Format.FP8, Format.NVFP4)
_SUM_COLUMNS = ("batch", "what", "ms", "of the step", "")
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
    verdict = (
        [Line("not to be believed:", "bad"), *indented(found.doubts, "bad")]
        if found.doubts
        else [Line("nothing speaks against it", "good")]
    )
    return [*blocks, Line(), *verdict]


def _sums(step: StepBudget) -> Table:
    rows = [_row(step, "measured", step.step, "a token of each stream")]
    if step.floor is not None:
        rows.append(_row(step, "floor", step.floor.seconds, f"{step.floor.bytes / 1e9:.3g} GB at {step.floor.bandwidth / 1e9:.4g} GB/s"))
    else:
        rows.append(["", "floor", "-", "-", step.floor_problem])
    rows.append(_row(step, "GEMM", step.gemm, f"{sum(part.gemm.count for part in step.parts)} multiplications, reading weights included"))
    if step.all_reduce is None:
        rows.append(["", "all-reduce", "-", "-", "one rank, no all-reduce"])
    else:
        item = step.all_reduce.all_reduce
        said = step.all_reduce.problem or f"{item.count} of {item.bytes / 1024:.4g} KiB by NCCL"
        rows.append(_row(step, "all-reduce", step.reduced, said))
    cache = f"; {_ms(step.cache_floor)} of it for the KV cache at least" if step.cache_floor else ""
    rows.append(_row(step, "residual", step.residual, f"attention, norms, routing, sampling, gaps{cache}"))
    rows[0][0] = str(step.batch_size)
    return Table(list(_SUM_COLUMNS), rows, right=frozenset({"batch", "ms", "of the step"}))


def _row(step: StepBudget, what: str, seconds: float, said: str) -> list[str]:
    return ["", what, f"{seconds * 1000:.3f}", f"{seconds / step.step:.1%}".replace("%", " %"), said]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms"


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


def budget_document(found: Budgeted) -> dict[str, Any]:
    """The sums as data: seconds."""
    steps = [
        {
            "batch_size": step.batch_size,
            "step": step.step,
            "floor": None if step.floor is None else step.floor.seconds,
            "floor_problem": step.floor_problem or None,
            "gemm": step.gemm,
            "all_reduce": None if step.all_reduce is None else step.reduced,
            "residual": step.residual,
            "remarks": budget_remarks(step),
        }
        for step in found.steps
    ]
    return {"steps": steps, "not_believed": list(found.doubts)}
