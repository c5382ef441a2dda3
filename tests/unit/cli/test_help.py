"""The help of every verb, as somebody reads it who has never seen the program."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys

import pytest

from orchestrator.cli.program import make_program
from orchestrator.cli.verbs import tasks
from orchestrator.config.sweep import TimingModel

VERBS = tasks()


SHOW_ALL = """
import contextlib, io, json, sys
import fabric.main
from orchestrator.cli import program
program.Program._make_parser = fabric.main.Fab._make_parser  # one that knows every verb, not only the one that is typed
asked, found = program.make_program(), {}
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    asked.run(["orchestrator", "--help", sys.argv[1]])
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        asked.print_task_help(name)
    found[name] = text.getvalue()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """What ``--help VERB`` prints, in a process of its own: invoke tells the help of a task's flags only once (tasks.py, arg_opts)."""
    done = subprocess.run([sys.executable, "-c", SHOW_ALL, *VERBS], capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_says_what_it_does_in_a_sentence_and_what_each_flag_is_for(name: str, shown: dict[str, str]) -> None:
    about = shown[name].split("\n\n")[1]
    assert about.endswith("."), about
    for parameter in list(inspect.signature(VERBS[name].plain).parameters)[1:]:
        flag = parameter.strip("_").replace("_", "-")
        assert re.search(rf"^  (-\w STRING, )?--(\[no-\])?{flag}(\[?=STRING\]?)? +\S", shown[name], re.MULTILINE), flag


@pytest.mark.parametrize("name", VERBS)
def test_a_number_that_is_an_exit_code_says_so(name: str, shown: dict[str, str]) -> None:
    assert re.findall(r"(?<!exit code )\b[3-9] when\b", shown[name], re.IGNORECASE) == []


@pytest.mark.parametrize("name", VERBS)
def test_help_fits_eighty_columns(name: str, shown: dict[str, str]) -> None:
    assert shown[name].startswith(f"Usage: orchestrator {name} ")
    assert [line for line in shown[name].splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("measure", "Usage: orchestrator measure [--options]"),
        ("measure", "Default: 1,4,16."),
        ("logs", "Default: 200."),
        ("compare", "Usage: orchestrator compare FIRST SECOND [--options]"),
        ("report", "Usage: orchestrator report [RUNS ...] [--options]"),
        ("runbook.run", "  fab runbook.run switch-backend --host gpu1 --resume "),
    ],
)
def test_words_defaults_and_examples_are_there(name: str, told: str, shown: dict[str, str]) -> None:
    assert told in shown[name]


def test_a_verb_that_lacks_a_word_names_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_program().run(["orchestrator", "compare", "one"])
    assert ended.value.code == 2
    assert "next: orchestrator compare --help" in capsys.readouterr().err


def test_what_a_sweep_is_timed_with_is_what_its_model_says(shown: dict[str, str]) -> None:
    text, timing = " ".join(shown["sweep"].split()), TimingModel()
    assert f"with commas; else the file's, else {','.join(map(str, timing.batch))}." in text
    for name in ("input", "output", "repeats", "temperature", "limit"):
        assert re.search(rf"--{name}=STRING [^=]*; else the file's, else {getattr(timing, name):g}\. --", text), name
