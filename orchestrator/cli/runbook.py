"""runbook.list, runbook.show, runbook.run: ordered steps with their reasons, run by the program or read by a person."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.common import SHARED_FLAGS, TARGET_FLAGS, find_inventory, load
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cli.runbook_hands import Subject
    from orchestrator.config.playbook_files import PlaybookFile
    from orchestrator.results.runbook_record import Recorded

RUN = "runbook.run"
_SET_FLAG = {"set": "INPUT=VALUE of the runbook; again for each input."}


@verb(title="runbook.list", flags=SHARED_FLAGS)
def list(call: Call, inventory: str | None = None, json: bool = False) -> None:  # noqa: A001  # the verb's name
    """Show which runbooks there are: those that came with this program, and those in playbooks/ beside the inventory."""
    from orchestrator.cli.documents.runbooks import RunbookList, RunbookListed
    from orchestrator.cli.runbook_text import list_blocks
    from orchestrator.cli.verbs import verb_flags
    from orchestrator.config.playbook_files import load_playbooks

    files = load_playbooks(_inventory_folder(inventory), verb_flags())
    call.screen.show(list_blocks(files))
    call.answer(RunbookList([RunbookListed(file.playbook.name, file.playbook.title, str(file.path)) for file in files]))


@verb(
    title="runbook.show",
    positional=("name",),
    several=("set",),
    flags={
        "name": "The runbook, by its name.",
        "markdown": "Render it for paper, with the shell commands that do the same by hand; with --host for that host.",
        **_SET_FLAG,
        **TARGET_FLAGS,
    },
)
def show(
    call: Call,
    name: str,
    markdown: bool = False,
    set: Collection[str] | None = None,  # noqa: A002  # the flag's name
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show a runbook: when to use it, its steps, why each is there, what to look at and what to do when it fails."""
    from orchestrator.cli.blocks import Line
    from orchestrator.cli.documents.runbooks import RunbookShown
    from orchestrator.cli.runbook_markdown import markdown_lines
    from orchestrator.cli.runbook_text import show_blocks
    from orchestrator.cli.verbs import verb_flags
    from orchestrator.flows.runbook import defaults

    verbs = verb_flags()
    file = _file(name, inventory)
    given = _given(file, set or ())
    subject = _subject(inventory, host, service) if host is not None or service is not None else None
    text = markdown_lines(file.playbook, verbs, given, subject)
    if markdown:
        call.screen.show([Line(line, whole=True) for line in text])
    else:
        target = subject.flags(("host", "service")) if subject is not None else {}
        call.screen.show(show_blocks(file, verbs, {**defaults(file.playbook), **given}, target))
    call.answer(RunbookShown(file.playbook.name, str(file.path), file.playbook, "\n".join(text)))


