"""report, export: what kept runs tell, as a page for people and as lines for programs."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.results.history import Wanted

_RUNS = "Run folders, by name, a beginning of it that no other has, path, or last, with or without this flag; without any, all runs."
_CHOICE = {"service": "Without runs: only those of this service.", "host": "Without runs: only those on this host."}
_JSON = {"json": "Print one JSON document on standard output."}


@verb(flags={"runs": _RUNS, "out": "The file to write; - for standard output.", **_CHOICE, **_JSON}, gathers="runs")
def report(
    call: Call,
    runs: str = "",
    out: str = "report.html",
    service: str | None = None,
    host: str | None = None,
    json: bool = False,
) -> None:
    """Write one self-contained page: decoding by backend and batch size, what differs, and the timeline of each change."""
    from orchestrator.cli.blocks import Line
    from orchestrator.cli.documents.runs import ReportWritten
    from orchestrator.flows.report import chosen_runs, make_report, write_whole
    from orchestrator.results.report_page import page

    if out == "-" and call.as_json:
        raise UsageError("--out - and --json both want standard output", next_step="--out FILE")
    chosen, found = chosen_runs(_names(runs), _wanted(service, host))
    made = make_report(chosen, found.unreadable)
    text = call.redactor.text(page(made))
    for remark in found.remarks:
        call.screen.warn(remark)
    if out == "-":
        call.screen.show([Line(text, whole=True)])
        return
    path = Path(out).expanduser().absolute()
    write_whole(path, text)
    timings, changes = sum(len(item.timings) for item in made.services), sum(len(item.changes) for item in made.services)
    accounts = sum(len(item.accounts) for item in made.services)
    counted = [_counted(timings, "timing"), _counted(changes, "change"), *([_counted(accounts, "account")] if accounts else [])]
    call.screen.show([Line(f"{', '.join(counted[:-1])} and {counted[-1]} are in {path}", whole=True)])
    call.answer(ReportWritten(str(path), [run.name for run in chosen], timings, changes, accounts))


@verb(
    flags={
        "runs": _RUNS,
        "format": "sglang: the lines of sglang.bench_one_batch_server --result-filename, one for each repeat.",
        "out": "The file to write; - for standard output, where --json has the lines as its rows.",
        "invalid": "Write also what is not to be believed.",
        **_CHOICE,
        **_JSON,
    },
    gathers="runs",
)
def export(
    call: Call,
    runs: str = "",
    format: str = "sglang",  # noqa: A002  # the flag's name
    out: str = "-",
    invalid: bool = False,
    service: str | None = None,
    host: str | None = None,
    json: bool = False,
) -> None:
    """Write decode timings as JSON lines, in the words of SGLang's own benchmark. Exit code 9: one is not to be believed."""
    from orchestrator.cli.blocks import Line
    from orchestrator.cli.documents.runs import Exported
    from orchestrator.flows.report import chosen_runs, export_lines, write_whole

    if format != "sglang":
        raise UsageError(f"--format takes sglang; {format!r} is not that")
    names = _names(runs)
    chosen, found = chosen_runs(names, _wanted(service, host))
    lines = export_lines(chosen, invalid=invalid)
    for remark in found.remarks:
        call.screen.warn(remark)
    if out == "-":
        call.screen.show([Line(line, whole=True) for line in lines])
        call.answer(Exported(None, len(lines), [loads(line) for line in lines]))
        return
    path = Path(out).expanduser().absolute()
    write_whole(path, "".join(f"{line}\n" for line in lines))
    call.screen.show([Line(f"{len(lines)} lines are in {path}", whole=True)])
    call.answer(Exported(str(path), len(lines), None))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _wanted(service: str | None, host: str | None) -> Wanted:
    from orchestrator.results.history import Wanted

    return Wanted(service=service, host=host)
