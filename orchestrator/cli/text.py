"""The words on the screen: from plans, results and reports to blocks. Pure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import load_limits, wire
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.wire_words import managed
from orchestrator.cli.blocks import Block, Line, Table, Tone, indented
from orchestrator.cli.hook_text import around_blocks
from orchestrator.cli.pace import Timed
from orchestrator.cli.requests_text import requests_blocks
from orchestrator.cli.switch_text import meanwhile, outcome_lines, switch_blocks

if TYPE_CHECKING:
    from orchestrator.flows.plan import Plan
    from orchestrator.remote.waiting import Wait

_VERDICT_TONES: dict[str, Tone] = {
    wire.Outcome.PASS: "",
    wire.Outcome.WARN: "warn",
    wire.Outcome.REFUSE: "bad",
    wire.Outcome.UNKNOWN: "warn",
}
_STATE_TONES: dict[str, Tone] = {
    wire.State.VERIFIED: "good",
    wire.State.DONE: "good",
    wire.State.ROLLING_BACK: "bad",
    wire.State.RESTORED: "warn",
    wire.State.DOWN: "bad",
    wire.State.REFUSED: "bad",
}


def duration(seconds: float) -> str:
    """``8.3 s``, ``4 min 05 s``, ``3 h 12 min``, ``2 d 4 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def moment(unix_time: float, now: float | None = None) -> str:
    """A time as the operator's clock shows it, and how long ago that is."""
    ago = max(0.0, (time.time() if now is None else now) - unix_time)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(unix_time))} ({duration(ago)} ago)"


def state_line(entry: wire.StateEntry) -> tuple[str, Tone]:
    """One state of an order as a line, and its tone."""
    return f"{entry.state:<12}  {entry.reason}", _STATE_TONES.get(entry.state, "")


def progress_line(progress: wire.Progress, timed: Timed | None = None) -> str:
    """What goes on inside a state as a line: for how long, and of a load's phase how long it usually takes."""
    timed = timed or Timed(progress.elapsed)
    detail = f": {progress.detail}" if progress.detail else ""
    return f"{progress.state:<12}  {progress.phase}{detail} ({duration(timed.seconds)}{usually(timed)}){meanwhile(progress.state)}"


def usually(timed: Timed) -> str:
    """How long a phase took in earlier loads, to be added to how long it has gone on; empty where there is nothing to say."""
    if timed.usual is None or not timed.is_worth_telling:
        return ""
    return f", usually {rounded(timed.usual.seconds)}" if not timed.is_overdue else f", never over {rounded(timed.usual.longest)} before"


def overdue_line(progress: wire.Progress, timed: Timed) -> str:
    """Said once of a phase that takes longer than ever."""
    assert timed.usual is not None
    loads = "1 load" if timed.usual.loads == 1 else f"{timed.usual.loads} loads"
    took = f"{duration(timed.seconds)} so far, {rounded(timed.usual.longest)} at most in {loads} before"
    return f"{progress.state:<12}  {progress.phase} takes longer than ever: {took}"


def ended_line(progress: wire.Progress, timed: Timed) -> str:
    """A phase of a load that is over, as it was told of last."""
    usual = "" if timed.usual is None or not timed.is_worth_telling else f", usually {rounded(timed.usual.seconds)}"
    return f"{progress.state:<12}  {progress.phase} took {duration(timed.seconds)}{usual}"


def waiting_line(waits: Sequence[Wait], now: float) -> str:
    """What is waited for at the moment, the longest wait first, and for how long at most."""
    first = min(waits, key=lambda wait: wait.began)
    more = f", and {len(waits) - 1} more" if len(waits) > 1 else ""
    return f"{first.what} ({duration(now - first.began)} of at most {rounded(first.limit)}){more}"


def rounded(seconds: float) -> str:
    """What is only known roughly: whole seconds from ten on."""
    return f"{seconds:.0f} s" if 10 <= seconds < 60 else duration(seconds)


