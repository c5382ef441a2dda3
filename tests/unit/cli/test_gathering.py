"""Words that follow a verb without a flag."""

from __future__ import annotations

import subprocess
import sys

import pytest
from invoke.parser import Parser

from orchestrator.cli.edge import GATHERING
from orchestrator.cli.gathering import gathered
from orchestrator.cli.program import make_program


@pytest.fixture(scope="module")
def parser() -> Parser:
    program = make_program()
    contexts = program.namespace.to_contexts()
    return Parser(initial=program.initial_context, contexts=contexts)


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("report", "report"),
        ("report A", "report --runs=A"),
        ("report A B --out F C", "report --out F --runs=A,B,C"),
        ("report --out=F A", "report --out=F --runs=A"),
        ("report --json A", "report --json --runs=A"),
        ("export --format sglang A", "export --format sglang --runs=A"),
        ("show A", "show --run=A"),
        ("-H gpu1 show A", "-H gpu1 show --run=A"),
        ("report A show B", "report --runs=A show --run=B"),
        ("compare A B", "compare A B"),
        ("relaunch A", "relaunch A"),
        ("report --help", "report --help"),
        ("report --out A", "report --out A"),
        ("report --runs A B", "report --runs A --runs=B"),
        ("docs host sweep", "docs --topics=host,sweep"),
        ("docs", "docs"),
        ("docs --json docs", "docs --json --topics=docs"),
    ],
)
def test_words_become_the_flag_of_their_verb(parser: Parser, typed: str, parsed: str) -> None:
    assert gathered(typed.split(), parser, GATHERING) == parsed.split()


def test_help_tells_what_each_flag_is_for() -> None:
    """In a process of its own: invoke takes a task's help apart when it is first asked for its flags."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "report", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Run folders, by name" in done.stdout


def test_the_verbs_that_take_any_number_of_words() -> None:
    assert GATHERING == {"init": "address", "show": "run", "report": "runs", "export": "runs", "docs": "topics"}
