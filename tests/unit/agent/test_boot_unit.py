"""The text of the persistent unit and its script, and how a box's record of it reads. That systemd obeys: tests/lxc/test_boot_unit.py."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import boot_state, boot_unit, wire
from orchestrator.agent.launch_files import prepare
from orchestrator.agent.locks import acquire
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire_launches import BootAction, BootRequest

LAUNCH = wire.Launch(
    "20261129T1-ab", "glm", "auto", "/opt/a b/python", ["--x", "$HOME", "50%", 'q"q', "line\nbreak", "--port", "30000"], "127.0.0.1", 30000
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateFolder:
    for module in (boot_state, boot_unit):
        monkeypatch.setattr(module, "FOLDER", tmp_path / "system")
    monkeypatch.setattr(boot_unit, "RUNTIME", tmp_path / "runtime")
    (tmp_path / "system").mkdir()
    (tmp_path / "runtime").mkdir()
    made = StateFolder(str(tmp_path / "state"), "glm")
    made.create()
    return made


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A systemd that takes everything and says that nothing is active; the commands that it was given."""
    given: list[str] = []
    monkeypatch.setattr("orchestrator.agent.systemd.is_available", lambda: True)
    monkeypatch.setattr("orchestrator.agent.systemd.systemctl", lambda *words, **_: given.append(" ".join(words)))
    states = {"LoadState": "loaded", "Restart": "on-failure", "ActiveState": "inactive", "Result": "success", "UnitFileState": "disabled"}
    monkeypatch.setattr("orchestrator.agent.systemd.show", lambda unit, *names: {name: states.get(name, "") for name in names})
    return given


def text(folder: StateFolder, launch: wire.Launch = LAUNCH) -> str:
    return boot_unit.unit_text(prepare(folder, launch), boot_state.switch(folder))


def test_the_unit_starts_the_very_launch_and_only_while_its_switch_is_there(folder: StateFolder) -> None:
    lines = text(folder).splitlines()
    path = folder.launch_folder(LAUNCH.launch_id)
    for line in (
        f"ConditionPathExists={folder.path}/boot",
        'ExecStart="/opt/a b/python" "-m" "sglang.launch_server" "--x" "$$HOME" "50%%" "q\\"q" "line\\nbreak" "--port" "30000"',
        f"EnvironmentFile={path}/environment",
        f"StandardOutput=append:{path}/server.log",
        "KillMode=mixed",
        "TimeoutStopSec=90",
        "Restart=on-failure",
        "StartLimitBurst=5",
        "LimitNOFILE=1048576:1048576",
        "LimitMEMLOCK=infinity:infinity",
        "WantedBy=multi-user.target",
    ):
        assert line in lines
    assert not [line for line in lines if line.startswith(("User=", "UMask=", "Group="))]


def test_the_unit_of_a_copy_has_the_conditions_that_were_found(folder: StateFolder) -> None:
    conditions = wire.Conditions(7, [7, 44], 0o027, {"NOFILE": [4096, 8192], "CORE": [0, None], "NICE": [0, 0]})
    lines = text(folder, replace(LAUNCH, conditions=conditions)).splitlines()
    assert {"UMask=0027", "Group=7", "SupplementaryGroups=7 44", "LimitNOFILE=4096:8192", "LimitCORE=0:infinity"} <= set(lines)
    assert not [line for line in lines if line.startswith(("LimitMEMLOCK", "LimitNICE"))]


def test_it_is_written_armed_switched_off_and_removed(folder: StateFolder, systemctl: list[str]) -> None:
    prepare(folder, LAUNCH)
    assert boot_state.describe(folder) is None
    assert boot_unit.install(folder, LAUNCH, [], ["/usr/bin/python3", "waiter.py"]) == []
    found = boot_state.describe(folder)
    assert found == wire.BootUnit("orchestrator-glm.service", LAUNCH.launch_id, armed=True)
    assert systemctl == ["daemon-reload", "reset-failed -- orchestrator-glm.service"]

    assert boot_unit.switch_off(folder)
    off = boot_state.describe(folder)
    assert off is not None
    assert not off.armed
    assert not boot_unit.switch_off(folder), "nothing would have started it any more"
    boot_unit.switch_on(folder)
    assert boot_state.describe(folder) == found

    assert boot_unit.remove(folder)
    assert boot_state.describe(folder) is None
    assert list(boot_state.FOLDER.rglob("*")) == [boot_state.FOLDER / "multi-user.target.wants"]
    assert not boot_unit.remove(folder)