def server_lines(server: wire.ServerInfo, now: float | None = None) -> list[str]:
    """Who serves: process, age, backend, manager; what started it is :func:`server_command`."""
    port = f"port {server.port}" if server.listening else f"port {server.port} (not listening yet)"
    lines = [
        f"process {server.main.pid} on {port}, as {server.user}, since {moment(server.started, now)}",
        f"backend {server.backend or 'unknown'}, launch {server.launch_id or 'not ours'}, {managed(server.manager)}",
    ]
    if server.manager.kind == wire.ManagerKind.UNSUPPORTED and server.manager.detail:
        lines.append(server.manager.detail)
    return lines


def server_command(server: wire.ServerInfo) -> str:
    """The command line that the server runs with."""
    return shlex.join([server.python, *server.entry, *server.arguments])


def difference_table(differences: Sequence[wire.Difference]) -> Table:
    """The differences, the operator's own concern first."""
    order = {"drift": 0, "backend": 1, "sweep": 1, "ours": 2}
    rows = sorted(differences, key=lambda difference: (order.get(difference.origin, 0), difference.name))
    return Table(
        ["what", "name", "now", "then", "because of"],
        [[item.kind, item.name, _value(item.old), _value(item.new), _ORIGINS.get(item.origin, item.origin)] for item in rows],
        tones=tuple((index, "bad") for index, item in enumerate(rows) if item.origin == "drift"),
    )


_ORIGINS = {"backend": "the backend", "sweep": "the sweep", "ours": "this program", "drift": "drift: by hand or an older service file"}


def difference_blocks(differences: Sequence[wire.Difference]) -> list[Block]:
    """The differences as a table, and what a login left in the old server's environment by name alone."""
    inherited = sorted(item.name for item in differences if item.origin == "inherited")
    blocks: list[Block] = [Line(), Line("differences", "strong")]
    rows = [item for item in differences if item.origin != "inherited"]
    if rows:
        blocks.append(difference_table(rows))
    if inherited:
        text = f"{len(inherited)} inherited variables that the service does not set: {', '.join(inherited)}"
        blocks.append(Line(f"  {text}", "quiet"))
    return blocks


def _value(value: str | None) -> str:
    return "(unset)" if value is None else value if value else "(empty)"


def verdict_blocks(verdicts: Sequence[wire.Verdict]) -> list[Block]:
    """Every check with its answer and where it was read; evidence, and what to type next, only where it did not simply pass."""
    blocks: list[Block] = []
    for verdict in verdicts:
        tone = _VERDICT_TONES.get(verdict.outcome, "")
        source = f"[{verdict.source}]" if verdict.source else ""
        blocks.append(Line(f"  {verdict.outcome:<8}{verdict.check}: {verdict.detail}", tone, aside=source))
        if verdict.outcome != wire.Outcome.PASS:
            blocks += indented([f"      {line}" for line in verdict.evidence], "quiet")
            blocks += [Line(f"          -> {verdict.next_step}", whole=True)] if verdict.next_step else []
    return blocks


def plan_blocks(plan: Plan) -> list[Block]:
    """The plan, whole: what runs, what differs, what was checked, what it would be by hand, what to expect."""
    blocks: list[Block] = [Line(), Line(f"{plan.verb} of {plan.service} in {plan.place}", "strong")]
    version = f"SGLang {plan.sglang_version}" if plan.sglang_version else "SGLang's version is unknown"
    load = "" if plan.load is None else f"; {plan.load} requests running or queued"
    if plan.server is not None:
        blocks += [Line(f"  now   {version}{load}"), *indented(server_lines(plan.server))]
        blocks += indented([server_command(plan.server)], whole=True)
    else:
        blocks.append(Line(f"  now   {version}; no server"))
    if plan.launch is not None:
        blocks += [Line(f"  then  backend {plan.launch.backend or 'none'}, launch {plan.launch.launch_id}")]
    if plan.reason:
        blocks += [Line(f"  why   {plan.reason}")]
    if plan.differences:
        blocks += difference_blocks(plan.differences)
    if plan.verdicts:
        blocks += [Line(), Line("checks", "strong"), *verdict_blocks(plan.verdicts)]
    blocks += switch_blocks(plan.staging, verdict_blocks)
    blocks += requests_blocks(plan)
    if plan.overruled:
        blocks += [Line(), Line("overruled by the operator, and kept in the journal", "strong"), *indented(plan.overruled, "warn")]
    blocks += around_blocks(plan)
    if plan.by_hand:
        blocks += [Line(), Line("by hand this would be", "strong"), *indented(plan.by_hand, whole=True)]
    if plan.launch is not None:
        blocks += [Line(), Line(deadlines(plan.policy))]
    blocks += [Line(f"note: {remark}") for remark in plan.remarks]
    return [*blocks, Line()]


