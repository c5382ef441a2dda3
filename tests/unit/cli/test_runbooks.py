"""The runbook verbs over a scripted agent, on a terminal and without, and the rendered ones in docs/."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.cli.edge import Call
from orchestrator.cli.runbook_markdown import markdown_lines
from orchestrator.cli.terminal import TerminalScreen
from orchestrator.cli.verbs import verb_flags
from orchestrator.config.playbook_files import load_playbooks
from orchestrator.results.runbook_record import FILE
from orchestrator.results.runs import operator_name
from tests.unit.cli.test_verbs import Box, Done, box
from tests.unit.flows.fake_agent import FakeAgent, answer
from tests.unit.flows.samples import healthy_agent, survey

__all__ = ["box"]

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "runbooks"

OWN = """
name: own
title: Look, switch, look
when: In tests.
inputs:
  backend: {about: the backend}
steps:
  - {id: look, verb: status, why: To see., look_at: Health., when_it_fails: Try again.}
  - id: switch
    verb: relaunch
    arguments: {backend: {input: backend}, measure: false}
    why: It is wanted.
    look_at: The plan.
    when_it_fails: Call the one who wanted it.
  - {id: talk, manual: Tell everybody., by_hand: [{at: here, run: echo done}], why: They wait., look_at: Answers., when_it_fails: Shout.}
  - {id: serves, check: serves, why: To know., look_at: Health., when_it_fails: Run.}
"""


@pytest.fixture
def own(box: Box) -> Box:
    """A box with a playbook of its own beside the inventory."""
    (box.folder / "playbooks").mkdir()
    (box.folder / "playbooks" / "own.yml").write_text(OWN.lstrip(), encoding="utf-8")
    return box


@pytest.fixture
def on_terminal(own: Box, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run words with somebody at the terminal who gives `answers`, one a question."""

    def run(agent: FakeAgent, answers: list[str], *words: str) -> Done:
        given = iter(answers)
        monkeypatch.setattr("orchestrator.cli.screen.open_screen", lambda redactor, as_json: TerminalScreen(redactor))
        monkeypatch.setattr(TerminalScreen, "interactive", True)
        monkeypatch.setattr("builtins.input", lambda question: next(given))
        return own.run(agent, *words)

    return run


RUN = ("runbook.run", "own", "--set", "backend=flashinfer_cutedsl")


def events(box: Box) -> list[dict[str, Any]]:
    (folder,) = [path for path in box.runs if "-runbook.run-" in path.name]
    return [json.loads(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]


def test_one_document_holds_those_of_the_steps(own: Box) -> None:
    ended = own.run(healthy_agent(), *RUN, "--yes", "--done", "talk", "--json")
    document = ended.document
    assert ended.code == document["exit_code"] == 0
    assert (document["verb"], document["ended"], document["inputs"]) == (
        "runbook.run",
        "done",
        {"backend": "flashinfer_cutedsl"},
    )
    assert [(step["step"], step["verdict"]) for step in document["steps"]] == [
        ("look", "done"),
        ("switch", "done"),
        ("talk", "done"),
        ("serves", "holds"),
    ]
    assert document["steps"][1]["document"]["verb"] == "relaunch"
    assert Path(document["steps"][1]["run"]).is_dir()
    assert Path(document["run"]).is_dir()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--set", "backend=flashinfer_cutedls", "--plan"],
            ["did you mean flashinfer_cutedsl?", "profiles: ", "next: fab backends"],
        ),
        (["--set", "backend=flashinfer_cutedls", "--yes"], ["--set backend: there is no backend profile", "next: fab backends"]),
        (["--set", "bakend=auto", "--plan"], ["has no input 'bakend'", "did you mean backend?", "next: fab runbook.show own"]),
        (["--set", "backend", "--plan"], ["--set takes INPUT=VALUE", "next: fab runbook.run --help"]),
        ([*RUN[2:], "--from", "swich", "--plan"], ["no step 'swich' in own", "did you mean switch?", "next: fab runbook.show own"]),
        ([*RUN[2:], "--done", "tlak", "--plan"], ["no step 'tlak' in own", "did you mean talk?", "next: fab runbook.show own"]),
    ],
)
def test_what_is_mistyped_is_refused_with_the_nearest_name_and_what_to_type(own: Box, words: list[str], told: list[str]) -> None:
    ended = own.run(healthy_agent(), "runbook.run", "own", *words)
    assert ended.code == 2
    assert [text for text in told if text not in " ".join(ended.err.split())] == []
    assert own.runs == []


