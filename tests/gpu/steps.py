"""The steps, in order of value. Each changes one thing, looks, and says what is wrong; what it needs before is the runner's work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu import endings, judging, timing_columns
from tests.gpu.commands import REPOSITORY
from tests.gpu.setting import BROKEN, FIRST, REFUSED_BY, SECOND
from tests.gpu.stage import ANYTHING, NOTHING, SERVING, Findings, Stage, Step

_BESIDE = 6
"""Preflights at once, each with an import of SGLang, where there are the cores."""
_INPUT, _OUTPUT = 64, 240
"""Tokens of a timed stream, ours and of SGLang's own benchmark."""
_STANDINS = REPOSITORY / "benchmarks" / "standins"
"""For what SGLang's benchmark imports and a run with random prompts doesn't use."""


def doctor(stage: Stage) -> Findings:
    """The machine as it is, before anything runs."""
    answer = stage.ask("doctor")
    found = judging.verdicts_of_diagnosis(answer.document)
    problems = [*judging.ended(answer.exit_code, answer.document, 0), *judging.diagnosed(answer.document)]
    refused = [told for told in judging.not_passed(found) if told.startswith("refuse")]
    seen = [f"{len(found)} checks, {len(judging.not_passed(found))} not passed", *judging.not_passed(found)]
    return Findings([*problems, *refused], seen)


def prep(stage: Stage) -> Findings:
    """Every knob read, none written."""
    answer = stage.ask("prep")
    results = judging.knob_results(answer.document)
    counts = {outcome: sum(result["outcome"] == outcome for result in results) for outcome in judging.SETTINGS_READ}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return Findings([*judging.ended(answer.exit_code, answer.document, 0), *judging.only_read(answer.document)], [told])


def launch(stage: Stage) -> Findings:
    """The tiny model, from nothing."""
    answer = stage.ask("launch", "--backend", FIRST, "--yes")
    problems = judging.came_to_serve(answer.exit_code, answer.document, stage.status(), FIRST)
    return Findings(problems, [f"{answer.seconds:.0f} s from the command to its end", f"then {stage.memory()} in use"])


def measure(stage: Stage) -> Findings:
    """Ours, SGLang's own benchmark, ours again, on the same server."""
    sizes = stage.box.setting.sizes
    flags = ("--batch", ",".join(map(str, sizes)), "--input", str(_INPUT), "--output", str(_OUTPUT))
    before = stage.ask("measure", *flags)
    problems = judging.measured(before.exit_code, before.document, sizes)
    lines, trouble = _bench_one_batch(stage, sizes)
    after = stage.ask("measure", *flags)
    problems += judging.measured(after.exit_code, after.document, sizes)
    reports = [answer.document["report"] for answer in (before, after) if answer.document.get("report")]
    rows = timing_columns.rows(timing_columns.ours(reports), timing_columns.theirs(lines))
    ratios = [f"batch {row.batch}: {row.ratio:.3f} of bench_one_batch_server's" for row in rows if row.ratio is not None]
    words = [sentence for report in reports for batch in report["batches"] for sentence in batch["disagreements"]]
    return Findings([*problems, *trouble], [*ratios, *words], timing_columns.markdown(rows))


def _bench_one_batch(stage: Stage, sizes: tuple[int, ...]) -> tuple[str, list[str]]:
    """What SGLang's own benchmark has written, a line for each batch size, and why there is less."""
    box = stage.box
    result = box.folder / "bench-one-batch.jsonl"
    result.unlink(missing_ok=True)
    argv = [str(box.setting.python), "-m", "sglang.bench_one_batch_server", "--model", "None", "--base-url", box.url]
    argv += ["--dataset-name", "random-ids", "--batch-size", *map(str, sizes), "--input-len", str(_INPUT), "--output-len", str(_OUTPUT)]
    argv += ["--result-filename", str(result)]
    given = box.setting.environment
    path = ":".join(filter(None, [given.get("PYTHONPATH"), str(_STANDINS)]))
    environment = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), **given, "PYTHONPATH": path}
    answer = box.operator.run(argv, "bench-one-batch", environment, stage.deadline.left() * 0.6)
    lines = result.read_text(encoding="utf-8") if result.exists() else ""
    if answer.exit_code == 0 and lines:
        return lines, []
    said = answer.errors.strip().splitlines()[-1:] or ["it said nothing"]
    return lines, [f"bench_one_batch_server ended with {answer.exit_code}: {said[0]}"]


def preflights(stage: Stage) -> Findings:
    """Every shipped profile against the installed SGLang."""
    names = sorted(path.stem for path in (REPOSITORY / "inventory" / "backends").glob("*.yml"))
    with ThreadPoolExecutor(_BESIDE if (os.cpu_count() or 1) > 2 * _BESIDE else 1) as pool:
        answers = list(pool.map(lambda name: stage.ask("preflight", "--backend", name), names))
    rows = [judging.preflight_row(name, answer.exit_code, answer.document) for name, answer in zip(names, answers, strict=True)]
    return Findings([problem for _, problems in rows for problem in problems], [line for line, _ in rows])


def relaunch(stage: Stage) -> Findings:
    """From one backend to the other, timed before and after."""
    other = SECOND if stage.server()["backend"] == FIRST else FIRST
    answer = stage.ask("relaunch", "--backend", other, "--yes")
    problems = judging.came_to_serve(answer.exit_code, answer.document, stage.status(), other)
    problems += judging.switched_as_planned(answer.document) + judging.timed(answer.result)
    return Findings(problems, [f"to {other}", *_told_of_switch(answer.document)])