def deadlines(policy: wire.Policy) -> str:
    """The deadlines of an order in one line."""
    drain = f"drain {policy.drain:g} s" + (" and then abort" if policy.drain_end == wire.DrainEnd.ABORT else "")
    load = ", ".join(load_limits.told(policy))
    return f"deadlines: {drain}, grace {policy.grace:g} s, clean {policy.clean:g} s, {load}, verify {policy.verify:g} s"


def timing_blocks(baseline: wire.DecodeTiming | None, measured: wire.DecodeTiming | None) -> list[Block]:
    """Old and new side by side; a timing that was skipped says why."""
    skipped = [
        f"the {name} server was not timed: {timing.skipped}"
        for name, timing in (("old", baseline), ("new", measured))
        if timing and timing.skipped
    ]
    old = baseline if baseline and not baseline.skipped else None
    new = measured if measured and not measured.skipped else None
    blocks: list[Block] = [Line(line, "warn") for line in skipped]
    if old or new:
        shown = new or old
        assert shown is not None
        heading = f"decode, batch 1, {shown.input_tokens} tokens in and {shown.output_tokens} out, {len(shown.samples)} repeats"
        blocks = [Line(), Line(heading, "strong"), _timing_table(old, new), *blocks]
    if old and new:
        blocks.append(Line(comparison(old, new), "strong"))
    for name, timing in (("old", old), ("new", new)):
        blocks += [Line(f"  {name}: {remark}", "quiet") for remark in (timing.remarks if timing else [])]
    return blocks


def comparison(old: wire.DecodeTiming, new: wire.DecodeTiming) -> str:
    """Whether decoding is faster, slower, or no difference is shown: the repeats of one must all lie beyond those of the other."""
    before = [sample.time_per_output_token for sample in old.samples]
    after = [sample.time_per_output_token for sample in new.samples]
    ratio = f"{old.time_per_output_token / new.time_per_output_token:.2f} times the tokens per second" if new.time_per_output_token else ""
    if before and after and max(after) < min(before):
        return f"decode is faster: {ratio}"
    if before and after and min(after) > max(before):
        return f"decode is slower: {ratio}"
    return "no difference in decode shown: the repeats overlap"


def _timing_table(old: wire.DecodeTiming | None, new: wire.DecodeTiming | None) -> Table:
    rows = [
        _timing_row("time to first token, ms", old, new, "time_to_first_token", 1000.0),
        _timing_row("time per output token, ms", old, new, "time_per_output_token", 1000.0),
        _timing_row("tokens per second", old, new, "tokens_per_second", 1.0),
    ]
    return Table(["median (lowest-highest)", "old", "new", "new/old"], rows, right=frozenset({"old", "new", "new/old"}))


def _timing_row(label: str, old: wire.DecodeTiming | None, new: wire.DecodeTiming | None, name: str, scale: float) -> list[str]:
    values = [_spread(timing, name, scale) for timing in (old, new)]
    before, after = (float(getattr(timing, name)) if timing else 0.0 for timing in (old, new))
    return [label, *values, f"{after / before:.2f}" if before and after else "-"]