@verb(
    title=RUN,
    positional=("name",),
    several=("set",),
    flags={
        "name": "The runbook, by its name.",
        "plan": "Show the steps with what they would be given, and stop.",
        "yes": "Do not ask before each step; steps that a person does by hand are asked about all the same.",
        "done": "Manual steps that have been done by hand already, by their ids with commas.",
        "from": "Begin at this step, by its id; those before it are left out.",
        "resume": "Go on with the newest run of this runbook here, after its last step that ended well.",
        **_SET_FLAG,
        **TARGET_FLAGS,
    },
)
def run(
    call: Call,
    name: str,
    set: Collection[str] | None = None,  # noqa: A002  # the flag's name
    plan: bool = False,
    yes: bool = False,
    done: str = "",
    from_: str | None = None,
    resume: bool = False,
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Go through a runbook step by step, with one question a step; every answer and outcome is kept in the run's folder.

    fab runbook.run switch-backend --set backend=auto --host gpu1 --plan
    fab runbook.run switch-backend --set backend=auto --host gpu1
    fab runbook.run switch-backend --host gpu1 --resume   goes on
    """
    from orchestrator.cli.runbook_run import Session
    from orchestrator.flows.runbook import Way, filled_in
    from orchestrator.flows.runbook_inputs import check_inputs

    file = _file(name, inventory)
    beforehand = _steps(file, "done", done)
    first = _steps(file, "from", from_ or "")
    if len(first) > 1:
        raise UsageError("--from names one step")
    subject = _subject(inventory, host, service)
    if resume and set:
        raise UsageError("--set and --resume at the same time: a run that is resumed has its inputs", next_step="leave out one of the two")
    before = _to_resume(file, subject) if resume else None
    inputs = dict(before.inputs) if before is not None else filled_in(file.playbook, _given(file, set or ()))
    check_inputs(file.playbook, inputs, load(inventory))
    way = Way(inputs, ask=not yes, done=beforehand, first=first[0] if first else None, before=before)
    session = Session(call, file, subject, way)
    if plan:
        return session.show()
    if not yes and not call.screen.interactive:
        raise UsageError("nobody can be asked here: nothing was touched", next_step="give --yes to do it, or --plan to look only")
    return session.walk()


def _inventory_folder(inventory: str | None) -> Path | None:
    """The folder beside which one's own playbooks lie; None where there is no inventory, which reading a runbook doesn't need."""
    if inventory is not None:
        return find_inventory(inventory)[0]
    try:
        return find_inventory(None)[0]
    except UsageError:
        return None


def _file(name: str, inventory: str | None) -> PlaybookFile:
    from orchestrator.cli.verbs import verb_flags
    from orchestrator.config.playbook_files import load_playbook

    return load_playbook(name, _inventory_folder(inventory), verb_flags())


def _given(file: PlaybookFile, texts: Collection[str]) -> dict[str, str]:
    """The inputs that were set.

    Raises:
        UsageError: a text is not INPUT=VALUE, or the runbook has no such input.
    """
    from orchestrator.flows.runbook_inputs import unknown_input

    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"--set takes INPUT=VALUE; {text!r} is not that")
        if name not in file.playbook.inputs:
            raise unknown_input(file.playbook, name)
        if value.startswith("-"):
            raise UsageError(f"the value of {name} begins with '-', which would be taken for a flag")
        given[name] = value
    return given


def _steps(file: PlaybookFile, flag: str, text: str) -> tuple[str, ...]:
    """The steps that a flag names.

    Raises:
        UsageError: there is no such step.
    """
    from orchestrator.config.mistakes import did_you_mean

    named = tuple(part.strip() for part in text.split(",") if part.strip())
    known = [step.id for step in file.playbook.steps]
    for name in named:
        if name not in known:
            near = did_you_mean(name, known).replace("Allowed", "steps")
            step = f"fab runbook.show {file.playbook.name}"
            raise UsageError(f"--{flag}: there is no step {name!r} in {file.playbook.name}", evidence=[near], next_step=step)
    return named


def _subject(inventory: str | None, host: str | None, service: str | None) -> Subject:
    """The host and service that are meant; a service that does not exist yet is one that a step writes."""
    from orchestrator.cli.runbook_hands import Subject
    from orchestrator.flows.target import choose_subject

    loaded = load(inventory)
    chosen, target = choose_subject(loaded, host, service)
    named = target.service.name if target is not None else None
    return Subject(functools.partial(load, inventory), inventory, chosen.name, named)


def _to_resume(file: PlaybookFile, subject: Subject) -> Recorded:
    """The run that is taken up again.

    Raises:
        UsageError: there is none, it has ended well, or the playbook has changed since.
    """
    from orchestrator.results.runbook_record import newest_record

    name = file.playbook.name
    again = f"fab {RUN} {name} --host {subject.host}"
    found = newest_record(RUN, name, subject.host, subject.service)
    if found is None:
        raise UsageError(f"no run of {name} on {subject.host} is kept here", next_step=again)
    if found.ended == "done":
        raise UsageError(f"nothing to resume: {found.path.name} has come to its end", next_step=again)
    if found.digest != file.digest:
        raise UsageError(
            f"{file.path} was changed since {found.path.name} began: its steps may be others", next_step=f"{again} --from STEP, with --set"
        )
    return found
