"""Which cases of the campaign run with all other tests: a few of each part, the same each time."""

from __future__ import annotations

from pathlib import Path

from tests.faults import box_kinds, clock_kinds, crashes, kills, order_kinds, server_kinds, special_kinds, staging_kinds
from tests.faults.cases import Case

SEED = 7

KINDS = (
    "hang in weights",
    "argument refused",
    "garbage output",
    "TERM ignored",
    "port stolen while it loads, and given back",
    "crash after verified",
    "journal cut in mid-line",
    "second operator",
    "zombie main",
    "disk full meanwhile",
    "clock stepped back in LOADING",
    "SSH cut in LOADING",
    "staged: hang in gate",
    "staged: gate's port stolen",
    "staged: activated by somebody else",
    "staged: old server dies by itself",
    "staged: supervisor killed",
    "staged: torn down once it was cut off",
)

POINTS = (
    (0, "SIGTERM"),
    (0, "the launch's unit"),
    (0, "the record"),
    (1, "journal: ROLLING_BACK"),
    (1, "the launch's unit#2"),
    (2, "stopped"),
    (6, "somebody's unit is quiet"),
    (9, "the staged launch is started"),
    (9, "the activation"),
    (10, "journal: ACTIVATING#2"),
    (11, "before the staged launch is ended"),
)
"""Instants by their flow's place in the table. That there are such is seen to: a case whose instant is never passed fails."""


def short_cases(folder: Path) -> list[Case]:
    """All of them; `folder` is for the operators' inventories."""
    named = {
        case.name: case
        for case in (
            *server_kinds.cases(),
            *order_kinds.cases(),
            *special_kinds.cases(),
            *clock_kinds.cases(),
            *staging_kinds.cases(),
            *box_kinds.ssh_cases(folder),
        )
    }
    return [
        *(crashes.crash(crashes.FLOWS[flow], point) for flow, point in POINTS),
        *kills.operator_cases(len(kills.SHORT), SEED, folder, states=kills.SHORT),
        *kills.supervisor_cases(len(kills.SHORT), SEED, states=kills.SHORT),
        *(named[name] for name in KINDS),
    ]