def _spread(timing: wire.DecodeTiming | None, name: str, scale: float) -> str:
    if timing is None:
        return "-"
    if name == "tokens_per_second":
        samples = [1.0 / item.time_per_output_token for item in timing.samples if item.time_per_output_token > 0]
    else:
        samples = [float(getattr(item, name)) for item in timing.samples]
    text = _number(getattr(timing, name) * scale)
    return f"{text} ({_number(min(samples) * scale)}-{_number(max(samples) * scale)})" if samples else text


def _number(value: float) -> str:
    """Short enough for two of them and their ranges on a line."""
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def result_blocks(result: wire.OrderResult) -> list[Block]:
    """How an order ended: timings, warnings, then one line that says it all."""
    blocks = timing_blocks(result.baseline, result.measured)
    notable = [verdict for verdict in result.verdicts if verdict.outcome != wire.Outcome.PASS]
    if notable:
        blocks += [Line(), *verdict_blocks(notable)]
    if result.failure is not None:
        blocks += [Line(), *failure_blocks(result.failure)]
    tone: Tone = "good" if result.exit_code == 0 else "warn" if result.exit_code == 6 else "bad"
    so_far = " so far" if result.state == wire.State.DOWN else ""
    dark = "" if result.dark_seconds is None else f"; dark for {duration(result.dark_seconds)}{so_far}"
    blocks += [Line(), Line(f"{result.state}: {result.summary}", tone), Line(f"service: {result.service}{dark}{_lost(result)}")]
    blocks += outcome_lines(result)
    if result.next_step:
        blocks.append(Line(f"next: {result.next_step}", whole=True))
    return blocks


_NOT_THE_SERVERS = frozenset({Category.CANCELLED, Category.REBOOTED, Category.SUPERVISOR_ENDED, Category.ANOTHER_RANK})
"""Classes that say nothing against the new server."""


def _lost(result: wire.OrderResult) -> str:
    """How many requests the stop cost, where one was made."""
    if result.lost_requests is None:
        return "" if result.dark_seconds is None else "; how many requests were lost is not known: the old server did not say"
    return f"; {result.lost_requests or 'no'} request{'' if result.lost_requests == 1 else 's'} lost"


def failure_blocks(failure: wire.Failure) -> list[Block]:
    """Why a launch failed, with the lines that show it."""
    status = f" ({ended(failure.exit_status)})" if failure.exit_status else ""
    what = "it did not go on" if failure.category in _NOT_THE_SERVERS else "the new server failed"
    blocks: list[Block] = [Line(f"{what}: {failure.summary}{status} [{failure.category}]", "bad")]
    blocks += indented(failure.evidence)
    if failure.advice:
        blocks.append(Line(f"  {failure.advice}"))
    if failure.retry:
        blocks.append(Line("  the same launch may succeed when it is tried again"))
    blocks.append(Line(f"  see: {', '.join(commands([failure.category]))}"))
    return blocks


def ended(exit_status: str) -> str:
    """An exit status as systemd puts it (``exit-code exited 2``, ``signal killed KILL``), in a person's words."""
    how, _, what = exit_status.rpartition(" ")
    if how.endswith("exited"):
        return f"exited with {what}"
    if how.endswith(("killed", "dumped")):
        return f"killed by SIG{what}"
    return f"exit status {exit_status}"


def error_blocks(message: str, evidence: Sequence[str], next_step: str | None, see: Sequence[str] = ()) -> list[Block]:
    """What went wrong, the evidence, what to type next, and the commands that show pages which tell more."""
    blocks: list[Block] = [Line(message, "bad"), *indented(evidence)]
    if next_step:
        blocks.append(Line(f"next: {next_step}", whole=True))
    if see:
        blocks.append(Line(f"see: {', '.join(see)}"))
    return blocks


def pages_on(result: wire.OrderResult | None) -> list[str]:
    """The pages that tell more of how an order ended."""
    return [result.failure.category] if result is not None and result.failure is not None else []


def commands(see: Sequence[str]) -> list[str]:
    """The commands that show pages."""
    return [f"fab docs {name}" for name in see]
