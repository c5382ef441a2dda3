"""sweep: one relaunch and one timing for each of several backends and arguments."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from orchestrator.cli.change import DRIFT_FLAG, SEQUENTIAL_FLAG
from orchestrator.cli.common import CHANGE_FLAGS, GRACE_FLAG, asked, choose, count, interruption, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.sweep_view import SweepView
    from orchestrator.config.sweep import SweepModel
    from orchestrator.flows.order import Interruption
    from orchestrator.flows.sweep import Place
    from orchestrator.flows.sweep_plan import SweepPlan
    from orchestrator.flows.target import Target
    from orchestrator.results.runs import RunFolders
    from orchestrator.results.sweep import Design, Point, Timing
    from orchestrator.results.sweep_journal import SweepJournal
    from orchestrator.results.sweep_records import Allowed

    Hands = tuple[Place, SweepJournal, SweepView, RunFolders, Interruption]

SCHEMA = "orchestrator.sweep/1"
RESULT = "sweep.json"

_DESIGN = ("backends", "set", "file", "rounds", "batch", "input", "output", "repeats", "temperature", "limit", "best_at", "restore")
"""Flags that say what is tried."""
_CHANGE = ("accept_drift", "force", "sequential", "grace", "reason")
"""Flags about each relaunch. With those above: what a sweep that is taken up again was begun with."""


@verb(
    flags={
        "backends": "Backend profiles to try, with commas, each with overlays if wanted; else the service's own.",
        "set": "FLAG=VALUE,VALUE: values to try of an argument of the server; may be given for several. All combinations are tried.",
        "file": "What to try, as a YAML file: a path, or its name in the inventory's sweeps/.",
        "rounds": "How often each point is launched: forth and back (A B B A), against a slow drift; else the file's, else 1.",
        "batch": "Batch sizes that each launch is timed at, with commas; else the file's, else 1,4,16.",
        "input": "Tokens of each prompt; else the file's, else 256.",
        "output": "Tokens that each stream generates; else the file's, else 256.",
        "repeats": "How often each batch size is timed at each launch; else the file's, else 6.",
        "temperature": "Of what is timed; 0 is greedy; else the file's, else 0.",
        "limit": "Seconds for one timing; else the file's, else 900.",
        "best-at": "The batch size by which the best point is told; else the first one.",
        "restore": "End on what serves now instead of on the best point.",
        "resume": "Take up a sweep again that was cut off: its run folder, or without a value the newest of the service.",
        "force": "Overrule refused checks, except those that protect somebody else's work.",
        **SEQUENTIAL_FLAG,
        **GRACE_FLAG,
        **DRIFT_FLAG,
        **CHANGE_FLAGS,
    },
    several=("set",),
    optional=("resume",),
)
def sweep(
    call: Call,
    backends: str | None = None,
    set: list[str] | None = None,  # noqa: A002  # the flag's name
    file: str | None = None,
    rounds: str | None = None,
    batch: str | None = None,
    input: str | None = None,  # noqa: A002
    output: str | None = None,
    repeats: str | None = None,
    temperature: str | None = None,
    limit: str | None = None,
    best_at: str | None = None,
    restore: bool = False,
    resume: str | bool | None = None,
    accept_drift: bool = False,
    force: bool = False,
    sequential: bool = False,
    grace: str | None = None,
    host: str | None = None,
    service: str | None = None,
    plan: bool = False,
    yes: bool = False,
    reason: str = "",
    wait: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Relaunch the service with each of several backends and arguments, time each, and end on the best, or where it began."""
    from orchestrator.results.sweep_records import Allowed

    said = {name: value for name, value in locals().items() if value}
    given = {name: said[name] for name in _DESIGN if name in said}
    allowed = Allowed(accept_drift, force, sequential, seconds("grace", grace), seconds("wait", wait) or 0.0, reason)
    target = choose(inventory, host, service)
    call.interrupted = "interrupted; nothing was touched"
    call.screen.note(f"inventory {target.inventory.label}")
    if resume is not None:
        _refuse_on_resume([name for name in (*_DESIGN, *_CHANGE) if name in said])
        return _resume(call, target, resume if isinstance(resume, str) else None, allowed, plan_only=plan, yes=yes)
    return _begin(call, target, design_of(target, given), allowed, plan_only=plan, yes=yes)


