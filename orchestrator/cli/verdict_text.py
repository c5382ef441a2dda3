"""The last line of a plan: whether the same without ``--plan`` would do it, and the command that does. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.agent import wire
from orchestrator.agent.wire_host import KnobOutcome
from orchestrator.agent.wire_words import locked_by
from orchestrator.cli.blocks import Block, Line

if TYPE_CHECKING:
    from orchestrator.flows.order import Outcome
    from orchestrator.flows.prep_outcome import HostPrep


def again(verb: str, flags: Mapping[str, Any]) -> str:
    """The command line that was given, without ``--plan``. `flags` are the verb's, by its parameters."""
    from orchestrator.cli.runbook_text import command_line
    from orchestrator.cli.verbs import verb_flags

    named = {name.strip("_").replace("_", "-"): value for name, value in flags.items()}
    kept = {name: value for name, value in named.items() if name not in ("plan", "json") and value not in (None, "", [])}
    return command_line(verb_flags()[verb], kept)


def change_verdict(outcome: Outcome, command: str) -> list[Block]:
    """Of a plan that nothing speaks against. One that is refused says so as an error."""
    plan = outcome.plan
    if outcome.lock is not None:
        return [Line(f"would be refused: {locked_by(plan.service, outcome.lock)}", "bad")]
    if plan.verb == wire.OrderKind.TEARDOWN and plan.server is None:
        return [Line(f"nothing to do: nothing of {plan.service} runs", "good")]
    return _ready(command)


def prep_verdict(preps: Sequence[HostPrep], command: str) -> list[Block]:
    """Of what a preparation would do. Hosts that could not be asked are told before it."""
    failed = [prep.host for prep in preps if any(error is not None for error in (prep.error, *(part.error for part in prep.reports)))]
    if len(failed) == len(preps):
        return [Line("would be refused: nothing is known of " + ", ".join(failed), "bad")]
    if any(_would_write(prep) for prep in preps):
        return _ready(command + (f"   # not on {', '.join(failed)}" if failed else ""))
    left = any(result.outcome in KnobOutcome.DRIFT for prep in preps for result in prep.results)
    return [Line("nothing to do from here: what is left takes a person" if left else "nothing to do: all is as wanted", "good")]


def _would_write(prep: HostPrep) -> bool:
    knobs = any(result.outcome == KnobOutcome.WOULD_CHANGE for result in prep.results)
    return knobs or any(part.report is not None and part.report.changes for part in prep.reports)


def _ready(command: str) -> list[Block]:
    return [Line(f"ready: the same without --plan does it: {command}", "good", whole=True)]
