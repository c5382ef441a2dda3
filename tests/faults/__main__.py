"""The whole campaign: ``python -m tests.faults [PART...]``. As root, on a machine where the tests of containers run."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from tests.faults import box_kinds, clock_kinds, crashes, kills, order_kinds, real_kinds, report, server_kinds, special_kinds, staging_kinds
from tests.faults.cases import Campaign, Case, Row
from tests.faults.lane import Lane
from tests.rig.network import Bridge
from tests.rig.sglang import VARIABLE, find_environment
from tests.rig.workspace import Workspace

DOCUMENT = Path(__file__).parents[2] / "docs/faults.md"
SEED = 20260101
OPERATORS, SUPERVISORS = 200, 50

_only = ""

Part = Callable[[Workspace, Bridge, int], list[Row]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--lanes", type=int, default=2, help="boxes beside each other (default: %(default)s)")
    parser.add_argument("--only", default="", help="only cases whose name this regular expression finds")
    parser.add_argument("--write", action="store_true", help=f"keep the tables in {DOCUMENT.name}")
    options = parser.parse_args()
    if options.write and options.only and not set(options.parts) <= {"kinds", "real"}:
        parser.error("only tables that list each case can be kept in part")
    global _only
    _only = options.only
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"there is no part {unknown[0]}")
    wrong = 0
    for name in options.parts or PARTS:
        began = time.monotonic()
        with Workspace() as workspace:
            rows = PARTS[name](workspace, Bridge.add(workspace), options.lanes)
        wrong += sum(not row.good for row in rows)
        lines = [f"{report.summary(rows)} It took {(time.monotonic() - began) / 60:.0f} minutes.", "", *_table(name, rows)]
        print("\n".join(["", f"== {name}", *lines]), flush=True)
        if options.write:
            report.put(DOCUMENT, name, report.merged(DOCUMENT, name, rows) if options.only else lines)
    return 1 if wrong else 0


def _table(name: str, rows: Sequence[Row]) -> list[str]:
    if name == "instants":
        return report.grouped(rows, lambda row: row.case.name.partition(":")[0], "flow")
    if name in ("operator", "supervisor"):
        return report.grouped(rows, lambda row: row.case.name.partition(", ")[2].partition(" + ")[0], "killed in")
    return report.listed(rows)


def _tell(row: Row) -> None:
    print(report.line_of(row), flush=True)


def _rows(futures: Sequence[Future[Row]]) -> list[Row]:
    return [future.result() for future in futures]


def run_cases(lanes: Sequence[Lane], cases: Sequence[Case], only: str | None = None) -> list[Row]:
    """All cases on the lanes, of those that are asked for."""
    wanted = _only if only is None else only
    campaign = Campaign(lanes, _tell)
    futures = campaign.submit([case for case in cases if re.search(wanted, case.name)])
    campaign.start()
    campaign.join()
    return _rows(futures)


def _lanes(workspace: Workspace, bridge: Bridge, count: int) -> list[Lane]:
    return [Lane.start(workspace, bridge, f"box{number}") for number in range(count)]


def _instants(workspace: Workspace, bridge: Bridge, count: int) -> list[Row]:
    lanes = _lanes(workspace, bridge, count)
    points: dict[str, list[str]] = {}
    rows = run_cases(lanes, [crashes.enumeration(flow, _keep(points, flow.name)) for flow in crashes.FLOWS], "undisturbed")
    rows += run_cases(lanes, [crashes.crash(flow, point) for flow in crashes.FLOWS for point in points.get(flow.name, ())])
    for lane in lanes:
        lane.stop()
    return rows


def _keep(points: dict[str, list[str]], name: str) -> Callable[[list[str]], None]:
    def keep(found: list[str]) -> None:
        points[name] = found

    return keep


def _operator(workspace: Workspace, bridge: Bridge, count: int) -> list[Row]:
    lanes = _lanes(workspace, bridge, count)
    rows = run_cases(lanes, kills.operator_cases(OPERATORS, SEED, workspace.folder("operators")))
    for lane in lanes:
        lane.stop()
    return rows


def _supervisor(workspace: Workspace, bridge: Bridge, count: int) -> list[Row]:
    lanes = _lanes(workspace, bridge, count)
    rows = run_cases(lanes, kills.supervisor_cases(SUPERVISORS, SEED))
    for lane in lanes:
        lane.stop()
    return rows


def _kinds(workspace: Workspace, bridge: Bridge, count: int) -> list[Row]:
    lanes = _lanes(workspace, bridge, count)
    rows = run_cases(
        lanes,
        [
            *server_kinds.cases(),
            *order_kinds.cases(),
            *special_kinds.cases(),
            *clock_kinds.cases(),
            *staging_kinds.cases(),
            *box_kinds.ssh_cases(workspace.folder("operators")),
            *box_kinds.cases(),
        ],
    )
    for lane in lanes:
        lane.stop()
    return rows


def _real(workspace: Workspace, bridge: Bridge, _count: int) -> list[Row]:
    found = find_environment()
    if found is None:
        print(f"no SGLang environment: run `make sglang-cpu`, or name one in ${VARIABLE}", file=sys.stderr)
        return []
    lane = Lane.start(workspace, bridge, "real", found)
    rows = run_cases([lane], real_kinds.cases())
    lane.stop()
    return rows


PARTS: dict[str, Part] = {"instants": _instants, "operator": _operator, "supervisor": _supervisor, "kinds": _kinds, "real": _real}
"""By name, in the order in which they run."""


if __name__ == "__main__":
    sys.exit(main())
