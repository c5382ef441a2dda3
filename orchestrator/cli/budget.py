"""budget: where the time of a decode step goes."""

from __future__ import annotations

import dataclasses

from orchestrator.cli.common import TARGET_FLAGS, choose, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.cli.measure import sizes


@verb(
    flags={
        "measured": "A timing by measure to account for: its run folder, by path or name; else it is measured first.",
        "batch": "How many streams at once, with commas, where they are measured first.",
        "limit": "Seconds for timing the parts.",
        **TARGET_FLAGS,
    }
)
def budget(
    call: Call,
    measured: str | None = None,
    batch: str = "1,4,16",
    limit: str = "240",
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Say where the time of a decode step goes: memory, multiplications, all-reduce, the rest, each timed alone beside the idle server."""
    from orchestrator.agent.wire_budget import SCHEMA
    from orchestrator.agent.wire_measure import SCHEMA as MEASURE_SCHEMA
    from orchestrator.cli.budget_text import budget_blocks
    from orchestrator.cli.documents.timing import Budgeted
    from orchestrator.flows.budget import budget as run
    from orchestrator.flows.budget import measured_of
    from orchestrator.flows.measure import MeasureOptions, measure
    from orchestrator.results.account import BUDGET_FILE
    from orchestrator.results.floor import Given
    from orchestrator.results.kept_accounts import budget_document
    from orchestrator.results.measurements import FILE, load_side

    target = choose(inventory, host, service)
    bound = seconds("limit", limit) or 0.0
    kept = None if measured is None else measured_of(target, load_side(measured))
    options = MeasureOptions(batch_sizes=sizes(batch), output_tokens=128, repeats=3, seconds=300.0)
    call.interrupted = "interrupted; nothing was changed"
    call.screen.note(f"inventory {target.inventory.label}")
    folder = call.keep_run(target.host.name, target.service.name)
    report = kept or measure(target, options, call.screen).report
    found = run(target, report, bound, call.screen)
    folder.begin()
    place = {"host": target.host.name, "place": target.place, "service": target.service.name}
    if kept is None:
        floor = dataclasses.asdict(Given.of(target.service))
        folder.keep(FILE, {"schema": MEASURE_SCHEMA, **place, "valid": not report.invalid, "report": report, "floor": floor})
    document = {**place, "valid": found.valid, "measured_run": measured, **budget_document(found)}
    folder.keep(BUDGET_FILE, {"schema": SCHEMA, **document})
    call.screen.close()
    call.screen.show(budget_blocks(target.service.name, target.place, found))
    call.answer(Budgeted(**document))
    return found.exit_code
