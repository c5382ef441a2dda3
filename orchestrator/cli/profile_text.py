"""The screen of a profile. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from orchestrator.cli.blocks import Block, Line, Table, indented
from orchestrator.flows.profile import Profiled
from orchestrator.results.kernel_classes import CLASSES, COMMUNICATION, OTHER
from orchestrator.results.trace import Trace, TracedStep, Work

_COLUMNS = ("class", "ms", "of the step", "launches", "most of it")
_NUMBERS = frozenset({"ms", "of the step", "launches"})
_LONGEST_NAME = 60
_NAMED = 2
_MOST_UNKNOWN = 5


def profile_blocks(service: str, place: str, found: Profiled) -> list[Block]:
    """The middle step of the first rank in full, the other ranks in a line each, and what speaks against it."""
    blocks: list[Block] = [Line(f"a decode step of {service} in {place}", "strong")]
    for trace in found.traces[:1]:
        step = trace.middle
        blocks += [Line(f"  {_about(trace, found)}"), Line(), step_table(step, on_gpu=trace.on_gpu)]
        blocks += indented(_unknown(step), "quiet")
    blocks += indented([_rank_line(trace) for trace in found.traces[1:]])
    blocks += indented([*_tracing(found), *found.report.remarks], "quiet")
    verdict = (
        [Line("not to be believed:", "bad"), *indented(found.doubts, "bad")]
        if found.doubts
        else [Line("nothing speaks against it", "good")]
    )
    return [*blocks, Line(), *verdict]


def _about(trace: Trace, found: Profiled) -> str:
    lengths = sorted(step.seconds * 1000 for step in trace.steps)
    where = "kernels" if trace.on_gpu else "no GPU in it: a CPU's operators, without what they call"
    steps = f"the middle one of {len(lengths)} steps ({lengths[0]:.3f}-{lengths[-1]:.3f} ms) by {trace.told_by}"
    return f"batch {found.report.batch_size}, {where}; {steps}; rank {trace.label}"


def step_table(step: TracedStep, *, on_gpu: bool = True) -> Table:
    """Each class that has something, then what makes their sum the step: what overlapped, and the gaps."""
    found = step.by_class()
    rows = []
    for name in CLASSES:
        work = found.get(name)
        if work:
            rows.append(_row(step, name, sum(item.own for item in work), str(len(work)), _largest(work)))
    if step.overlap > 0:
        rows.append(_row(step, "overlapped", -step.overlap, "", "ran beside something else, so it is in two rows above"))
    rows.append(_row(step, "gaps", step.gaps, "", "nothing ran" if on_gpu else "Python, and whatever else is no operator"))
    rows.append(_row(step, "step", step.seconds, str(len(step.work)), ""))
    return Table(list(_COLUMNS), rows, right=_NUMBERS, tones=((len(rows) - 1, "strong"),))


def _row(step: TracedStep, name: str, seconds: float, launches: str, said: str) -> list[str]:
    return [name, f"{seconds * 1000:.3f}", f"{seconds / step.seconds:.1%}".replace("%", " %"), launches, said]


def _largest(work: list[Work]) -> str:
    times: Counter[str] = Counter()
    for item in work:
        times[item.name] += item.own  # type: ignore[assignment]  # seconds
    return ", ".join(short_name(name) for name, _ in times.most_common(_NAMED))


def short_name(name: str) -> str:
    """A kernel's name without the template arguments that make it long."""
    text = name.removeprefix("void ").split("<")[0].split("(")[0].strip() or name
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"


def _unknown(step: TracedStep) -> list[str]:
    work = step.by_class().get(OTHER, [])
    names = list(dict.fromkeys(short_name(item.name) for item in sorted(work, key=lambda item: -item.own)))
    return [f"not known what it is for: {', '.join(names[:_MOST_UNKNOWN])}"] if names else []


def _rank_line(trace: Trace) -> str:
    step = trace.middle
    waited = sum(item.own for item in step.by_class().get(COMMUNICATION, []))
    parts = (("busy", step.busy), ("communication", waited), ("gaps", step.gaps))
    return f"{trace.label}: {step.seconds * 1000:.3f} ms a step, " + ", ".join(f"{name} {value * 1000:.3f}" for name, value in parts)


def _tracing(found: Profiled) -> list[str]:
    lines = ["tracing slows the host down, so gaps are longer than without; fab measure has the true length of a step"]
    on_several = any(trace.on_gpu for trace in found.traces) and found.report.ranks > 1
    return [*lines, "communication holds the waiting for the slowest rank"] if on_several else lines


def profile_document(found: Profiled) -> dict[str, Any]:
    """Each rank's middle step as data: seconds."""
    ranks = []
    for trace in found.traces:
        step = trace.middle
        classes = {
            name: {"seconds": sum(item.own for item in work), "launches": len(work)} for name, work in sorted(step.by_class().items())
        }
        ranks.append(
            {
                "trace": trace.label,
                "on_gpu": trace.on_gpu,
                "told_by": trace.told_by,
                "steps": [item.seconds for item in trace.steps],
                "step": step.seconds,
                "busy": step.busy,
                "overlap": step.overlap,
                "gaps": step.gaps,
                "classes": classes,
            }
        )
    return {"ranks": ranks, "not_believed": list(found.doubts)}
