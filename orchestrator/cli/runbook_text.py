"""Runbooks on the screen. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.cli.blocks import Block, Line, Table, Tone, indented
from orchestrator.config import playbook_words as words
from orchestrator.config.playbook import InputReference, Playbook, RunReference, Step, Value
from orchestrator.config.playbook_checks import VerbFlags, Verbs
from orchestrator.config.playbook_files import PlaybookFile
from orchestrator.flows.runbook import Ended, Walked, in_words

_PLACES = {"host": "on the host", "place": "where SGLang runs", "here": "here"}


def list_blocks(files: Sequence[PlaybookFile]) -> list[Block]:
    """All runbooks, one a row."""
    rows = [[file.playbook.name, file.playbook.title, "" if file.shipped else str(file.path)] for file in files]
    columns = ["runbook", "what for", "from"]
    if all(file.shipped for file in files):
        columns, rows = columns[:2], [row[:2] for row in rows]
    return [Table(columns, rows), Line(), Line("fab runbook NAME   # its steps, with their reasons", "quiet")]


def show_blocks(file: PlaybookFile, verbs: Verbs, inputs: Mapping[str, str], target: Mapping[str, str]) -> list[Block]:
    """A runbook whole. `inputs` are put in where they are known, `target` are the flags that each step gets."""
    playbook = file.playbook
    blocks: list[Block] = [Line(f"{playbook.name}: {playbook.title}", "strong"), Line(f"when: {playbook.when}")]
    for name, item in playbook.inputs.items():
        value = inputs.get(name, item.default)
        blocks.append(Line(f"input {name}: {item.about} ({'to be set' if value is None else repr(value)})"))
    for number, step in enumerate(playbook.steps, 1):
        blocks += [Line(), *_step_blocks(step, number, len(playbook.steps), verbs, inputs, target)]
    return blocks


def _step_blocks(step: Step, number: int, steps: int, verbs: Verbs, inputs: Mapping[str, str], target: Mapping[str, str]) -> list[Block]:
    blocks: list[Block] = [Line(_heading(step, number, steps), "strong")]
    blocks += [Line(f"    stops if {in_words(stop, inputs)}: {stop.because}") for stop in step.stop_if]
    blocks += [Line(f"    only if {in_words(condition, inputs)}") for condition in step.only_if]
    if step.verb is not None:
        arguments = {name: _shown(value, inputs) for name, value in step.arguments.items()}
        known = {name: value for name, value in target.items() if name in verbs[step.verb].flags}
        blocks.append(Line(f"    {command_line(verbs[step.verb], {**known, **arguments})}", whole=True))
    if step.check is not None:
        blocks.append(Line(f"    {check_words(step, inputs)}"))
    blocks += manual_blocks(step)
    blocks += [Line(f"    why: {step.why}"), Line(f"    look at: {step.look_at}"), Line(f"    when it fails: {step.when_it_fails}")]
    if step.go_on_after:
        blocks.append(Line(f"    goes on also after: {', '.join(step.go_on_after)}"))
    return blocks


def _heading(step: Step, number: int, steps: int) -> str:
    return f"step {number} of {steps}: {step.id}"


def check_words(step: Step, inputs: Mapping[str, str]) -> str:
    """``check serves (within 900): the service's server is healthy ...``."""
    assert step.check is not None
    given = ", ".join(f"{name} {_shown(value, inputs)}" for name, value in step.arguments.items())
    return f"check {step.check}{f' ({given})' if given else ''}: {words.CHECKS[step.check].about}"


def _shown(value: Value, inputs: Mapping[str, str]) -> bool | str:
    if isinstance(value, InputReference):
        return inputs.get(value.name, value.name.upper())
    if isinstance(value, RunReference):
        return f"RUN_OF_{value.step}"
    return value if isinstance(value, bool) else str(value)


def manual_blocks(step: Step) -> list[Block]:
    """What a person is to do, and what they may type for it."""
    if step.manual is None:
        return []
    blocks: list[Block] = [Line(f"    by hand: {step.manual}", "warn")]
    return [*blocks, *(Line(f"        {command.run}   # {_PLACES[command.at]}", whole=True) for command in step.by_hand)]


def command_line(verb: VerbFlags, flags: Mapping[str, Any], quote: Callable[[str], str] = shlex.quote) -> str:
    """``fab relaunch --backend auto --no-measure --host gpu1``; arguments that a verb needs stand without their flags, first."""
    positional = [quote(str(flags[name])) for name in verb.required if name in flags]
    parts = ["fab", verb.name, *positional]
    for name, value in flags.items():
        if name in verb.required:
            continue
        if isinstance(value, bool):
            parts += [f"--{'' if value else 'no-'}{name}"] if value != (name in verb.on) else []
        else:
            parts += [f"--{name}", quote(str(value))]
    return " ".join(parts)


def begin_blocks(step: Step, number: int, steps: int, command: str) -> list[Block]:
    """A step that is about to be taken: what it does, why, and what to look at."""
    blocks: list[Block] = [Line(), Line(_heading(step, number, steps), "strong")]
    if command:
        blocks.append(Line(f"    {command}", whole=True))
    if step.check is not None:
        blocks.append(Line(f"    check {step.check}: {words.CHECKS[step.check].about}"))
    return [*blocks, *manual_blocks(step), Line(f"    why: {step.why}", "quiet"), Line(f"    look at: {step.look_at}", "quiet")]


def skipped_blocks(step: Step, number: int, steps: int, because: str) -> list[Block]:
    """A step that was left out."""
    return [Line(), Line(f"{_heading(step, number, steps)}: skipped, {because}", "quiet")]


def ended_blocks(step: Step, number: int, steps: int, ended: Ended, *, goes_on: bool) -> list[Block]:
    """How a step ended; where the runbook ends with it, what this step's author says to that."""
    tone: Tone = "good" if ended.verdict in words.GOOD else "warn" if goes_on else "bad"
    code = f" (exit code {ended.exit_code})" if ended.exit_code else ""
    seen = f": {ended.seen}" if ended.seen else ""
    blocks: list[Block] = [Line(f"{_heading(step, number, steps)}: {ended.verdict}{code}{seen}", tone)]
    if ended.verdict in words.GOOD:
        return blocks
    blocks += indented(ended.evidence)
    if ended.next_step:
        blocks.append(Line(f"    -> {ended.next_step}", whole=True))
    return [*blocks, Line("the runbook goes on", "warn")] if goes_on else blocks


def failed_blocks(step: Step) -> list[Block]:
    """What the author of a step says for when it fails."""
    return [Line(), Line(f"when it fails: {step.when_it_fails}", "bad")]


def end_blocks(playbook: Playbook, walked: Walked, resume: str) -> list[Block]:
    """How the whole ended, and what to type to go on."""
    if walked.step is None:
        return [Line(), Line(f"{playbook.name}: done", "good")]
    where = f"{playbook.name}: {_ENDS[walked.how]} at step {walked.step.id}"
    tone: Tone = "good" if walked.how == "done" else "bad" if walked.how == "failed" else "warn"
    blocks: list[Block] = [Line(), Line(f"{where}: {walked.because}", tone)]
    if walked.how == "done":
        return blocks
    return [*blocks, Line(f"next: {resume}   # begins at {walked.step.id}", whole=True)]


_ENDS = {"done": "nothing more to do", "refused": "stopped", "failed": "failed", "left": "left"}
