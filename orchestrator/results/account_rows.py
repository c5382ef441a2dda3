"""The tables of an account of a decode step, as text: the same on the screen and on a report's page. Pure."""

from __future__ import annotations

from orchestrator.results.budget import StepBudget
from orchestrator.results.kernel_classes import CLASSES, COMMUNICATION, OTHER
from orchestrator.results.profile import Profiled, RankProfile

SUM_COLUMNS = ("what", "ms", "of the step", "made of")
CLASS_COLUMNS = ("class", "ms", "of the step", "launches", "most of it")
_NAMED = 2

Row = list[str]


def sum_rows(step: StepBudget) -> list[Row]:
    """The measured step, its floor, its parts and what is left, in :data:`SUM_COLUMNS`."""
    rows = [_sum_row(step, "measured", step.step, "a token of each stream")]
    if step.floor is not None:
        said = f"{step.floor.bytes / 1e9:.3g} GB at {step.floor.bandwidth / 1e9:.4g} GB/s"
        rows.append(_sum_row(step, "floor", step.floor.seconds, said))
    else:
        rows.append(["floor", "-", "-", step.floor_problem])
    count = sum(part.gemm.count for part in step.parts)
    rows.append(_sum_row(step, "GEMM", step.gemm, f"{count} multiplications, reading weights included"))
    if step.all_reduce is None:
        rows.append(["all-reduce", "-", "-", "one rank, no all-reduce"])
    else:
        item = step.all_reduce.all_reduce
        said = step.all_reduce.problem or f"{item.count} of {item.bytes / 1024:.4g} KiB by NCCL"
        rows.append(_sum_row(step, "all-reduce", step.reduced, said))
    cache = f"; {milliseconds(step.cache_floor)} ms of it for the KV cache at least" if step.cache_floor else ""
    rows.append(_sum_row(step, "residual", step.residual, f"attention, norms, routing, sampling, gaps{cache}"))
    return rows


def _sum_row(step: StepBudget, what: str, seconds: float, said: str) -> Row:
    return [what, milliseconds(seconds), share(seconds, step.step), said]


def class_rows(rank: RankProfile) -> list[Row]:
    """Each class that has something, then what makes their sum the step (overlap, gaps), then the step; in :data:`CLASS_COLUMNS`."""
    rows = []
    for name in CLASSES:
        found = rank.classes.get(name)
        if found is not None:
            rows.append(_class_row(rank, name, found.seconds, str(found.launches), ", ".join(found.most[:_NAMED])))
    if rank.overlap > 0:
        rows.append(_class_row(rank, "overlapped", -rank.overlap, "", "ran beside something else, so it is in two rows above"))
    rows.append(_class_row(rank, "gaps", rank.gaps, "", "nothing ran" if rank.on_gpu else "Python, and whatever else is no operator"))
    rows.append(_class_row(rank, "step", rank.step, str(rank.launches), ""))
    return rows


def _class_row(rank: RankProfile, name: str, seconds: float, launches: str, said: str) -> Row:
    return [name, milliseconds(seconds), share(seconds, rank.step), launches, said]


def about(rank: RankProfile, batch_size: int) -> str:
    """What a rank's table is of."""
    lengths = sorted(rank.steps)
    where = "kernels" if rank.on_gpu else "no GPU in it: a CPU's operators, without what they call"
    steps = f"the middle one of {len(lengths)} steps ({milliseconds(lengths[0])}-{milliseconds(lengths[-1])} ms) by {rank.told_by}"
    return f"batch {batch_size}, {where}; {steps}; rank {rank.trace}"


def profile_remarks(found: Profiled) -> list[str]:
    """What stands below the first rank's table: unknown kernels, the other ranks in a line each, what tracing itself does."""
    unknown = [rank.classes[OTHER].most for rank in found.ranks[:1] if OTHER in rank.classes]
    lines = [f"not known what it is for: {', '.join(names)}" for names in unknown]
    lines += [_rank_line(rank) for rank in found.ranks[1:]]
    lines.append("tracing slows the host down, so gaps are longer than without; fab measure has the true length of a step")
    if found.report.ranks > 1 and any(rank.on_gpu for rank in found.ranks):
        lines.append("communication holds the waiting for the slowest rank")
    return [*lines, *found.report.remarks]


def _rank_line(rank: RankProfile) -> str:
    parts = (("busy", rank.busy), ("communication", rank.seconds_of(COMMUNICATION)), ("gaps", rank.gaps))
    return f"{rank.trace}: {milliseconds(rank.step)} ms a step, " + ", ".join(f"{name} {milliseconds(value)}" for name, value in parts)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}".replace("%", " %")
