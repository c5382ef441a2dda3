"""The screen and the documents of a sweep: its plan, and what it has found. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from orchestrator.cli.blocks import Block, Line, Table, Tone, indented
from orchestrator.cli.documents import sweeps as documents
from orchestrator.cli.documents.sweeps import SweepPlanData, SweepPlanned
from orchestrator.cli.switch_text import expected
from orchestrator.cli.text import duration, server_command, server_lines
from orchestrator.flows.sweep_plan import PointPlan, SweepPlan
from orchestrator.flows.sweep_words import keeping_words
from orchestrator.flows.swept import Swept
from orchestrator.results.comparison import contrast_sentences, finding_words
from orchestrator.results.statistics import Finding
from orchestrator.results.sweep import Design
from orchestrator.results.sweep_choice import PointAtBatch, PointFound
from orchestrator.results.sweep_estimate import Pace

_COLUMNS = ("point", "launches", "batch", "ms a token", "tok/s", "to the first", "")
_NUMBERS = frozenset({"launches", "batch", "ms a token", "tok/s", "to the first"})
_TONES: dict[Finding, Tone] = {Finding.FASTER: "good", Finding.SLOWER: "bad", Finding.NOT_SHOWN: ""}
_LOST = (
    "each relaunch stops the server that serves: what it does not finish within its drain is lost, and nothing answers until the next one "
    "does; no router or load balancer is drained"
)


def plan_blocks(plan: SweepPlan) -> list[Block]:
    """What will be tried, what was checked, how long it takes, how long it is dark, what is lost and where it ends."""
    again = "" if plan.standing is None else ", taken up again"
    version = f"SGLang {plan.sglang_version}" if plan.sglang_version else "SGLang's version is unknown"
    load = "" if plan.load is None else f"; {plan.load} requests running or queued"
    return [
        Line(),
        Line(f"sweep of {plan.service} in {plan.place}{again}", "strong"),
        Line(f"  now   {version}{load}"),
        *indented(server_lines(plan.server)),
        *indented([server_command(plan.server)], whole=True),
        *([Line(f"  why   {plan.reason}")] if plan.reason else []),
        *([Line("  this is not what the sweep had left: somebody has changed it since", "warn")] if plan.changed_meanwhile else []),
        Line(),
        *_point_blocks(plan),
        Line(),
        *[Line(f"  {text}") for text in _what_it_takes(plan)],
        Line(f"note: {_LOST}"),
        Line(f"note: {_end_words(plan)}"),
        *[Line(f"note: {text}") for text in _launch_words(plan)],
        Line(),
    ]


def _point_blocks(plan: SweepPlan) -> list[Block]:
    wanted = sorted(set(plan.steps))
    if not wanted:
        return [Line("every point was launched", "strong")]
    rows = [[str(number + 1), plan.points[number].point.label, _times(plan, number), _switch(plan.points[number])] for number in wanted]
    notes = ["; ".join(plan.points[number].refusals) for number in wanted]
    tones: tuple[tuple[int, Tone], ...] = tuple((row, "bad") for row, note in enumerate(notes) if note)
    return [Table(["", "point", "launches", "expected"], rows, frozenset({"launches"}), tones, notes)]


def _times(plan: SweepPlan, number: int) -> str:
    return str(plan.steps.count(number))


def _switch(point: PointPlan) -> str:
    if point.refusals:
        return "refused, and skipped"
    how = "staged" if point.staged else "sequential"
    return f"{how}, dark for {expected(point.dark)}" if point.dark is not None else f"{how}; how long it is dark is not known"


def _what_it_takes(plan: SweepPlan) -> list[str]:
    launches = sum(1 for number in plan.steps if not plan.points[number].refusals)
    timings = launches + plan.to_time
    lines = [f"{_relaunches(launches)}, each with a timing of batch {_sizes(plan.design)}; order {_order(plan.steps)}"]
    if plan.to_time:
        lines.append("the launch that serves was not timed yet, which comes first")
    dark = plan.dark_seconds
    lines.append(f"dark for about {duration(dark)} in all, by earlier switches here" if dark else "how long it is dark in all is not known")
    whole = plan.pace.seconds(timings)
    took = f"about {duration(whole)}" if whole is not None else "not known"
    return [*lines, f"takes: {took} ({_pace_words(plan.pace, plan.design)}); perhaps one relaunch more at the end"]


def _relaunches(number: int) -> str:
    return f"{number} relaunch{'' if number == 1 else 'es'}"


def _pace_words(pace: Pace, design: Design) -> str:
    relaunch = "no relaunch is kept here" if pace.relaunch is None else f"a relaunch took {duration(pace.relaunch)}, by {pace.relaunches}"
    at_most = f"a timing takes at most {duration(design.timing.seconds)}"
    timing = at_most if pace.timing is None else f"a timing took {duration(pace.timing)}, by {pace.timings}"
    return f"{relaunch}; {timing}"


def _order(steps: Sequence[int]) -> str:
    return " ".join(str(number + 1) for number in steps) or "-"


def _sizes(design: Design) -> str:
    return ", ".join(map(str, design.timing.batch_sizes))


def _end_words(plan: SweepPlan) -> str:
    start = plan.start_launch
    if plan.design.restore:
        return f"it ends on what served at its beginning, launch {start}"
    other = f"launch {start} again" if start is not None else "what serves then: what serves now could not be brought back"
    return f"it ends on the best point at batch {plan.design.best_at}, or, where no timing is to be believed, on {other}"


def _launch_words(plan: SweepPlan) -> list[str]:
    words = ["a point that serves already is launched again all the same: only several launches show how launches of the same thing differ"]
    if plan.design.rounds == 1:
        words.append("with one launch a point that spread is assumed, not seen; --rounds 2 goes forth and back")
    return words


def sweep_blocks(swept: Swept) -> list[Block]:
    """One table of all points, then what it ended on."""
    design = swept.standing.design
    rows = [row for found in swept.points for row in _rows(found)]
    tones = tuple((index, row.tone) for index, row in enumerate(rows) if row.tone)
    table = Table(list(_COLUMNS), [row.cells for row in rows], _NUMBERS, tones, [row.note for row in rows])
    tone: Tone = "good" if swept.exit_code == 0 else "warn" if swept.exit_code == 6 else "bad"
    return [
        Line(),
        Line(f"sweep of {swept.standing.begun.service} in {swept.standing.begun.place}", "strong"),
        table,
        Line("  medians; of one launch with the interval that holds it, of several with the lowest and the highest launch", "quiet"),
        *indented(_remarks(swept), "quiet"),
        Line(),
        Line(swept.said if swept.standing.finished else f"not finished; so far {swept.said}", tone),
        Line(_cost(swept)),
        *_keeping(swept, design),
    ]


@dataclasses.dataclass(frozen=True)
class _Row:
    cells: list[str]
    note: str = ""
    tone: Tone = ""


def _rows(found: PointFound) -> list[_Row]:
    """A row for each batch size, the point's name in the first one and its troubles below the last."""
    head = [f"{found.number + 1}  {found.point.label}", f"{found.timed} of {found.launches}"]
    troubles = "; ".join(found.troubles)
    if not found.batches:
        return [_Row([*head, "-", "-", "-", "-", ""], troubles, "bad" if troubles else "")]
    rows = [_Row([*(head if place == 0 else ["", ""]), *_cells(batch)], tone=_tone(batch)) for place, batch in enumerate(found.batches)]
    return [*rows[:-1], dataclasses.replace(rows[-1], note=troubles)]