def test_the_inputs_of_shipped_runbooks_are_looked_up(box: Box) -> None:
    several = box.run(healthy_agent(), "runbook.run", "backend-bakeoff", "--set", "backends=flashinfer_cutedsl,marln", "--plan")
    assert (several.code, "--set backends: there is no backend profile 'marln'" in several.err) == (2, True)
    new = box.run(healthy_agent(), "runbook.run", "adopt-a-server", "--set", "name=quite-new", "--plan")
    assert new.code == 0, new.err


def test_without_yes_and_without_a_terminal_nothing_is_begun(own: Box) -> None:
    ended = own.run(healthy_agent(), *RUN)
    assert ended.code == 2
    assert "nobody can be asked here: nothing was touched" in ended.err
    assert own.runs == []


def test_a_manual_step_waits_for_a_person_also_with_yes(own: Box) -> None:
    ended = own.run(healthy_agent(), *RUN, "--yes")
    assert ended.code == 130
    assert "own: left at step talk: a person is needed for this step" in ended.out
    assert "next: fab runbook.run own --resume --host gpu1 --service glm5   # begins at talk" in ended.out
    resumed = own.run(healthy_agent(), "runbook.run", "own", "--resume", "--yes", "--done", "talk")
    assert resumed.code == 0, resumed.err
    assert "step 2 of 4" not in resumed.out
    again = own.run(healthy_agent(), "runbook.run", "own", "--resume", "--yes")
    assert (again.code, "nothing to resume" in again.err) == (2, True)


def test_a_playbook_that_was_changed_is_not_resumed(own: Box) -> None:
    assert own.run(healthy_agent(), *RUN, "--yes").code == 130
    path = own.folder / "playbooks" / "own.yml"
    path.write_text(path.read_text().replace("Tell everybody.", "Tell nobody."))
    ended = own.run(healthy_agent(), "runbook.run", "own", "--resume", "--yes")
    assert ended.code == 2
    assert "was changed since" in ended.err


def test_on_a_terminal_there_is_one_question_a_step_and_the_verbs_own_counts(own: Box, on_terminal: Callable[..., Done]) -> None:
    ended = on_terminal(healthy_agent(), ["what?", "y", "yes", "y"], *RUN)
    assert ended.code == 0, ended.err
    answered = [(line["step"], line["question"], line["answer"]) for line in events(own) if line["event"] == "answered"]
    assert answered == [("look", "run it?", "yes"), ("switch", "relaunch glm5 in gpu1/101 now?", "yes"), ("talk", "done?", "yes")]


def test_a_change_can_be_left_out_after_its_plan(own: Box, on_terminal: Callable[..., Done]) -> None:
    agent = healthy_agent()
    ended = on_terminal(agent, ["y", "s", "y"], *RUN)
    assert ended.code == 0, ended.err
    assert agent.requests("submit") == []
    assert "step 2 of 4: switch: skipped, left out by a person" in ended.out


def test_leaving_at_a_question_touches_nothing_and_can_be_taken_up(own: Box, on_terminal: Callable[..., Done]) -> None:
    agent = healthy_agent()
    ended = on_terminal(agent, ["y", "q"], *RUN)
    assert (ended.code, agent.requests("submit")) == (130, [])
    resumed = on_terminal(healthy_agent(), ["y", "y"], "runbook.run", "own", "--resume")
    assert resumed.code == 0, resumed.err + resumed.out


def test_a_step_that_fails_tells_its_when_it_fails_and_the_state_of_the_service(own: Box) -> None:
    down = [answer(survey(health="serving")), answer(survey(health="serving")), answer(survey(health="down", server=None))]
    ended = own.run(healthy_agent(survey=down), "runbook.run", "own", "--set", "backend=flashinfer_cutedsl", "--yes", "--from", "serves")
    assert ended.code == 0
    ended = own.run(healthy_agent(survey=[answer(survey(health="down", server=None))]), *RUN, "--yes", "--from", "serves")
    assert ended.code == 7
    text = ended.out.partition("when it fails: Run.")[2]
    assert "health  down" in text
    assert "own: failed at step serves" in text


def test_a_refused_change_ends_with_its_exit_code(own: Box) -> None:
    refusing = wire.PreflightReport([wire.Verdict("kernel", wire.Outcome.REFUSE, "no kernel")], [], survey().server, "0.5.23")
    ended = own.run(healthy_agent(preflight=[answer(refusing)]), *RUN, "--yes")
    assert ended.code == 3
    assert "when it fails: Call the one who wanted it." in ended.out


