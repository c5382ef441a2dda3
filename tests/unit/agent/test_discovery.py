"""What a machine is that nobody has described yet: the lists of its container tools, and where SGLang is installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from orchestrator.agent import discovery
from orchestrator.agent.command import Output
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import Launch
from orchestrator.agent.wire_discovery import FoundContainer, Tool

PCT = """\
VMID       Status     Lock         Name
101        running                 sglang
102        stopped    backup       spare
103        running
"""


def test_proxmox_lists_its_containers_with_and_without_a_lock_and_a_name() -> None:
    assert discovery.parse_pct(PCT) == [
        FoundContainer(Tool.PCT, "101", running=True, title="sglang"),
        FoundContainer(Tool.PCT, "102", running=False, title="spare"),
        FoundContainer(Tool.PCT, "103", running=True),
    ]


def test_incus_lists_virtual_machines_too_which_are_none() -> None:
    text = "sglang,RUNNING,CONTAINER\nwindows,RUNNING,VIRTUAL-MACHINE\nold,STOPPED,CONTAINER (EPHEMERAL)\n"
    assert discovery.parse_incus(text) == [
        FoundContainer(Tool.INCUS, "sglang", running=True),
        FoundContainer(Tool.INCUS, "old", running=False),
    ]


def test_lxc_shows_a_container_without_a_configuration_only_while_it_runs() -> None:
    assert discovery.parse_lxc("a\nb\n", "b\nwithout-configuration\n") == [
        FoundContainer(Tool.LXC, "a", running=False),
        FoundContainer(Tool.LXC, "b", running=True),
        FoundContainer(Tool.LXC, "without-configuration", running=True),
    ]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, Output]:
    """What each command answers, by its first two words; a program without an answer does not exist."""
    answers: dict[str, Output] = {}
    monkeypatch.setattr(shutil, "which", lambda name: name if any(key.split()[0] == name for key in answers) else None)
    monkeypatch.setattr(discovery, "run_bounded", lambda argv, seconds: answers[" ".join(argv)])
    return answers


def test_what_pct_and_lxc_both_show_is_reached_by_pct(tools: dict[str, Output]) -> None:
    tools["pct list"] = Output(0, PCT, "")
    tools["lxc-ls -1"] = Output(0, "101\n102\n103\nplain\n", "")
    tools["lxc-ls -1 --running"] = Output(0, "101\n103\n", "")
    found, problems = discovery.list_containers()
    assert [(item.name, item.tool) for item in found] == [("101", "pct"), ("102", "pct"), ("103", "pct"), ("plain", "lxc-attach")]
    assert problems == []


def test_a_tool_that_fails_is_told_and_hides_no_other(tools: dict[str, Output]) -> None:
    tools["pct list"] = Output(255, "", "please run as root\n")
    tools["lxc-ls -1"] = Output(0, "one\n", "")
    tools["lxc-ls -1 --running"] = Output(0, "one\n", "")
    found, problems = discovery.list_containers()
    assert [item.name for item in found] == ["one"]
    assert problems == ["pct: please run as root"]


def test_containers_of_lxd_are_said_to_be_out_of_reach(tools: dict[str, Output]) -> None:
    tools["lxc list"] = Output(0, "", "")
    found, problems = discovery.list_containers()
    assert found == []
    assert "LXD" in problems[0]


def environment(folder: Path, version: str | None, name: str = "python") -> Path:
    """A virtual environment with an SGLang of that version (None: without one)."""
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / name).symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    if version is not None:
        (packages / f"sglang-{version}.dist-info").mkdir()
    return folder / "bin" / name


def test_pythons_with_sglang_are_found_and_others_left_out(tmp_path: Path) -> None:
    with_it = environment(tmp_path / "sglang", "0.5.23")
    hidden = environment(tmp_path / ".venv", "0.5.9", name="python3")
    environment(tmp_path / "other", None)
    found = discovery.installations([f"{tmp_path}/*/lib/python3*/site-packages", f"{tmp_path}/.*/lib/python3*/site-packages"])
    assert {(item.python, item.version) for item in found} == {(str(with_it), "0.5.23"), (str(hidden), "0.5.9")}


def test_the_service_of_a_launch_is_the_one_that_has_its_record(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "glm5")
    folder.create()
    folder.write_launch(Launch("id-1", "glm5", "auto", "/python", ["--model-path", "/m"], "127.0.0.1", 30000))
    StateFolder(str(tmp_path), "other").create()
    assert discovery.service_of("id-1", str(tmp_path)) == "glm5"
    assert discovery.service_of("id-2", str(tmp_path)) is None
    assert discovery.service_of("id-1", str(tmp_path / "nowhere")) is None
