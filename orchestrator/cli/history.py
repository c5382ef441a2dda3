"""history, show: what was run before, from the run folders."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.cli.common import count
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cli.documents.timing import BudgetAccount, ProfileAccount
    from orchestrator.results.budget import Budgeted
    from orchestrator.results.profile import Profiled

_JSON = {"json": "Print one JSON document on standard output."}
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@verb(
    flags={
        "service": "Only runs of this service.",
        "host": "Only runs on this host, or on these, with commas.",
        "verb": "Only runs of this verb: relaunch, measure, prep, ...",
        "backend": "Only runs that launched or timed this backend profile.",
        "since": "Only runs since then: 3d, 12h, 30m, 2w, 2026-11-29, or 2026-11-29T14:00 by this machine's clock.",
        "limit": "How many, the newest first; 0 for all.",
        "rebuild": "Read every run folder anew, also those that have not changed.",
        **_JSON,
    },
    many_hosts=True,
)
def history(
    call: Call,
    service: str | None = None,
    host: str | None = None,
    verb: str | None = None,
    backend: str | None = None,
    since: str | None = None,
    limit: str = "20",
    rebuild: bool = False,
    json: bool = False,
) -> None:
    """List what was run: when, what, where, how it ended, how long nothing served, how fast the server decodes."""
    from orchestrator.cli.documents.runs import History, RunListed, Unreadable
    from orchestrator.cli.history_text import history_blocks
    from orchestrator.flows.history import history as look
    from orchestrator.results.history import Wanted

    number = count("limit", limit)
    wanted = Wanted(service, None if host is None else host.replace(" ", ""), verb, backend, _since(since, time.time()), number or None)
    listing = look(wanted, rebuild=rebuild)
    for remark in listing.history.remarks:
        call.screen.warn(remark)
    call.screen.show(history_blocks(listing, time.time()))
    unreadable = [Unreadable(*item) for item in listing.history.unreadable]
    runs = [RunListed(**vars(entry), path=str(listing.root / entry.name)) for entry in listing.history.entries]
    call.answer(History(str(listing.root), runs, unreadable, list(listing.history.remarks)))


@verb(
    flags={"run": "A run folder, by its name, a beginning of it that no other has, its path, or last.", **_JSON},
    gathers="run",
)
def show(call: Call, run: str = "last", json: bool = False) -> None:
    """Show all that was kept of a run: plan, states with their times, how it ended and why, timings and what they depend on."""
    from orchestrator.cli.documents.runs import Shown
    from orchestrator.cli.show_text import run_blocks
    from orchestrator.flows.history import show as look

    if "," in run:
        raise UsageError("one run at a time", next_step=f"fab show {run.partition(',')[0]}")
    shown = look(run)
    found = shown.run
    call.screen.show(run_blocks(shown))
    answer = Shown(
        path=str(found.path),
        record=found.record,
        ending=found.ending,
        plan=found.plan,
        course=shown.course,
        result=found.result,
        kept_error=found.error,
        report=found.measurement.report if found.measurement is not None else None,
        prep=found.prep,
        account=None if shown.account is None else _account(shown.account),
        problems=list(shown.problems),
        files=dict(shown.files),
    )
    call.answer(answer)


def _account(found: Budgeted | Profiled) -> BudgetAccount | ProfileAccount:
    from orchestrator.cli.documents.timing import BudgetAccount, ProfileAccount
    from orchestrator.results.budget import Budgeted
    from orchestrator.results.kept_accounts import budget_document, profile_document

    return BudgetAccount(**budget_document(found)) if isinstance(found, Budgeted) else ProfileAccount(**profile_document(found))


def _since(text: str | None, now: float) -> float | None:
    """Unix time.

    Raises:
        UsageError: it is neither a span of time nor a date.
    """
    if text is None:
        return None
    span = re.fullmatch(r"(\d+)([mhdw])", text)
    if span is not None:
        return now - int(span.group(1)) * _UNITS[span.group(2)]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"--since takes 3d, 12h, 30m, 2w, 2026-11-29 or 2026-11-29T14:00; {text!r} is not that") from None
