"""Completion: what Tab offers (data/completion.yml), that it describes the tasks that there are, and that three real shells take it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import completing, completion, edge, program
from orchestrator.cli.candidate_values import is_known
from orchestrator.cli.names import Names
from orchestrator.cli.verbs import tasks, verb_flags
from orchestrator.config.inventory import TAKES_SEVERAL
from tests.rig.terminal import Terminal, on_a_terminal
from tests.unit.flows.samples import write_inventory

REPOSITORY = Path(__file__).resolve().parents[3]
CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "data" / "completion.yml").read_text(encoding="utf-8"))
RUNS = ("20261128T100000Z-relaunch-gpu1-glm5", "20261129T100000Z-measure-gpu1-glm5", "20261130T100000Z-sweep-gpu1-glm5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a fabfile, an inventory, a playbook of one's own and three runs."""
    path = tmp_path_factory.mktemp("operator")
    shutil.copy(REPOSITORY / "fabfile.py", path)
    inventory = write_inventory(path / "inventory", second_host=True)
    with (inventory / "hosts.yml").open("a", encoding="utf-8") as stream:
        stream.write("groups:\n  both: [gpu1, gpu2]\n")
    for kind, name in (("tuning", "quiet"), ("sweeps", "steps"), ("routers", "front")):
        (inventory / kind).mkdir()
        (inventory / kind / f"{name}.yml").write_text(f"name: {name}\nsummary: for {name}\n", encoding="utf-8")
    (path / "playbooks").mkdir()
    (path / "playbooks" / "own.yml").write_text("name: own\ntitle: One's own\n", encoding="utf-8")
    for name in RUNS:
        (path / "runs" / name).mkdir(parents=True)
    return path


@pytest.fixture
def tab(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Asks as the bash script does; the candidates with what bash has of the word already, and what of the disk may stand there."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ORCHESTRATOR_INVENTORY", raising=False)
    monkeypatch.delenv("ORCHESTRATOR_RUNS", raising=False)
    monkeypatch.setenv(completing.SHELL_VARIABLE, "zsh")

    def ask(line: str) -> tuple[list[str], str]:
        made = program.make_program()
        monkeypatch.setattr(edge, "front_end", made)
        with pytest.raises(SystemExit) as ended:
            made.run(["orchestrator", "--complete", "--", *completing.split(line)])
        out, errors = capsys.readouterr()
        assert (ended.value.code, errors) == (0, "")
        *candidates, ending = out.splitlines()
        return [text.partition("\t")[0] for text in candidates], ending

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["line"])
def test_what_tab_offers(tab: Any, case: dict[str, Any]) -> None:
    offered, ending = tab(case["line"])
    if "gives" in case:
        assert offered == case["gives"]
        assert ending == f":{case.get('disk', 'none')}"
    assert set(case.get("has", ())) <= set(offered)
    assert not set(case.get("not", ())) & set(offered)


def test_something_is_said_on_the_values_of_every_flag() -> None:
    unknown = [f"{name} --{flag}" for name, item in verb_flags().items() for flag in sorted(item.values) if not is_known(name, flag)]
    assert unknown == [], "say in candidate_values.py what their values are, or that nobody knows (FREE)"


def test_every_verb_that_takes_several_hosts_completes_a_second_one(tab: Any) -> None:
    for verb in TAKES_SEVERAL:
        assert "gpu1,gpu2" in tab(f"orchestrator {verb} --host gpu1,")[0], verb


def test_a_group_may_hold_others(tmp_path: Path) -> None:
    inventory = write_inventory(tmp_path / "inventory")
    with (inventory / "hosts.yml").open("a", encoding="utf-8") as stream:
        stream.write("groups:\n  one: [gpu1]\n  more: [one, gpu2, gpu1]\n  odd: gpu1\n")
    names = Names(inventory, tmp_path / "none")
    assert names.groups == {"one": ["gpu1"], "more": ["gpu1", "gpu2"], "odd": []}
    assert names.hosts_of("more,gpu3/7") == {"gpu1", "gpu2", "gpu3"}