def _told_of_switch(document: dict[str, object]) -> list[str]:
    """How a switch went, in a few words; none where nothing was stopped."""
    result = document.get("result")
    if not isinstance(result, dict) or result["dark_seconds"] is None:
        return []
    told = [f"{'staged' if result['staged'] else 'sequential'}, dark for {result['dark_seconds']:.1f} s"]
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result["dark_phases"].items() if seconds >= 0.1)
    rates = [timing["tokens_per_second"] for timing in (result["baseline"], result["measured"]) if timing]
    told += [f"dark in {phases}"] if phases else []
    return told + ([f"{rates[0]:.0f} tokens/s before, {rates[1]:.0f} after"] if len(rates) == 2 else [])


def refuse_broken(stage: Stage) -> Findings:
    """A backend that can't work here, refused with the server untouched."""
    before = stage.server()
    answer = stage.ask("relaunch", "--backend", BROKEN, "--yes")
    problems = judging.refused(answer.exit_code, answer.document, because_of=REFUSED_BY)
    if stage.server()["main"] != before["main"]:
        problems.append("another server runs than before")
    return Findings(problems, [f"{item['check']}: {item['detail']}" for item in judging.refusing(answer.document)])


def force_broken(stage: Stage) -> Findings:
    """The same against all advice: told by its class, and the old server back."""
    before = stage.server()
    answer = stage.ask("relaunch", "--backend", BROKEN, "--yes", "--force", "--no-measure")
    problems = judging.failed_and_came_back(answer.exit_code, answer.document, stage.status(), before["backend"])
    failure = answer.result.get("failure") or {}
    seen = [f"{failure.get('category')}: {failure.get('summary')}", *map(str, failure.get("evidence", [])[:2])]
    return Findings(problems, [*seen, *_told_of_switch(answer.document)])


def sweep(stage: Stage) -> Findings:
    """Two backends, forth and back, and then what served before."""
    rounds, sizes = 2, stage.box.setting.sizes[:2]
    answer = stage.ask(
        *("sweep", "--backends", f"{FIRST},{SECOND}", "--rounds", str(rounds), "--restore", "--yes"),
        *("--batch", ",".join(map(str, sizes)), "--input", str(_INPUT), "--output", str(_OUTPUT)),
    )
    problems = judging.swept(answer.exit_code, answer.document, 2, rounds) + judging.serves(stage.status())
    seen = [
        f"{point['point']['backend']}: {_milliseconds(batch['time'])} a token at batch {batch['batch_size']}"
        for point in answer.document.get("points", ())
        for batch in point["batches"]
    ]
    return Findings(problems, [*seen, *filter(None, [answer.document.get("said")])])


def budget(stage: Stage) -> Findings:
    """Where the time of a decode step goes, by the model's own shapes."""
    answer = stage.ask("budget", "--batch", ",".join(map(str, stage.box.setting.sizes)))
    problems = judging.budgeted(answer.exit_code, answer.document) + judging.serves(stage.status())
    return Findings(problems, [_told_of_budget(step) for step in answer.document.get("steps", ())])


def _told_of_budget(step: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{name} {_milliseconds(step[key])}" for name, key in (("floor", "floor"), ("GEMM", "gemm"), ("rest", "residual")))
    return f"batch {step['batch_size']}: step {_milliseconds(step['step'])}: {parts}"


def profile(stage: Stage) -> Findings:
    """Where the time of a decode step goes, by kernels."""
    answer = stage.ask("profile")
    problems = judging.profiled(answer.exit_code, answer.document, on_gpu=stage.box.setting.has_gpu)
    seen = []
    for rank in answer.document.get("ranks", ()):
        classes = ", ".join(f"{name} {_milliseconds(work['seconds'])}" for name, work in rank["classes"].items())
        seen.append(f"step {_milliseconds(rank['step'])}, busy {_milliseconds(rank['busy'])}: {classes}")
    return Findings([*problems, *judging.serves(stage.status())], seen)


def _milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.3f} ms"


STEPS = (
    Step("doctor", "the machine before anything runs", doctor, ANYTHING, 20, 90),
    Step("prep", "observe mode: every knob read, none written", prep, ANYTHING, 10, 60),
    Step("launch", "the tiny model, from nothing, cold caches", launch, NOTHING, 150, 420),
    Step("measure", "batch sizes beside bench_one_batch_server", measure, SERVING, 90, 300),
    Step("preflights", "every shipped profile against the installed SGLang", preflights, SERVING, 60, 240),
    Step("relaunch", f"{FIRST} to {SECOND}", relaunch, SERVING, 80, 240),
    Step("refuse-broken", f"{BROKEN} is refused", refuse_broken, SERVING, 15, 90),
    Step("force-broken", f"{BROKEN} with --force: classified, rolled back", force_broken, SERVING, 110, 300),
    *endings.STEPS,
    Step("sweep", f"{FIRST} and {SECOND}, two rounds", sweep, SERVING, 330, 560),
    Step("budget", "floor, GEMM, all-reduce, residual", budget, SERVING, 60, 240, needs_gpu=True),
    Step("profile", "kernel time by class", profile, SERVING, 60, 240),
)