def test_somebody_elses_unit_of_that_name_is_left_alone(folder: StateFolder, systemctl: list[str]) -> None:
    prepare(folder, LAUNCH)
    theirs = boot_state.FOLDER / "orchestrator-glm.service"
    theirs.write_text("[Service]\nExecStart=/bin/true\n")
    (warning,) = boot_unit.install(folder, LAUNCH, [], ["waiter"])
    assert warning.outcome == "warn"
    assert "was not written for this service" in warning.detail
    boot_unit.remove(folder)
    assert theirs.read_text().endswith("/bin/true\n")
    assert systemctl == []


def test_nothing_is_armed_beside_somebodys_unit_that_boot_starts(
    folder: StateFolder, systemctl: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(folder, LAUNCH)
    boot_unit.keep_rival(folder, "sglang.service")
    assert boot_unit.install(folder, LAUNCH, [], ["waiter"]) == [], "it is not enabled"
    asked: list[str] = []

    def show(unit: str, *_: str) -> dict[str, str]:
        asked.append(unit)
        return {"UnitFileState": "enabled"}

    monkeypatch.setattr("orchestrator.agent.systemd.show", show)
    (warning,) = boot_unit.install(folder, LAUNCH, [], ["waiter"])
    assert "sglang.service is enabled" in warning.detail
    assert warning.next_step == "systemctl disable sglang.service, then fab boot --on"
    assert asked[0] == "sglang.service"
    assert boot_state.describe(folder) is None


def test_a_persons_lock_keeps_changes_of_the_unit_away_too(folder: StateFolder, systemctl: list[str]) -> None:
    prepare(folder, LAUNCH)
    boot_unit.install(folder, LAUNCH, [], ["waiter"])
    acquire(folder, wire.PersonLock("kim@laptop", "firmware", time.time()))
    for action in (BootAction.OFF, BootAction.ON):
        with pytest.raises(AgentRefusal, match="kim@laptop"):
            boot_unit.boot(BootRequest("glm", str(folder.path.parent), 30000, action), lambda *_: None)
    shown = boot_unit.boot(BootRequest("glm", str(folder.path.parent), 30000), lambda *_: None)
    assert shown.unit.armed


def test_without_systemd_nothing_is_written_and_that_is_told(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.systemd.is_available", lambda: False)
    assert (boot_unit.wanted(None), boot_unit.wanted(True), boot_unit.wanted(False)) == (False, True, False)
    (warning,) = boot_unit.install(folder, LAUNCH, [], ["waiter"])
    assert "systemd does not run here" in warning.detail


def test_a_server_that_systemd_has_given_up_is_told(folder: StateFolder, systemctl: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(folder, LAUNCH)
    boot_unit.install(folder, LAUNCH, [], ["waiter"])
    (folder.launch_folder(LAUNCH.launch_id) / "restarts").write_text("1764400000 signal killed KILL\n1764400100 exit-code exited 1\n")
    monkeypatch.setattr("orchestrator.agent.systemd.show", lambda *_: {"ActiveState": "failed", "Result": "exit-code"})
    found = boot_state.describe(folder)
    assert found is not None
    assert (found.restarts, found.last, found.ended) == (2, 1764400100.0, "exit-code exited 1")
    assert "given it up after 2 restarts" in str(found.problem)
    serving = boot_state.describe(folder, runs=True)
    assert serving is not None
    assert serving.problem is None, "systemd is not asked while it runs"


def before(
    folder: StateFolder, nodes: list[str], seconds: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setattr(boot_unit, "NODE_SECONDS", seconds)
    script = folder.write_launch(LAUNCH) / "before-start"
    script.write_text(boot_unit.before_text(LAUNCH, nodes))
    return subprocess.run(["/bin/sh", str(script), word], capture_output=True, text=True, check=False, timeout=20)


def test_a_start_is_written_down_with_how_the_server_had_ended(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    at = folder.write_launch(LAUNCH)
    (at / "exit").write_text("signal killed KILL\n")
    assert before(folder, ["/dev/null"], 0, "prepare", monkeypatch).returncode == 0
    when, _, ended = (at / "restarts").read_text().strip().partition(" ")
    assert (abs(time.time() - int(when)) < 30, ended, (at / "exit").read_text()) == (True, "signal killed KILL", "")


def test_a_start_without_its_devices_is_given_up_with_a_word(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    done = before(folder, ["/dev/null", "/dev/nvidia-is-not-here"], 1, "prepare", monkeypatch)
    assert done.returncode == 1
    assert "/dev/nvidia-is-not-here is not there after 1 s" in done.stdout
    assert not (folder.launch_folder(LAUNCH.launch_id) / "restarts").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server can have devices open that are made here")
def test_a_launch_without_gpus_waits_for_no_device() -> None:
    assert boot_unit.device_nodes([os.getpid()]) == []
