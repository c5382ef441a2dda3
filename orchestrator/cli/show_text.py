"""The screen of one kept run. Pure: the words are those with which the run itself was shown."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence

from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.cli.blocks import Block, Line, Table, Tone, indented
from orchestrator.cli.budget_text import budget_blocks
from orchestrator.cli.measure_text import floor_blocks, measure_blocks
from orchestrator.cli.profile_text import profile_blocks
from orchestrator.cli.sweep_text import sweep_blocks
from orchestrator.cli.text import error_blocks, moment, plan_blocks, result_blocks
from orchestrator.flows.history import Shown
from orchestrator.flows.measure import Measured
from orchestrator.flows.plan import Plan
from orchestrator.results.budget import Budgeted
from orchestrator.results.course import LEAST_SECONDS, Course, Step
from orchestrator.results.kept_runs import KeptRun
from orchestrator.results.prep_record import PrepRecord
from orchestrator.results.profile import Profiled


def run_blocks(shown: Shown) -> list[Block]:
    """Who typed what and when, the plan, the states with their times, how it ended; then what lies in the folder."""
    run = shown.run
    blocks = _heading(run)
    if shown.plan is not None:
        blocks += _plan_blocks(shown.plan)
    if shown.course is not None:
        blocks += course_blocks(shown.course)
    if run.result is not None:
        blocks += result_blocks(run.result)
    if run.measurement is not None:
        measured = Measured(run.measurement.report)
        blocks += [Line(), *measure_blocks(run.service or "", run.place or "", measured), *floor_blocks(measured.report, shown.given)]
    if shown.account is not None:
        blocks += [Line(), *_account_blocks(run, shown.account)]
    if run.prep is not None:
        blocks += [Line(), *prep_blocks(run.prep)]
    if shown.swept is not None:
        blocks += sweep_blocks(shown.swept)
    if run.error is not None and run.swept is None:
        blocks += [Line(), *error_blocks(run.error.message, run.error.evidence, run.error.next_step)]
    if shown.problems:
        blocks += [Line(), Line("can't be read:", "warn"), *indented(shown.problems, "warn")]
    files = ", ".join(f"{name} ({_size(size)})" for name, size in shown.files)
    return [*blocks, Line(), Line(f"files: {files}", "quiet"), Line(f"in {run.path}", "quiet", whole=True)]


def _account_blocks(run: KeptRun, account: Budgeted | Profiled) -> list[Block]:
    if isinstance(account, Budgeted):
        return budget_blocks(run.service or "", run.place or "", account)
    return profile_blocks(run.service or "", run.place or "", account)


def _heading(run: KeptRun) -> list[Block]:
    record, ending = run.record, run.ending
    about = f"{record.verb} of {run.service} in {run.place}" if run.service else f"{record.verb} of {', '.join(record.names)}"
    code = "" if ending.exit_code is None else f", exit code {ending.exit_code}"
    return [
        Line(run.name, "strong", whole=True),
        Line(f"  {about}, by {record.operator}, {moment(record.started)}, with version {record.orchestrator}"),
        Line(f"  $ {_command(record.command)}", whole=True),
        Line(f"  ended: {ending.told}{code}", _ending_tone(ending.exit_code)),
    ]


def _command(words: Sequence[str]) -> str:
    """What was typed, without the folder that the program lies in."""
    first, *rest = words or ("",)
    return shlex.join([first.rpartition("/")[2], *rest])


def _ending_tone(exit_code: int | None) -> Tone:
    return "good" if exit_code == 0 else "warn" if exit_code in (None, 6, 8, 9) else "bad"


def _plan_blocks(plan: Plan) -> list[Block]:
    """The plan without what simply passed, and without what it would have been by hand: plan.json has that."""
    staging = plan.staging
    verdicts = [*plan.verdicts, *(staging.verdicts if staging is not None else [])]
    passed = sum(verdict.outcome == Outcome.PASS for verdict in verdicts)
    shorter = dataclasses.replace(
        plan,
        verdicts=_notable(plan.verdicts),
        staging=None if staging is None else dataclasses.replace(staging, verdicts=_notable(staging.verdicts)),
        by_hand=(),
        remarks=(),
    )
    told = f"{passed} of {len(verdicts)} checks passed; plan.json has these, the commands by hand and the notes"
    return [*plan_blocks(shorter), *([Line(told, "quiet"), Line()] if verdicts else [])]


def _notable(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.outcome != Outcome.PASS]


def course_blocks(course: Course) -> list[Block]:
    """The states, each with when it began, how long it took, and the phases in it."""
    rows = [row for step in course.steps for row in _step_rows(step)]
    dark = [] if course.dark is None else [Line(f"  nothing answered from {course.dark.began:.1f} s to {course.dark.ended:.1f} s")]
    return [
        Line(f"states, from {moment(course.began)} by the box's clock", "strong"),
        Table(["at, s", "took, s", "state", "why"], rows, right=frozenset({"at, s", "took, s"})),
        *dark,
    ]


def _step_rows(step: Step) -> list[list[str]]:
    rows = [[f"{step.span.began:.1f}", f"{step.span.seconds:.1f}", step.span.name, step.reason]]
    lasting = [phase for phase in step.phases if phase.seconds >= LEAST_SECONDS]
    return [*rows, *([f"{phase.began:.1f}", f"{phase.seconds:.1f}", f"  {phase.name}", phase.detail] for phase in lasting)]


def prep_blocks(record: PrepRecord) -> list[Block]:
    """What became of each host: how many knobs ended how, what was changed, and why one could not be asked."""
    blocks: list[Block] = []
    for host in record.hosts:
        counts = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in host.counts.items())
        blocks.append(Line(f"{host.host}: profile {host.profile or 'none'}: {counts or 'no knob was looked at'}"))
        blocks += indented([host.error] if host.error else [], "bad")
        blocks += indented(host.changes)
    return blocks


def _size(size: int) -> str:
    return f"{size} bytes" if size < 10_000 else f"{size / 1000:.0f} kB"
