"""report, export: pages and files made of kept runs. Nothing is connected to."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import orchestrator
from orchestrator.errors import InvalidTimingError, OrchestratorError, UsageError
from orchestrator.flows.compare import doubts
from orchestrator.flows.history import kept_account, open_run
from orchestrator.flows.measure import reasons
from orchestrator.results.course import read_course
from orchestrator.results.history import History, Wanted, look_up
from orchestrator.results.kept_runs import KeptRun
from orchestrator.results.report_data import AccountedRun, Change, Report, ServiceReport, Timing
from orchestrator.results.run_names import any_kept, no_runs
from orchestrator.results.runs import runs_root
from orchestrator.results.sglang_benchmark import cases


def chosen_runs(names: Sequence[str], wanted: Wanted, root: Path | None = None) -> tuple[list[KeptRun], History]:
    """The runs that are named; where none is, all that are `wanted`. Oldest first, with what the index tells beside them.

    Raises:
        UsageError: a name means no run, or more than one; or there is none at all.
    """
    folder = root or runs_root()
    if names:
        runs = {run.path: run for run in (open_run(name, folder) for name in names)}
        return sorted(runs.values(), key=lambda run: run.record.started), History()
    found = look_up(folder, wanted)
    if not found.entries:
        if not any_kept(folder):
            raise no_runs(folder)
        raise UsageError(f"there is no such run in {folder}", next_step="fab history")
    return [open_run(entry.name, folder) for entry in reversed(found.entries)], found


def make_report(runs: Sequence[KeptRun], unreadable: Sequence[tuple[str, str]] = ()) -> Report:
    """A report on the services that these runs timed, accounted for or changed.

    Raises:
        UsageError: none of them did any of it.
    """
    subjects = list(dict.fromkeys(subject for run in runs if (subject := _subject(run)) is not None))
    services = [_service(service, host, [run for run in runs if _subject(run) == (service, host)]) for service, host in subjects]
    if not services:
        raise UsageError("none of these runs has timed or changed a service", next_step="fab history")
    return Report(tuple(services), time.time(), orchestrator.__version__, tuple(unreadable))


def _subject(run: KeptRun) -> tuple[str, str] | None:
    """The service and its host, where the run tells something of it."""
    if run.service is None or (run.measurement is None and run.plan is None and run.result is None and run.account is None):
        return None
    return run.service, run.host or ""


def _service(service: str, host: str, runs: Sequence[KeptRun]) -> ServiceReport:
    timed = [run.measurement for run in runs if run.measurement is not None]
    timings = [Timing(number, item, tuple(reasons(item.report.invalid))) for number, item in enumerate(timed, 1)]
    accounts = [_accounted(run) for run in reversed(runs) if run.account is not None]
    changes = [Change(run, read_course(run)) for run in reversed(runs) if run.measurement is None and run.account is None]
    place = next((run.place for run in reversed(runs) if run.place), host)
    return ServiceReport(service, place, tuple(timings), tuple(changes), tuple(accounts))


def _accounted(run: KeptRun) -> AccountedRun:
    account, problems = kept_account(run)
    return AccountedRun(run, account, "; ".join(problems))


def export_lines(runs: Sequence[KeptRun], *, invalid: bool = False) -> list[str]:
    """Decode timings as lines of JSON for SGLang's tools; see :mod:`orchestrator.results.sglang_benchmark`.

    Args:
        invalid: whether timings that are not to be believed are written too: the format can't say that they are not.

    Raises:
        InvalidTimingError: there are such, and nobody said that they should be.
        UsageError: there is no timing among these runs.
    """
    timings = [run.measurement for run in runs if run.measurement is not None]
    if not timings:
        raise UsageError("there is no decode timing among these runs", next_step="fab history --verb measure")
    doubted = doubts(timings)
    if doubted and not invalid:
        raise InvalidTimingError(
            "some of these timings are not to be believed, which the format can't say",
            evidence=doubted,
            next_step="name the others, or --invalid to write them all the same",
        )
    return [json.dumps(case) for item in timings for case in cases(item)]


def write_whole(path: Path, text: str) -> None:
    """Put a file there, or leave what was there before: never half of it. Only the operator can read it, as the runs that it is made of.

    Raises:
        UsageError: that folder isn't there.
        OrchestratorError: it can't be written.
    """
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", next_step="--out FILE, in a folder that is there")
    try:
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise OrchestratorError(f"{path} can't be written: {error.strerror or error}", next_step="df -h, or another --out FILE") from error
