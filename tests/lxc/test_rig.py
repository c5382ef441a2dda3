"""The rig itself: what the other tests on real parts take for granted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from orchestrator.config import load_inventory
from tests.rig.bare_host import BareHost
from tests.rig.commands import run_command
from tests.rig.container import Container
from tests.rig.inventory import BY_LXC_ATTACH, BY_PCT_STANDIN, BY_SSH
from tests.rig.skeleton import OPERATOR
from tests.rig.workspace import ROOT, Record, Workspace, remove_orphans
from tests.rig.workspace import PinnedProcess as Pinned

pytestmark = pytest.mark.lxc


def test_container_runs_systemd_and_is_reached_by_ssh(container: Container) -> None:
    assert container.ssh.run("cat /proc/1/comm").stdout == "systemd\n"
    assert container.run("systemctl", "is-system-running", check=False).stdout in {"running\n", "degraded\n"}
    failed = container.run("systemctl", "list-units", "--failed", "--plain", "--no-legend").stdout.splitlines()
    assert [line for line in failed if not line.startswith("orchestrator-")] == [], "other tests' launches may have failed in it"


def test_container_has_an_account_with_sudo(container: Container) -> None:
    server = dataclasses.replace(container.ssh, user=OPERATOR)
    assert server.run("id -un; sudo -n id -un").stdout == f"{OPERATOR}\nroot\n"


def test_container_runs_transient_units(container: Container) -> None:
    done = container.run("systemd-run", "--wait", "--pipe", "--quiet", "cat", "/proc/self/cgroup")
    assert "/system.slice/run-" in done.stdout


def test_bare_host_enters_the_container_by_lxc_attach(bare_host: BareHost, container: Container) -> None:
    assert bare_host.ssh.run(f"lxc-attach --clear-env --name {container.name} -- cat /proc/1/comm").stdout == "systemd\n"


def test_pct_standin_enters_the_container_and_passes_the_exit_code(bare_host: BareHost, container: Container) -> None:
    done = bare_host.ssh.run(f"pct exec {container.name} --keep-env 0 -- sh -c 'exit 7'", check=False)
    assert done.returncode == 7
    assert bare_host.ssh.run(f"pct status {container.name}; pct status 1").stdout == "status: running\nstatus: stopped\n"


def test_orphans_of_a_killed_run_are_removed(workspace: Workspace) -> None:
    bridge = f"gone{workspace.token}"
    folder = ROOT / bridge
    folder.mkdir()
    record = Record(Pinned(workspace.record.owner.pid, start_time=1), bridges=[bridge])
    (folder / "owner.json").write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")
    run_command(["ip", "link", "add", bridge, "type", "bridge"])

    remove_orphans()

    assert not folder.exists()
    assert run_command(["ip", "link", "show", bridge], check=False).returncode != 0
    assert workspace.path.exists()


def test_inventory_of_the_rig_is_valid(lxc_inventory: Path) -> None:
    loaded = load_inventory(lxc_inventory)
    ways = {name: host.place(container=True).reached_by for name, host in loaded.hosts.items()}
    assert ways == {BY_SSH: "ssh", BY_LXC_ATTACH: "lxc-attach", BY_PCT_STANDIN: "pct"}
