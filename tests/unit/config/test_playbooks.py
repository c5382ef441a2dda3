"""Playbooks: each file of data/playbook_mistakes is one with mistakes, and the lines that must tell of them (``...`` ends a prefix)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.cli.verbs import verb_flags
from orchestrator.config import playbook_words as words
from orchestrator.config.playbook_files import load_playbook, load_playbooks, read_playbook
from orchestrator.errors import ConfigError, UsageError
from orchestrator.flows.by_hand import check_by_hand, verb_by_hand
from orchestrator.flows.runbook import CHANGES, RESUMABLE
from orchestrator.flows.runbook_facts import CHECKS, FACTS
from orchestrator.folders import playbook_paths, shipped_playbooks

ROOT = Path(__file__).parents[3]
CASES = sorted((Path(__file__).parent / "data" / "playbook_mistakes").glob("*.case"))
SHIPPED = {
    "after-reboot",
    "switch-backend",
    "backend-bakeoff",
    "emergency-restart",
    "roll-back",
    "slow-decode",
    "gpu-missing",
    "cuda-init-fails",
    "drain-for-maintenance",
    "adopt-a-server",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_mistake_is_told_with_its_line(case: Path, tmp_path: Path) -> None:
    _, text, expected = re.split(r"^=== \S+\n", case.read_text(encoding="utf-8"), flags=re.MULTILINE)
    path = tmp_path / "bad.yml"
    path.write_text(text, encoding="utf-8")
    loaded, mistakes = read_playbook(path, verb_flags())
    assert loaded is None
    told = sorted((str(mistake).replace(f"{tmp_path}/", "") for mistake in mistakes), key=lambda line: (int(line.split(":")[1]), line))
    wanted = sorted(expected.splitlines(), key=lambda line: (int(line.split(":")[1]), line))
    assert len(told) == len(wanted), told
    for line, start in zip(told, wanted, strict=True):
        assert line.startswith(start[:-3]) if start.endswith("...") else line == start, (line, start)


def test_the_shipped_ones_are_those_promised_and_valid() -> None:
    files = load_playbooks(None, verb_flags())
    assert {file.playbook.name for file in files} == SHIPPED
    assert all(file.shipped for file in files)


def test_what_a_shipped_step_is_by_hand_is_known() -> None:
    """And every change of a runbook ends with somebody looking whether it serves."""
    for file in load_playbooks(None, verb_flags()):
        for step in file.playbook.steps:
            if step.verb is not None:
                assert verb_by_hand(step.verb, {}), f"{file.path}: nobody has written down what {step.verb} is by hand"
            if step.check is not None:
                assert check_by_hand(step.check, {}), f"{file.path}: nobody has written down how {step.check} is checked by hand"
        changes = [number for number, step in enumerate(file.playbook.steps) if step.verb in (*CHANGES, *RESUMABLE)]
        looks = [number for number, step in enumerate(file.playbook.steps) if step.check == "serves"]
        assert not changes or max(looks) > max(changes), f"{file.path}: nobody looks whether it serves after the last change"


def test_what_only_looks_stops_nothing_by_hand_either() -> None:
    for file in load_playbooks(None, verb_flags()):
        for step in file.playbook.steps:
            if step.verb is None or (step.verb in CHANGES and not step.arguments.get("list")):
                continue
            typed = "\n".join(item.text for item in verb_by_hand(step.verb, dict.fromkeys(step.arguments, True)))
            assert step.verb in RESUMABLE or "kill -TERM" not in typed, (file.path, step.id)


def test_runbooks_that_a_playbook_sends_to_exist_with_their_flags() -> None:
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        for name, flag in re.findall(r"fab runbook\.run ([a-z-]+)(?: --([a-z-]+))?", path.read_text(encoding="utf-8")):
            assert name in SHIPPED, (path, name)
            assert flag in {"", *verb_flags()["runbook.run"].flags}, (path, flag)


def test_verbs_that_a_playbook_speaks_of_exist() -> None:
    known = {*verb_flags(), "runbook"}
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        spoken = re.findall(r"\bfab ([a-z][a-z.]*[a-z])", path.read_text(encoding="utf-8"))
        assert set(spoken) <= known, (path, set(spoken) - known)


def test_steps_that_a_playbook_sends_to_exist() -> None:
    for file in load_playbooks(None, verb_flags()):
        ids = {step.id for step in file.playbook.steps}
        for named in re.findall(r"--from ([a-z][a-z-]*[a-z])", file.path.read_text(encoding="utf-8")):
            assert named in ids, (file.path, named)


def test_every_word_can_be_read_and_every_finding_is_one_of_the_doctors() -> None:
    assert set(FACTS) == set(words.FACTS)
    assert set(CHECKS) == set(words.CHECKS)
    sources = [path.read_text(encoding="utf-8") for part in ("agent", "flows") for path in (ROOT / "orchestrator" / part).glob("*.py")]
    told = set(re.findall(r'"([a-z_]+)"', "\n".join(text for text in sources if "Verdict(" in text or "check" in text)))
    assert set(words.FINDINGS) <= told
    assert {*CHANGES, *RESUMABLE} <= set(verb_flags())


def test_ones_own_playbook_counts_instead_of_a_shipped_one_of_its_name(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    own = tmp_path / "playbooks"
    own.mkdir()
    text = (shipped_playbooks() / "roll-back.yml").read_text(encoding="utf-8")
    (own / "roll-back.yml").write_text(text.replace("title: Go back", "title: Our way to go back"), encoding="utf-8")
    assert playbook_paths(inventory)["roll-back"] == own / "roll-back.yml"
    loaded = load_playbook("roll-back", inventory, verb_flags())
    assert (loaded.shipped, loaded.playbook.title.startswith("Our way")) == (False, True)
    assert load_playbook("after-reboot", inventory, verb_flags()).shipped


def test_an_unknown_name_tells_what_there_is() -> None:
    with pytest.raises(UsageError, match="no runbook 'after-rebot'") as caught:
        load_playbook("after-rebot", None, verb_flags())
    assert caught.value.evidence[0].startswith("did you mean after-reboot?")


def test_a_broken_file_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "mine.yml").write_text("name: mine\ntitle: [\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_playbook("mine", tmp_path / "inventory", verb_flags())
    assert re.match(r".*/mine\.yml:\d+: \(file\): is not YAML", caught.value.evidence[0])