def test_ctrl_c_in_the_midst_of_a_change_leaves_it_running_and_is_taken_up_by_resume(own: Box) -> None:
    began = wire.Event(wire.EventKind.STATE, wire.to_json(wire.StateEntry(1, wire.State.CHECKED, 1764400000.0, 1.0, "so it is")))
    ended = own.run(healthy_agent(follow=[[began, KeyboardInterrupt()]]), *RUN, "--yes", "--done", "talk")
    assert ended.code == 130
    assert "own: left at step switch" in ended.out
    assert [line["verdict"] for line in events(own) if line["event"] == "outcome"] == ["done", "interrupted"]
    order = wire.OrderStatus("ORDER", "relaunch", "LOADING", True, 1764400000.0, operator_name(), service="glm5")
    agent = healthy_agent(survey=[answer(survey(order=order))], lock=[answer(wire.LockStatus(order=order))])
    resumed = own.run(agent, "runbook.run", "own", "--resume", "--yes", "--done", "talk")
    assert resumed.code == 0, resumed.err + resumed.out
    assert (agent.requests("submit"), len(agent.requests("follow"))) == ([], 1)


def test_a_signal_that_ends_a_runbook_ends_the_verb_in_it() -> None:
    outer, inner = Call("runbook.run", as_json=False), Call("relaunch", as_json=False)
    inner.outer = outer
    assert inner.interrupted_code == 130
    outer.stop_by(signal.SIGTERM)
    assert inner.stopped_by is signal.SIGTERM
    assert inner.interrupted_code == 143


def test_plan_asks_nobody_and_connects_nowhere(own: Box) -> None:
    agent = healthy_agent()
    ended = own.run(agent, *RUN, "--plan")
    assert ended.code == 0
    assert (agent.asked, own.runs) == ([], [])
    assert "fab relaunch --host gpu1 --service glm5 --backend flashinfer_cutedsl --no-measure" in ended.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("runbook.run", "own"), "--set backend=VALUE: the backend"),
        (("runbook.run", "own", "--set", "backend"), "--set takes INPUT=VALUE"),
        (("runbook.run", "own", "--set", "bakend=x"), "has no input 'bakend'"),
        (("runbook.run", "own", "--set", "backend=--force"), "begins with '-'"),
        ((*RUN, "--from", "swich"), "there is no step 'swich' in own"),
        ((*RUN, "--done", "nothing"), "there is no step 'nothing' in own"),
        ((*RUN, "--resume"), "--set and --resume at the same time"),
        (("runbook.run", "own", "--resume"), "no run of own on gpu1 is kept here"),
        (("runbook.show", "onw"), "there is no runbook 'onw'"),
        (("runbook",), "runbook.list"),
    ],
)
def test_mistakes_on_the_command_line(words: tuple[str, ...], told: str, own: Box) -> None:
    ended = own.run(healthy_agent(), *words, *(["--yes"] if words[0] == "runbook.run" else []))
    assert ended.code == 2
    assert told in ended.err
    assert own.runs == []


def test_list_shows_ones_own_and_where_it_lies(own: Box) -> None:
    ended = own.run(healthy_agent(), "runbook.list", "--json")
    assert {item["name"] for item in ended.document["runbooks"]} >= {"own", "after-reboot"}
    assert str(own.folder / "playbooks" / "own.yml") in ended.out


def test_show_by_the_familys_name_and_on_paper_for_one_host(own: Box) -> None:
    shown = own.run(healthy_agent(), "runbook", "own")
    assert shown.code == 0
    assert "fab relaunch --backend BACKEND --no-measure" in shown.out
    paper = own.run(healthy_agent(), "runbook", "own", "--markdown", "--host", "gpu1")
    assert "# where SGLang runs\nssh -p 1 root@127.0.0.1 -t pct enter 101\n" in paper.out
    assert "STATE=/var/lib/orchestrator/glm5" in paper.out
    assert 'fab relaunch --host gpu1 --service glm5 --backend "$BACKEND" --no-measure' in paper.out


def test_the_rendered_runbooks_are_not_stale() -> None:
    """Made by ``make runbooks``; one by ``fab runbook NAME --markdown > docs/runbooks/NAME.md``."""
    verbs = verb_flags()
    wanted = {
        f"{file.playbook.name}.md": "\n".join(markdown_lines(file.playbook, verbs, {}, None)) + "\n" for file in load_playbooks(None, verbs)
    }
    found = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    stale = [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
    assert not stale, f"docs/runbooks is stale ({', '.join(stale)}): run `make runbooks`"


def blocks(path: Path) -> list[str]:
    """What is pasted at once."""
    return re.findall(r"^```sh\n(.*?)^```$", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_a_stop_is_looked_at_before_a_start() -> None:
    """What is pasted whole must not go on over a server that did not end."""
    for path in sorted(DOCS.glob("*.md")):
        for block in blocks(path):
            assert not ("kill -TERM" in block and re.search(r"setsid nohup|systemctl start", block)), (path.name, block)


def test_what_is_to_be_typed_is_a_shells_language() -> None:
    for path in sorted(DOCS.glob("*.md")):
        for block in blocks(path):
            checked = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, (path.name, block, checked.stderr)
