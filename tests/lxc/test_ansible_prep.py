"""The shipped playbook prep.yml run by the real ansible-core, on hosts whose knobs really are set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lxc.prepared import PROFILE
from tests.rig.bare_host import BareHost, start_hosts
from tests.rig.controller import Controller
from tests.rig.inventory import login, write_inventory, write_tuning
from tests.rig.knob_tree import CPUS, NUMA_BALANCING
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

KNOBS: list[dict[str, Any]] = [
    {"knob": "sysctl", "name": "kernel.numa_balancing", "value": 0},
    {"knob": "cpu_governor", "value": "performance"},
    {"knob": "pcie_max_read_request", "value": 4096},
]
GOVERNORS = f"{CPUS}/cpufreq/policy*/scaling_governor"


@pytest.fixture
def hosts(workspace: Workspace, tmp_path: Path) -> Iterator[list[BareHost]]:
    """Two hosts, fresh from a boot."""
    made = start_hosts(workspace, [f"ansible-{tmp_path.name}-{number}" for number in range(2)])
    yield made
    for host in made:
        host.stop()


@pytest.fixture
def inventory(hosts: list[BareHost], tmp_path: Path) -> Path:
    entries = {f"h{number}": {**login(host.ssh), "tuning": PROFILE} for number, host in enumerate(hosts)}
    folder = write_inventory(tmp_path / "inventory", entries, "".join(host.ssh.known_hosts_line for host in hosts))
    write_tuning(folder, PROFILE, KNOBS)
    return folder


def test_knobs_are_checked_set_once_and_put_back(hosts: list[BareHost], inventory: Path, tmp_path: Path) -> None:
    controller = Controller(tmp_path / "controller", inventory, ["h0", "h1"])
    fresh = [host.knobs.contents() for host in hosts]

    checked = controller.play("prep.yml", "--check")
    assert [host.knobs.contents() for host in hosts] == fresh, "a check writes nothing"
    first = controller.play("prep.yml")
    second = controller.play("prep.yml")
    planned = controller.play(controller.task("prep", {"state": "reverted"}), "--check")
    set_by_first = [(host.knobs.text(NUMA_BALANCING), host.knobs.values(GOVERNORS)) for host in hosts]
    reverted = controller.play(controller.task("prep", {"state": "reverted"}))

    for played, changed, outcome in (
        (checked, True, "would_change"),
        (first, True, "changed"),
        (second, False, "same"),
        (planned, True, "would_change"),
        (reverted, True, "changed"),
    ):
        assert played.exit_code == 0, played.output
        assert [(item.host, item.result["changed"]) for item in played.ours] == [("h0", changed), ("h1", changed)]
        assert [item.result["counts"] for item in played.ours] == [{outcome: 3}] * 2
    assert set_by_first == [("0", {"performance"})] * 2
    assert [host.knobs.contents() for host in hosts] == fresh
    assert "-kernel.numa_balancing: 1\n" in checked.output
    assert "+kernel.numa_balancing: 0\n" in checked.output
    same_words = [diff for item in checked.ours for diff in item.result["diff"]]
    assert same_words == [diff for item in first.ours for diff in item.result["diff"]], "a check predicts what is done then"
    assert "+cpu_governor (4): powersave" in planned.output
    assert second.ours[0].result["diff"] == []


def test_a_knob_that_can_not_be_set_fails_with_what_to_type(hosts: list[BareHost], inventory: Path, tmp_path: Path) -> None:
    hosts[1].enter("mount", "-o", "remount,bind,ro", NUMA_BALANCING)
    controller = Controller(tmp_path / "controller", inventory, ["h0", "h1"])

    played = controller.play("prep.yml")

    found = {item.host: item for item in played.ours}
    assert (played.exit_code, found["h0"].outcome, found["h1"].outcome) == (2, "ok", "failed"), played.output
    failed = found["h1"].result
    assert (failed["exit_code"], failed["changed"], failed["counts"]) == (1, True, {"failed": 1, "changed": 2})
    assert "kernel.numa_balancing (failed)" in failed["msg"]
    assert failed["evidence"][0].startswith("kernel.numa_balancing: failed: ")
    assert failed["next_step"] == "sysctl -w kernel.numa_balancing=0"


def test_who_keeps_a_host_is_told(hosts: list[BareHost], inventory: Path, tmp_path: Path) -> None:
    controller = Controller(tmp_path / "controller", inventory, ["h0"])
    played = controller.play("prep.yml", "-e", "reason=firmware", "-e", "awx_job_id=17", "-e", "awx_user_name=alice")
    played.one("ok")
    history = hosts[0].path("/var/lib/orchestrator/.host/history.jsonl").read_text(encoding="utf-8")
    assert "Ansible: prep; AWX job 17 of alice; firmware" in history


def test_ansibles_own_modules_log_in_by_the_programs_inventory(inventory: Path, tmp_path: Path) -> None:
    source = tmp_path / "rig.orchestrator.yml"
    text = {"plugin": "lxc_gpu.orchestrator.hosts", "folder": "inventory", "groups": {"machines": "orchestrator_tuning is defined"}}
    source.write_text(yaml.safe_dump(text), encoding="utf-8")
    tasks = [{"ansible.builtin.raw": "cat /proc/sys/kernel/numa_balancing"}, {"lxc_gpu.orchestrator.doctor": {}}]
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "machines", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
    controller = Controller(tmp_path / "controller", Path("/nonexistent"), [], {"ANSIBLE_SSH_ARGS": "-F none -o ControlMaster=no"})

    played = controller.play(playbook, "-i", str(source))

    raw = {item.host: item.result["stdout"].strip() for item in played.results if item.action == "ansible.builtin.raw"}
    assert raw == {"h0": "1", "h1": "1"}, played.output
    assert [item.host for item in played.ours] == ["h0", "h1"]
    assert all(item.result["passed"] for item in played.ours), "and the actions are told where the inventory is"

    (inventory / "hosts.yml").write_text("hosts:\n  h0: {adress: 127.0.0.1}\n", encoding="utf-8")
    broken = controller.play(playbook, "-i", str(source))
    assert "hosts.yml:2: hosts.h0.adress" in broken.output
