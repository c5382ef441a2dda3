"""The part of a report about where a decode step's time goes: a budget's sums, a profile's classes, in the words of the screen. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from orchestrator.results.account_rows import CLASS_COLUMNS, SUM_COLUMNS, about, class_rows, profile_remarks, sum_rows
from orchestrator.results.budget import Budgeted, StepBudget, budget_remarks
from orchestrator.results.markup import Markup, tag
from orchestrator.results.profile import Profiled
from orchestrator.results.report_data import AccountedRun
from orchestrator.results.report_table import table

_TONES = {0: "good", 9: "warn"}


def account_section(accounted: AccountedRun, *, is_open: bool) -> Markup:
    """An account that can be folded away; the newest one is open."""
    run, account = accounted.run, accounted.account
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.record.started))
    ending = tag("strong", run.ending.told, class_=_TONES.get(run.ending.exit_code or 0, "bad"))
    summary = tag("summary", tag("span", run.record.verb, class_="what"), " ", ending, " ", tag("span", when, class_="quiet"))
    if account is None:
        content = [tag("p", accounted.problem, class_="bad")]
    else:
        told = _budget(account) if isinstance(account, Budgeted) else _profile(account)
        content = [*told, *_list(account.doubts, "doubts bad")]
    named = tag("p", "run ", tag("code", run.name), class_="quiet")
    return tag("details", summary, *content, named, class_="change", open="open" if is_open else None)


def _budget(found: Budgeted) -> Iterator[Markup]:
    timed = found.timed
    where = f"{timed.ranks} x {timed.device_name}" if timed.ranks > 1 else timed.device_name
    yield tag("p", f"parts timed alone on {where} with PyTorch {timed.torch}")
    for step in found.steps:
        yield table(_caption(step), SUM_COLUMNS, sum_rows(step), class_="figures account")
        yield from _list(budget_remarks(step), "quiet")


def _caption(step: StepBudget) -> str:
    return f"batch {step.batch_size}: the measured step and what it is made of"


def _profile(found: Profiled) -> Iterator[Markup]:
    for rank in found.ranks[:1]:
        yield table(about(rank, found.report.batch_size), CLASS_COLUMNS, class_rows(rank), class_="figures account")
    yield from _list(profile_remarks(found), "quiet")


def _list(lines: Sequence[str], class_: str) -> Iterator[Markup]:
    if lines:
        yield tag("ul", *[tag("li", line) for line in lines], class_=class_)
