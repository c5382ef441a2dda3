"""The words for many hosts at once, and what to type after a preparation of one or of many. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.agent.wire_host import KnobOutcome, Persistence, PlaceKind, TuneAction
from orchestrator.cli.blocks import Line, Table, Tone
from orchestrator.cli.prep_text import UNPROVEN, WORDS, first_problem, in_table, kind_of, persistence_is_broken, tone, words_for
from orchestrator.flows.prep_outcome import HostPrep

_BY_HAND = frozenset({KnobOutcome.NOT_SETTABLE, KnobOutcome.TOLD, KnobOutcome.FAILED, UNPROVEN})
"""What another run alone does not mend."""


def next_step(prep: HostPrep, *, check: bool, profile_flag: str = "") -> str | None:
    """The one thing to type after a preparation of one host; None where nothing is left, or all has been said."""
    there, kinds, at = at_boot(prep), {kind_of(result) for result in prep.results}, f"--host {prep.host}"
    if there is not None and persistence_is_broken(there):
        profile = "" if there.profile == "unknown" else f" --profile {there.profile}"
        return f"fab prep --unpersist {at} && fab prep --persist{profile} {at}"
    if check and KnobOutcome.WOULD_CHANGE in kinds:
        return f"fab prep{profile_flag} {at}"
    if check and kinds & _BY_HAND:
        return f"fab prep --plan{profile_flag} {at}   # what is left to do by hand"
    if there is None or there.state != "failed" or kinds & (_BY_HAND | {KnobOutcome.WOULD_CHANGE}):
        return None
    if there.profile != prep.profile:
        return f"fab prep --check --profile {there.profile} {at}"
    return f"on {prep.host}, as root: systemctl restart {there.unit}   # whether it holds now"


def next_steps(preps: Sequence[HostPrep], *, check: bool, profile_flag: str = "") -> list[str]:
    """What to type after a preparation of many: for all hosts that it helps at once, then for the first of the others."""
    settable, others = [], []
    for prep in preps:
        kinds = {kind_of(result) for result in prep.results}
        if check and KnobOutcome.WOULD_CHANGE in kinds:
            settable.append(prep.host)
        elif kinds & _BY_HAND or (prep.options.plan and KnobOutcome.WOULD_CHANGE in kinds):
            others.append(prep.host)
    steps = [f"fab prep{profile_flag} --host {','.join(settable)}"] if settable else []
    if others:
        revert = " --revert" if preps[0].options.action == TuneAction.REVERT else ""
        more = f"; also for {others[1]}" if len(others) == 2 else f"; also for {len(others) - 1} more" if others[1:] else ""
        steps.append(f"fab prep --plan{revert}{profile_flag} --host {others[0]}   # what is left to do{more}")
    return steps


def at_boot(prep: HostPrep) -> Persistence | None:
    """What applies a profile at the host's boot, None where nothing does or nobody can say."""
    reports = (part.report for part in prep.reports if part.kind == PlaceKind.HOST)
    return next((report.persistence for report in reports if report is not None), None)


def fleet_table(preps: Sequence[HostPrep]) -> Table:
    """A row for each host: how many knobs came to what, and below it what is wrong first."""
    words = words_for(preps[0].options)
    found = {kind_of(result) for prep in preps for result in prep.results} - {KnobOutcome.OBSERVED}
    seen = [outcome for outcome in WORDS if outcome in found]
    numbers = [in_table(outcome, words) for outcome in seen]
    several = len({prep.profile for prep in preps}) > 1
    rows = []
    for prep in preps:
        counts = Counter(map(kind_of, prep.results))
        cells = [str(counts[outcome]) if counts[outcome] else "-" for outcome in seen]
        rows.append([prep.host, *([prep.profile or "-"] if several else []), *cells])
    return Table(
        ["host", *(["profile"] if several else []), *numbers],
        rows,
        right=frozenset(numbers),
        tones=tuple((index, tone(prep)) for index, prep in enumerate(preps) if prep.exit_code),
        notes=[first_problem(prep) for prep in preps],
    )


def fleet_summary(preps: Sequence[HostPrep]) -> Line:
    """All hosts in one line: ``50 hosts: 47 as wanted, 2 unreachable, 1 failed; 12 knobs changed``."""
    counts = Counter(_standing(prep) for prep in preps)
    counted = ", ".join(f"{counts[standing]} {standing}" for standing in _STANDINGS if counts[standing])
    changed = sum(result.outcome == KnobOutcome.CHANGED for prep in preps for result in prep.results)
    files = sum(len(part.report.changes) for prep in preps for part in prep.reports if part.report is not None)
    more = ""
    if preps[0].options.write:
        more = (
            f"; {changed} knob{'' if changed == 1 else 's'} changed"
            if changed
            else "; no knob was changed"
            if files
            else "; nothing was changed"
        )
    worst_tone: Tone = (
        "good"
        if set(counts) <= {_GOOD, _WOULD, _BACK}
        else "warn"
        if set(counts) <= {_GOOD, _WOULD, _BACK, _DRIFTED, _INTERRUPTED}
        else "bad"
    )
    return Line(f"{len(preps)} hosts: {counted}{more}", worst_tone)


_GOOD, _WOULD, _BACK, _DRIFTED, _INTERRUPTED = "in order", "would change", "would go back", "with drift", "interrupted"
_STANDINGS = (_GOOD, _WOULD, _BACK, _DRIFTED, "failed", "not reached", "held by somebody else", "refused", _INTERRUPTED)


def _standing(prep: HostPrep) -> str:
    if prep.exit_code == 0 and any(result.outcome == KnobOutcome.WOULD_CHANGE for result in prep.results):
        return _BACK if prep.options.action == TuneAction.REVERT else _WOULD
    return {0: _GOOD, 8: _DRIFTED, 4: "not reached", 5: "held by somebody else", 3: "refused", 130: _INTERRUPTED}.get(
        prep.exit_code, "failed"
    )