def _cells(batch: PointAtBatch) -> list[str]:
    time = f"{batch.time * 1000:.2f} ({batch.low * 1000:.2f}-{batch.high * 1000:.2f})"
    rate = "-" if batch.tokens_per_second is None else f"{batch.tokens_per_second:.1f}"
    contrast = batch.to_first
    if contrast is None:
        return [str(batch.batch_size), time, rate, "", ""]
    interval = f" ({contrast.low:.3f}-{contrast.high:.3f})" if contrast.low > 0 else ""
    return [str(batch.batch_size), time, rate, f"{contrast.ratio:.3f}{interval}", finding_words(contrast.finding, contrast.ratio)]


def _tone(batch: PointAtBatch) -> Tone:
    return "" if batch.to_first is None else _TONES[batch.to_first.finding]


def _remarks(swept: Swept) -> list[str]:
    """What the ratios rest on, at the batch size that counts; each sentence once."""
    at = swept.standing.design.best_at
    contrasts = [batch.to_first for found in swept.points for batch in found.batches if batch.batch_size == at and batch.to_first]
    return list(dict.fromkeys(f"batch {at}: {sentence}" for contrast in contrasts for sentence in contrast_sentences(contrast)))


def _cost(swept: Swept) -> str:
    """What the service's clients had of it."""
    changes = [change for change in swept.standing.changes if change.dark_seconds is not None]
    dark = [change.dark_seconds for change in changes if change.dark_seconds is not None]
    lost = [change.lost_requests for change in changes]
    known = sum(count for count in lost if count is not None)
    unknown = lost.count(None)
    told = f"{known or 'no'} request{'' if known == 1 else 's'} lost" + (f", and {unknown} times nobody knows how many" if unknown else "")
    return f"service: dark for {duration(sum(dark))} in all, in {_relaunches(len(changes))}; {told}"


def _keeping(swept: Swept, design: Design) -> list[Block]:
    """How what serves now is kept: the next relaunch composes it from the service's file."""
    point = swept.standing.point
    lines = keeping_words(design.points[point]) if point is not None else []
    if not lines:
        return []
    head = f"to keep it, write under `arguments:` of the service {swept.standing.begun.service}; until then a relaunch calls it drift"
    return [Line(head), *indented(lines, whole=True)]


def plan_document(plan: SweepPlan) -> SweepPlanned:
    """The plan as data."""
    data = SweepPlanData(
        host=plan.host,
        place=plan.place,
        service=plan.service,
        server=plan.server,
        sglang_version=plan.sglang_version,
        load=plan.load,
        start_launch=plan.start_launch,
        design=plan.design,
        points=plan.points,
        steps=plan.steps,
        to_time=plan.to_time,
        dark_seconds=plan.dark_seconds,
        pace=plan.pace,
    )
    return SweepPlanned(plan.host, plan.service, data)


def swept_document(swept: Swept) -> documents.Swept:
    """What was found as data."""
    standing = swept.standing
    return documents.Swept(
        host=standing.begun.host,
        place=standing.begun.place,
        service=standing.begun.service,
        design=standing.design,
        points=swept.points,
        steps=[
            documents.SweepStep(step, point, standing.launches.get(step), standing.tried.get(step))
            for step, point in enumerate(standing.design.steps)
        ],
        choice=swept.choice,
        end=standing.tried.get(standing.last_step),
        serves=documents.Serves(standing.point, standing.at_start, standing.seen.launch_id),
        said=swept.said,
    )