def test_a_verb_is_described_as_the_parser_knows_it() -> None:
    """Again and again, although making the parser's own description uses up its help texts."""
    for name, task in tasks().items():
        task.get_arguments(ignore_unknown_help=True)
        described, again = completing.describe(task), completing.describe(task)
        assert described == again
        flags = verb_flags()[name]
        assert {flag.name for flag in described.flags} == flags.switches | flags.values
        assert {flag.name for flag in described.flags if flag.takes_value} == flags.values
        assert all(flag.help for flag in described.flags), name


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fab relaunch ", ["fab", "relaunch", ""]),
        ("fab relaunch", ["fab", "relaunch"]),
        ("fab --reason 'two words' --h", ["fab", "--reason", "two words", "--h"]),
        ("fab --reason 'two wo", ["fab", "--reason", "two wo"]),
        ('fab --reason "two ', ["fab", "--reason", "two "]),
        ("fab --reason two\\ words ", ["fab", "--reason", "two words", ""]),
        ("fab relaunch \\", ["fab", "relaunch", ""]),
        ("", [""]),
    ],
)
def test_a_line_that_is_not_finished_is_split(line: str, words: list[str]) -> None:
    assert completing.split(line) == words


BROKEN = {
    "no mapping": "- gpu1\n",
    "no YAML": "hosts: [unclosed\n",
    "another shape": "hosts:\n  - gpu1\n",
    "no text": "\0\1\2",
    "a tag": "hosts: !!python/object/apply:os.system ['true']\n",
    "recursive": "hosts: &a\n  gpu1: *a\n",
    "empty": "",
    "deep": "hosts: " + "[" * 5000,
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_broken_has_no_names_and_says_nothing(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    inventory = write_inventory(tmp_path / "inventory")
    (inventory / "hosts.yml").write_text(text, encoding="utf-8")
    (inventory / "services" / "glm5.yml").write_text(text, encoding="utf-8")
    names = Names(inventory, tmp_path / "none")
    assert set(names.hosts) <= {"gpu1"}
    assert (names.services, names.runs(), list(names.backends)) == ({}, [], ["auto", "ep8", "flashinfer_cutedsl"])
    assert names.inputs("no such runbook") == names.steps("no such runbook") == {}
    assert capfd.readouterr() == ("", "")


def test_names_are_read_without_pydantic(folder: Path) -> None:
    """Nor with anything else that takes its time: one Tab would wait for it."""
    code = (
        "import sys; from orchestrator.cli import entry\n"
        "sys.argv = ['orchestrator', '--complete', '--', 'orchestrator', 'relaunch', '--host', '']\n"
        "try: entry.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'pydantic', 'rich', 'httpx', 'sqlite3', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment(folder), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["gpu1", "gpu2", "[]"]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_is_printed_by_the_verb_and_by_invokes_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in (["completion", shell], ["--print-completion-script", shell]):
        with contextlib.suppress(SystemExit):
            program.make_program().run(["orchestrator", *words])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == completion.script(shell)


def test_of_another_shell_the_known_ones_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.make_program().run(["orchestrator", "completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash, zsh, fish" in capsys.readouterr().err


def environment(folder: Path) -> dict[str, str]:
    scripts = Path(sys.executable).parent
    return {"PATH": f"{scripts}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}


PROMPT = "ready> "


@pytest.fixture(params=["orchestrator", "fab"])
def called(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def shell_of(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on this machine")
    return path


@pytest.fixture
def bash(folder: Path) -> Iterator[Terminal]:
    words = [shell_of("bash"), "--norc", "--noprofile", "-i"]
    with on_a_terminal(words, {**environment(folder), "PS1": PROMPT}, folder=folder) as terminal:
        terminal.wait_for(PROMPT)
        ask(terminal, "bind 'set show-all-if-ambiguous on'; bind 'set enable-bracketed-paste off'\n", PROMPT)
        ask(terminal, "source <(orchestrator completion bash); echo read''y\n", "ready\r\n" + PROMPT)
        yield terminal


@pytest.fixture
def zsh(folder: Path) -> Iterator[Terminal]:
    words = [shell_of("zsh"), "-f", "-i"]
    with on_a_terminal(words, {**environment(folder), "PS1": PROMPT}, folder=folder) as terminal:
        terminal.wait_for(PROMPT)
        ask(terminal, "unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; echo read''y\n", "ready\r\n")
        ask(terminal, "source <(orchestrator completion zsh); echo rea''dy\n", "ready\r\n")
        yield terminal


def ask(terminal: Terminal, typed: str, wanted: str) -> str:
    """Type, wait until `wanted` is shown after it, and return all that is shown from there on."""
    before = len(terminal.read())
    terminal.type(typed)
    terminal.wait_for(wanted, 20.0, after=before)
    return terminal.text[before:]


@pytest.mark.slow
def test_a_real_bash_completes(bash: Terminal, called: str) -> None:
    clear = "\x15"  # Ctrl-U
    ask(bash, f"{called} relaunch --back\t", f"{called} relaunch --backend ")
    ask(bash, "flashinfer_cutedsl+\t", "flashinfer_cutedsl+ep8 ")
    assert "tiny" not in ask(bash, "--host=gpu1 --service \t", "--service glm5 ")
    ask(bash, f"{clear}{called} prep --host gp\t\t", "gpu1/101")
    ask(bash, f"{clear}{called} prep --host=gpu2\t", "--host=gpu2 ")
    ask(bash, f"{clear}{called} runbook.run swi\t--set ba\t", "switch-backend --set ba")
    ask(bash, "c\t", "backend=")
    ask(bash, f"{clear}cd . && {called} hosts --inventory inv\t", "inventory/")
    ask(bash, f"{clear}{called} relaunch --reason 'it is slow' --ser\t", "--service ")


@pytest.mark.slow
def test_a_real_zsh_completes(zsh: Terminal, called: str) -> None:
    clear = "\x15"
    ask(zsh, f"{called} relaunch --back\t", "--backend ")
    ask(zsh, "flashinfer_cutedsl+\t", "+ep8")
    assert "tiny" not in ask(zsh, " --host gpu1 --service \t", "glm5")
    shown = ask(zsh, f"{clear}{called} prep --host gp\t\t", "gpu1/101")
    assert "its container, by pct" in shown
    ask(zsh, f"{clear}{called} hosts --inventory inv\t", "entory/")


@pytest.mark.slow
def test_a_real_fish_completes(folder: Path, called: str) -> None:
    fish = shell_of("fish")

    def complete(line: str) -> list[str]:
        code = f"orchestrator completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            [fish, "--no-config", "-c", code], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    assert complete(f"{called} relaunch --host ") == ["gpu1\t127.0.0.1", "gpu2\t127.0.0.2"]
    assert complete(f"{called} relaunch --host gpu2 --service ") == ["tiny\ton gpu2"]
    assert [line.partition("\t")[0] for line in complete(f"{called} prep --host gpu1,")] == ["gpu1,gpu2", "gpu1,both", "gpu1,gpu1/101"]
    assert complete(f'{called} relaunch --reason "two words" --ser')[0].startswith("--service\t")
    assert any(line.startswith("inventory/") for line in complete(f"{called} hosts --inventory inv"))


@pytest.mark.slow
def test_invokes_own_script_gets_values_too(folder: Path, called: str) -> None:
    """Plain fab prints that one before it reads a fabfile; it loses the empty word at the cursor."""
    for words, offered in ((["relaunch", "--host"], "gpu1\ngpu2\n"), (["relaunch", "--host", "gpu2"], "gpu2\n"), (["rel"], "relaunch\n")):
        done = subprocess.run(
            [called, "--complete", "--", called, *words], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, offered, "")


def test_a_folder_without_an_inventory_has_no_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_INVENTORY", raising=False)
    made = program.make_program()
    with pytest.raises(SystemExit):
        made.run(["orchestrator", "--complete", "--", "orchestrator", "relaunch", "--host", ""])
    assert capsys.readouterr() == ("", "")