def _begin(call: Call, target: Target, design: Design, allowed: Allowed, *, plan_only: bool, yes: bool) -> int:
    from orchestrator.flows.sweep import begin
    from orchestrator.flows.sweep_plan import plan_sweep
    from orchestrator.flows.target import connect
    from orchestrator.results.sweep_journal import FILE, SweepJournal

    with connect(target) as agent:
        planned = plan_sweep(agent, target, design, allowed, call.screen)
    if not _settled(call, planned, plan_only=plan_only, yes=yes):
        return 0
    folder = call.keep_run(target.host.name, target.service.name)
    folder.begin()
    with SweepJournal(folder.path / FILE, call.redactor) as journal:
        begin(journal, planned, allowed)
        return _carry_on(call, target, journal)


def _resume(call: Call, target: Target, name: str | None, allowed: Allowed, *, plan_only: bool, yes: bool) -> int:
    from orchestrator.flows.sweep import begin, find_end
    from orchestrator.flows.sweep_plan import plan_sweep
    from orchestrator.flows.target import connect
    from orchestrator.results.runs import RunFolder
    from orchestrator.results.sweep_journal import FILE, SweepJournal, find_sweep

    path = find_sweep(name, target.host.name, target.service.name)
    call.screen.note(f"taking up {path.name}")
    with SweepJournal(path / FILE, call.redactor) as journal:
        call.run = RunFolder.reopen(path, call.redactor, call.screen.warn)
        allowed = dataclasses.replace(journal.standing.begun.allowed, wait=allowed.wait)
        find_end(*_hands(call, target, journal), lambda what: not plan_only and asked(call, f"{what}; bring it to its end first?", yes=yes))
        with connect(target) as agent:
            planned = plan_sweep(agent, target, journal.standing.design, allowed, call.screen, journal.standing)
        if not _settled(call, planned, plan_only=plan_only, yes=yes):
            return 0
        begin(journal, planned, allowed)
        return _carry_on(call, target, journal)


def _settled(call: Call, planned: SweepPlan, *, plan_only: bool, yes: bool) -> bool:
    """Show the plan; whether it is to be done.

    Raises:
        RefusedError: whoever was asked said no.
    """
    from orchestrator.cli.sweep_text import plan_blocks, plan_document

    call.screen.show(plan_blocks(planned))
    if plan_only:
        call.answer(plan_document(planned))
        return False
    if not asked(call, f"sweep {planned.service} in {planned.place} now?", yes=yes):
        raise RefusedError("not confirmed, nothing was touched")
    return True


def _hands(call: Call, target: Target, journal: SweepJournal) -> Hands:
    """What a sweep works with: the place, its journal, who hears of it, where runs are kept, whom a Ctrl-C asks."""
    from orchestrator.cli.sweep_view import SweepView
    from orchestrator.flows.sweep import Place
    from orchestrator.results.runs import RunFolders

    folders = RunFolders([target.host.name, target.service.name], call.redactor, call.screen.warn)
    return Place(target), journal, SweepView(call.screen), folders, interruption(call)


def _carry_on(call: Call, target: Target, journal: SweepJournal) -> int:
    from orchestrator.cli.documents.envelope import plain
    from orchestrator.cli.sweep_text import sweep_blocks, swept_document
    from orchestrator.flows.sweep import carry_on

    call.screen.outlives_reader = True
    swept = carry_on(*_hands(call, target, journal))
    answer = swept_document(swept)
    assert call.run is not None
    call.run.keep(RESULT, {"schema": SCHEMA, **plain(answer), "exit_code": swept.exit_code})
    call.screen.close()
    call.screen.show(sweep_blocks(swept))
    call.answer(answer)
    return swept.exit_code


