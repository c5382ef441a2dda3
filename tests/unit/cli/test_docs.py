"""`fab docs`, and the verbs that send somebody there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.blocks import Line
from orchestrator.cli.docs_text import page_blocks
from orchestrator.config.sections import SECTIONS
from orchestrator.reference.pages import EXAMPLES, topics
from tests.rig.documents import checked
from tests.unit.cli.test_front_ends import REPOSITORY, FrontEnd, front_end, orchestrator
from tests.unit.cli.test_verbs import FAILURE, RELAUNCH, Box, box, restored
from tests.unit.flows.samples import healthy_agent, relaunch_script

__all__ = ["box", "front_end", "orchestrator"]


def test_without_a_name_every_topic_is_listed(front_end: FrontEnd) -> None:
    shown = front_end.run("docs")
    assert shown.returncode == 0
    named = {line.split()[0] for line in shown.stdout.splitlines() if line.strip()}
    assert set(topics()) <= named
    assert {*SECTIONS, "out_of_memory_kv_cache", "exit-codes", "findings"} <= named


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_printed_so_that_it_can_be_kept_as_a_file(front_end: FrontEnd, section: str) -> None:
    """Also `sweep`, which is a verb as well."""
    assert front_end.run("docs", section).stdout == (EXAMPLES / f"{section}.yml").read_text(encoding="utf-8")


def test_several_are_shown_one_below_the_other(orchestrator: FrontEnd) -> None:
    shown = orchestrator.run("docs", "floor", "sweep").stdout
    assert shown.index("floor:") < shown.index("best_at")


def test_a_page_fits_a_terminal(orchestrator: FrontEnd) -> None:
    for topic in topics().values():
        lines = orchestrator.run("docs", topic.name).stdout.splitlines()
        assert topic.kind == "section" or lines[0] == topic.name
        assert [line for line in lines if len(line) > 80 and (topic.kind == "section" or not line.startswith("    "))] == []


def test_a_key_that_is_no_page_leads_to_its_section(orchestrator: FrontEnd) -> None:
    ended = orchestrator.run("docs", "headroom")
    assert ended.returncode == 2
    assert "a key of that name" in ended.stderr
    assert ended.stderr.endswith("next: fab docs policy\n")


@pytest.mark.parametrize(("given", "meant"), [("out_of_memory_kv", "out_of_memory_kv_cache"), ("hots", "host"), ("exit", "exit-codes")])
def test_a_name_that_is_none_leads_to_the_nearest(orchestrator: FrontEnd, given: str, meant: str) -> None:
    ended = orchestrator.run("docs", given)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"next: fab docs {meant}\n" in ended.stderr


@pytest.mark.parametrize(
    ("given", "said", "next_step"),
    [
        ("relaunch", "a verb of that name", "fab relaunch --help"),
        ("lock.acquire", "a verb of that name", "fab lock.acquire --help"),
        ("deadlines", "that speak of it: policy", "fab docs policy"),
        ("fuser", "that speak of it: jit_lock", "fab docs jit_lock"),
        ("6", "what each exit code means", "fab docs exit-codes"),
        ("xyzzy", "no page 'xyzzy'", "fab docs"),
    ],
)
def test_a_verb_or_a_word_leads_somewhere_too(orchestrator: FrontEnd, given: str, said: str, next_step: str) -> None:
    ended = orchestrator.run("docs", given)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.endswith(f"next: {next_step}\n")


def test_as_json(orchestrator: FrontEnd) -> None:
    listed = checked(orchestrator.run("docs", "--json").stdout)["topics"]
    assert {item["name"]: item["kind"] for item in listed}["hang"] == "failure"
    assert all(item["title"] and item["text"] is None for item in listed)
    (shown,) = checked(orchestrator.run("docs", "host", "--json").stdout)["topics"]
    assert shown["text"] == (EXAMPLES / "host.yml").read_text(encoding="utf-8")


def test_printing_needs_no_inventory_and_no_models(tmp_path: Path) -> None:
    """Neither pydantic nor YAML is imported, so that it is quick."""
    script = (
        "import sys; from orchestrator.cli.program import main\n"
        "sys.argv = ['orchestrator', 'docs', 'host']\n"
        "try: main()\n"
        "finally: print(sorted({'pydantic', 'yaml', 'paramiko', 'httpx'} & set(sys.modules) - BEFORE), file=sys.stderr)"
    )
    script = "import sys, fabric; BEFORE = set(sys.modules)\n" + script
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.strip() == "[]"


SECTION_MISTAKES = {
    "host": ("hosts.yml", "port: 1\n", "port: 0\n"),
    "container": ("hosts.yml", "id: 101", "id: 7"),
    "service": ("services/glm5.yml", "name: glm5\n", "name: glm5\nprot: 1\n"),
    "policy": ("services/glm5.yml", "name: glm5\n", "name: glm5\npolicy: {drain: -1}\n"),
    "floor": ("services/glm5.yml", "name: glm5\n", "name: glm5\nfloor: {memory_bandwidth: 0}\n"),
    "expectations": ("services/glm5.yml", "name: glm5\n", "name: glm5\nexpectations: [{prompt: Why}]\n"),
    "secrets": ("services/glm5.yml", "env:CANARY_KEY", "hush"),
    "hooks": ("services/glm5.yml", "name: glm5\n", "name: glm5\nhooks: {before: [[]]}\n"),
    "webhook": ("hosts.yml", "port: 1\n", "port: 1\n    webhook: {url: https://hush}\n"),
    "backend": ("backends/ep8.yml", "kind: overlay", "kind: other"),
}
"""Section -> a file of the inventory, what stands there, and a mistake."""


@pytest.mark.parametrize("section", SECTION_MISTAKES)
def test_a_mistake_names_its_section(orchestrator: FrontEnd, section: str) -> None:
    name, before, after = SECTION_MISTAKES[section]
    path = orchestrator.folder / "inventory" / name
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    ended = orchestrator.run("services")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == f"see: fab docs {section}"
    assert checked(orchestrator.run("services", "--json").stdout)["error"]["see"] == [f"fab docs {section}"]


def test_mistakes_in_several_files_name_each_section_once(orchestrator: FrontEnd) -> None:
    folder = orchestrator.folder / "inventory"
    (folder / "tuning").mkdir()
    (folder / "tuning" / "t.yml").write_text("name: t\nsummary: None.\nknobs: [{knob: nothing}, {knob: nothing}]\n", encoding="utf-8")
    (folder / "backends" / "b.yml").write_text("name: b\n", encoding="utf-8")
    assert orchestrator.run("hosts").stderr.splitlines()[-1] == "see: fab docs backend, fab docs tuning"


def test_a_playbook_and_a_sweep_name_theirs(orchestrator: FrontEnd) -> None:
    (orchestrator.folder / "playbooks").mkdir()
    (orchestrator.folder / "playbooks" / "own.yml").write_text("name: own\n", encoding="utf-8")
    assert orchestrator.run("runbook", "own").stderr.splitlines()[-1] == "see: fab docs playbook"
    (orchestrator.folder / "own.yml").write_text("name: own\n", encoding="utf-8")
    assert "see: fab docs sweep\n" in orchestrator.run("sweep", "--host", "gpu1", "--file", "own.yml", "--plan").stderr


def test_a_failed_relaunch_names_the_page_of_its_class(box: Box) -> None:
    ended = box.run(healthy_agent(follow=[relaunch_script(restored())]), *RELAUNCH)
    assert f"  see: fab docs {FAILURE.category}\n" in ended.out
    as_json = box.run(healthy_agent(follow=[relaunch_script(restored())]), *RELAUNCH, "--json")
    assert as_json.document["see"] == [f"fab docs {FAILURE.category}"]
    assert FAILURE.category in topics()


def test_a_relaunch_that_went_well_names_none(box: Box) -> None:
    assert box.run(healthy_agent(), *RELAUNCH, "--json").document["see"] == []


def test_a_page_on_a_terminal_has_no_marks() -> None:
    text = "# name\n\nSee [the list](README.md), `fab docs`.\n\n- an item that is wrapped\n\n```\ncode # stays | as it is\n```\n"
    lines = [block.text for block in page_blocks(text, 18) if isinstance(block, Line)]
    assert lines == ["name", "", "See the list, `fab", "docs`.", "", "- an item that is", "  wrapped", "", "    code # stays | as it is"]
