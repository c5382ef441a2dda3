"""What is read off the verbs' functions is what the parser takes, and a command line that is shown can be typed."""

from __future__ import annotations

import shlex

import pytest
from invoke.parser import Parser

from orchestrator.cli.runbook_text import command_line
from orchestrator.cli.tasks import namespace
from orchestrator.cli.verbs import tasks, verb_flags
from orchestrator.config.playbook import Playbook, Step
from orchestrator.config.playbook_files import load_playbooks

STEPS = [(file.playbook, step) for file in load_playbooks(None, verb_flags()) for step in file.playbook.steps if step.verb is not None]


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser(contexts=namespace.to_contexts())


def test_every_verb_of_the_program_has_its_flags() -> None:
    assert set(verb_flags()) == set(namespace.task_names)
    for name, task in tasks().items():
        told = verb_flags()[name]
        taken = {argument.names[0]: argument for argument in task.get_arguments(ignore_unknown_help=True)}
        assert set(told.flags) == set(taken), name
        assert {flag for flag, argument in taken.items() if argument.kind is bool} == told.switches, name


@pytest.mark.parametrize(("playbook", "step"), STEPS, ids=[f"{playbook.name}-{step.id}" for playbook, step in STEPS])
def test_the_command_line_of_a_step_is_understood(playbook: Playbook, step: Step, parser: Parser) -> None:
    assert step.verb is not None
    flags = {name: value if isinstance(value, bool) else "some text" for name, value in step.arguments.items()}
    (context,) = parser.parse_argv(shlex.split(command_line(verb_flags()[step.verb], flags))[1:])
    assert context.name == step.verb
    got = {name: context.args[name].value for name in flags}
    assert got == flags


@pytest.mark.parametrize(
    ("verb", "flags", "line"),
    [
        ("relaunch", {"measure": True}, "fab relaunch"),
        ("relaunch", {"measure": False, "force": True}, "fab relaunch --no-measure --force"),
        ("launch", {"measure": False}, "fab launch"),
        ("launch", {"measure": True, "reason": "it's needed"}, """fab launch --measure --reason 'it'"'"'s needed'"""),
        ("compare", {"second": "b", "first": "a"}, "fab compare a b"),
    ],
)
def test_a_switch_is_shown_where_it_differs_from_what_is_usual(verb: str, flags: dict[str, str | bool], line: str) -> None:
    assert command_line(verb_flags()[verb], flags) == line