def design_of(target: Target, given: dict[str, Any]) -> Design:
    """What is tried, by a file or by flags; flags about the timing, the rounds and the end count before the file's.

    Raises:
        UsageError, ConfigError: it can't be understood, or tries nothing.
    """
    from orchestrator.config.sweep import load_sweep
    from orchestrator.results.sweep import Design

    model = None
    if "file" in given:
        clash = next((flag for flag in ("backends", "set") if flag in given), None)
        if clash is not None:
            raise UsageError(f"--file says what to try, and so does --{clash}", next_step="give one of the two")
        model = load_sweep(given["file"], target.inventory)
    timing = _timing(given, model)
    best_at = _at_least("best-at", given["best_at"]) if "best_at" in given else model.best_at if model is not None else None
    best_at = timing.batch_sizes[0] if best_at is None else best_at
    if best_at not in timing.batch_sizes:
        sizes = ", ".join(map(str, timing.batch_sizes))
        raise UsageError(f"--best-at {best_at} is not among the batch sizes that are timed: {sizes}")
    rounds = _at_least("rounds", given["rounds"]) if "rounds" in given else model.rounds if model is not None else 1
    restore = bool(given.get("restore")) or (model is not None and model.restore)
    points = _points(target, given, model)
    for point in points:
        target.inventory.backends_named(point.backend)
    return Design(points, timing, rounds, best_at, restore)


def _points(target: Target, given: dict[str, Any], model: SweepModel | None) -> list[Point]:
    """Points in their order.

    Raises:
        UsageError: there is none, one comes twice, or its backend is not known.
    """
    from orchestrator.config.sweep import grid_of
    from orchestrator.results.sweep import Point, grid

    if model is not None and model.grid is None:
        points = [Point(item.backend or _own_backend(target), dict(item.arguments)) for item in model.points]
    else:
        asked_for = model.grid if model is not None and model.grid is not None else None
        if asked_for is None:
            if "backends" not in given and "set" not in given:
                step = "--backends A,B, --set FLAG=VALUE,VALUE, or --file NAME"
                raise UsageError("what is to be tried?", next_step=step)
            asked_for = grid_of(_listed(given.get("backends", "")), parsed_values(given.get("set", [])))
        points = grid(asked_for.backends or [_own_backend(target)], asked_for.arguments)
    labels = [point.label for point in points]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageError(f"the point {twice!r} comes twice", next_step="leave one out; --rounds 2 launches each point twice")
    return points


def _own_backend(target: Target) -> str:
    if target.service.backend is None:
        name = target.service.name
        raise UsageError(f"service {name} names no backend of its own", next_step="--backends NAME, or write backend: into its file")
    return target.service.backend


def parsed_values(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``max-running-requests=32,64`` as a flag and its values.

    Raises:
        UsageError: it is not of that form, or a flag comes twice.
    """
    from orchestrator.config.service_file import scalar

    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        flag = "--" + name.strip().removeprefix("--").replace("_", "-")
        if not equals or not _listed(values):
            raise UsageError(f"--set takes FLAG=VALUE,VALUE, such as max-running-requests=32,64; {text!r} is not that")
        if flag in found:
            raise UsageError(f"--set names {flag} twice", next_step=f"--set {flag.removeprefix('--')}=VALUE,VALUE")
        words = {"true": True, "false": False}
        found[flag] = [words[item] if item in words else scalar(item) for item in _listed(values)]
    return found


def _timing(given: dict[str, Any], model: SweepModel | None) -> Timing:
    from orchestrator.config.sweep import LEAST_OUTPUT, TimingModel
    from orchestrator.results.sweep import Timing

    base = model.timing if model is not None else TimingModel()
    sizes = [_at_least("batch", item) for item in _listed(given["batch"])] if "batch" in given else base.batch
    return Timing(
        list(dict.fromkeys(sizes)),
        _at_least("input", given["input"]) if "input" in given else base.input,
        _at_least("output", given["output"], LEAST_OUTPUT) if "output" in given else base.output,
        _at_least("repeats", given["repeats"]) if "repeats" in given else base.repeats,
        seconds("limit", given.get("limit")) or base.limit,
        base.temperature if "temperature" not in given else seconds("temperature", given["temperature"]) or 0.0,
    )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _at_least(flag: str, text: str, least: int = 1) -> int:
    value = count(flag, text)
    if value < least:
        raise UsageError(f"--{flag} takes {least} or more; {text!r} is not that")
    return value


def _refuse_on_resume(given: Sequence[str]) -> None:
    if given:
        flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in given)
        raise UsageError(f"--resume goes on with what the sweep was begun with; {flags} can't be changed", next_step="leave it out")
