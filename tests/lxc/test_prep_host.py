"""``fab prep`` on a host from a fresh boot to a revert, cross-checked with the tools that an operator would use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lxc.prepared import HOST_FOLDER, KNOBS, SET, Prepared, prepared
from tests.rig.container import Container
from tests.rig.inventory import BY_LXC_ATTACH, BY_PCT_STANDIN, BY_SSH
from tests.rig.knob_tree import CPUS, NUMA_BALANCING, NVIDIA_SMI, TRANSPARENT_HUGEPAGE, KnobTree
from tests.rig.pci_tree import DEVICE_CONTROL, GPUS
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

POLICIES = f"{CPUS}/cpufreq/policy*"


@pytest.fixture
def box(workspace: Workspace, tmp_path: Path) -> Iterator[Prepared]:
    """A host without a container."""
    with prepared(workspace, tmp_path) as made:
        yield made


@pytest.fixture
def box_with_container(workspace: Workspace, container: Container, tmp_path: Path) -> Iterator[Prepared]:
    """A host with the session's container by each way in."""
    with prepared(workspace, tmp_path, container=container) as made:
        yield made


def assert_tuned(knobs: KnobTree) -> None:
    """Every knob of the profile is as it says."""
    assert knobs.text(NUMA_BALANCING) == "0"
    assert knobs.text("/proc/sys/vm/swappiness") == "10"
    assert knobs.text(f"{TRANSPARENT_HUGEPAGE}/enabled") == "always madvise [never]"
    assert knobs.values(f"{POLICIES}/scaling_governor") == {"performance"}
    assert knobs.values(f"{POLICIES}/energy_performance_preference") == {"performance"}
    assert knobs.values(f"{CPUS}/cpu*/power/pm_qos_resume_latency_us") == {"99"}
    assert knobs.values(f"{NVIDIA_SMI}-state/*/persistence_mode") == {"Enabled"}
    assert knobs.values(f"{NVIDIA_SMI}-state/*/power.limit") == {"450.00"}
    assert {knobs.word(gpu, DEVICE_CONTROL) for gpu in GPUS} == {0x5930}


def test_check_finds_drift_and_writes_nothing(box: Prepared) -> None:
    before = box.host.knobs.fingerprint()

    done = box.prep("--check").expect(8)

    assert done.counts == {"would_change": SET, "observed": 1}
    assert box.host.knobs.fingerprint() == before
    assert not box.host.path("/var/lib/orchestrator").exists()
    assert done.result("kernel.numa_balancing")["before"] == {"": "1"}
    assert done.result("kernel.numa_balancing")["source"] == NUMA_BALANCING
    assert done.result("pcie_max_read_request")["before"] == dict.fromkeys(GPUS, "512")


def test_plan_shows_the_commands_and_writes_nothing(box: Prepared) -> None:
    before = box.host.knobs.fingerprint()

    done = box.prep("--plan").expect(0)

    assert done.counts["would_change"] == SET
    assert done.result("kernel.numa_balancing")["commands"] == ["sysctl -w kernel.numa_balancing=0"]
    assert f"setpci -s {GPUS[7]} CAP_EXP+8.w=5000:7000" in done.result("pcie_max_read_request")["commands"]
    assert box.host.knobs.fingerprint() == before
    assert not box.host.path("/var/lib/orchestrator").exists()


def test_commands_of_a_plan_do_what_the_program_does(box: Prepared) -> None:
    commands = [command for result in box.prep("--plan").results for command in result["commands"]]

    for command in commands:
        box.host.enter("bash", "-c", command)

    assert_tuned(box.host.knobs)
    assert box.prep("--check").expect(0).counts == {"same": SET, "observed": 1}


def test_apply_changes_the_wanted_bits_and_nothing_else(box: Prepared) -> None:
    before = box.host.knobs.contents()

    done = box.prep("--reason", "first day").expect(0)

    assert done.counts["observed"] == 1
    # The kernel sets the energy preference itself together with the governor.
    assert done.counts.get("changed", 0) + done.counts.get("same", 0) == SET
    assert_tuned(box.host.knobs)
    after = box.host.knobs.contents()
    touched = {name for name in after if after[name] != before[name]}
    configs = {name for name in touched if name.endswith("/config")}
    for name in configs:
        differing = [index for index in range(4096) if before[name][index] != after[name][index]]
        assert differing == [DEVICE_CONTROL + 1]
    assert {name.split("/")[-2] for name in configs} == set(GPUS)
    assert not [name for name in touched if "max_map_count" in name or "zone_reclaim" in name or "defrag" in name]


def test_setpci_lspci_and_sysctl_see_what_was_set(box: Prepared) -> None:
    box.prep().expect(0)

    script = "for gpu in {}; do setpci -s $gpu CAP_EXP+8.w; lspci -s $gpu -vvv 2>/dev/null | grep -o 'MaxReadReq [0-9]*'; done"
    assert box.host.ssh.run(script.format(" ".join(GPUS))).stdout == "5930\nMaxReadReq 4096\n" * 8
    assert box.host.ssh.run("sysctl -n kernel.numa_balancing vm.swappiness").stdout == "0\n10\n"
    every = box.host.ssh.run("lspci -vvv 2>/dev/null | grep -c 'MaxReadReq 4096'").stdout
    assert every == "8\n", "of 28 functions"


def test_second_run_writes_nothing_at_all(box: Prepared) -> None:
    box.prep().expect(0)
    before, kept = box.host.knobs.fingerprint(), {path.name: path.read_bytes() for path in box.kept("").iterdir() if path.name != "lock"}

    done = box.prep().expect(0)

    assert done.counts == {"same": SET, "observed": 1}
    assert box.host.knobs.fingerprint() == before
    assert {path.name: path.read_bytes() for path in box.kept("").iterdir() if path.name != "lock"} == kept


def test_revert_puts_everything_back_and_proves_it(box: Prepared) -> None:
    before = box.host.knobs.contents()
    box.prep().expect(0)

    done = box.prep("--revert").expect(0)

    assert set(done.outcomes.values()) <= {"changed", "same"}
    assert box.host.knobs.contents() == before
    assert done.places[0]["report"]["originals"] == 0
    assert done.result("kernel.numa_balancing")["after"] == {"": "1"}
    assert box.prep("--revert").expect(0).results == []


def test_revert_knows_what_was_before_the_first_of_several_preps(box: Prepared) -> None:
    swappiness = [{"knob": "sysctl", "name": "vm.swappiness", "value": 30}]
    for value in (30, 20, 10):
        box.use([{**swappiness[0], "value": value}])
        box.prep().expect(0)

    box.prep("--revert").expect(0)

    assert box.host.knobs.text("/proc/sys/vm/swappiness") == "60"


def test_history_on_the_host_says_who_when_why_and_what(box: Prepared) -> None:
    box.prep("--reason", "after the reboot").expect(0)

    lines = box.kept("history.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["reason"] == "after the reboot"
    assert "kernel.numa_balancing" in lines[0]
    assert box.kept("originals.json").stat().st_mode & 0o777 == 0o600
    assert box.kept("").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("way", [BY_SSH, BY_LXC_ATTACH, BY_PCT_STANDIN])
def test_host_and_container_are_each_set_where_the_knob_belongs(box_with_container: Prepared, container: Container, way: str) -> None:
    box = box_with_container
    before = container.run("cat", "/proc/sys/net/core/somaxconn").stdout.strip()
    other = str(int(before) + 4096)
    inside = {"knob": "sysctl", "name": "net.core.somaxconn", "value": int(other), "place": "container", "persist": False}
    box.use([*KNOBS, inside])

    done = box.prep(host=way).expect(0)

    host, within = done.places
    assert (host["kind"], within["kind"]) == ("host", "container")
    assert [result["setting"]["name"] for result in within["report"]["results"]] == ["net.core.somaxconn"]
    assert container.run("cat", "/proc/sys/net/core/somaxconn").stdout.strip() == other
    assert_tuned(box.host.knobs)

    box.prep("--revert", host=way).expect(0)

    assert container.run("cat", "/proc/sys/net/core/somaxconn").stdout.strip() == before
    assert box.host.knobs.text(NUMA_BALANCING) == "1"


def test_naming_the_container_sets_the_host(box_with_container: Prepared, container: Container) -> None:
    box = box_with_container

    done = box.prep(host=f"{BY_SSH}/{container.name}").expect(0)

    assert_tuned(box.host.knobs)
    assert [place["kind"] for place in done.places] == ["host"]
    assert f"{BY_SSH}/{container.name} is on {BY_SSH}" in done.answer.errors


def test_a_parameter_of_a_module_is_told_and_never_set(box: Prepared) -> None:
    box.use([{"knob": "module_parameter", "name": "nvidia_uvm.uvm_disable_hmm", "value": "Y"}])
    before = box.host.knobs.fingerprint()

    done = box.prep().expect(8)

    told = done.result("nvidia_uvm.uvm_disable_hmm")
    assert told["outcome"] == "told"
    assert any("options nvidia_uvm uvm_disable_hmm" in command for command in told["commands"])
    assert box.host.knobs.fingerprint() == before
    assert not list(box.host.path("/etc/modprobe.d").glob("*orchestrator*"))


def test_nothing_but_the_hosts_folder_is_left_on_the_host(box: Prepared) -> None:
    before = box.host.ssh.run("ls /var/lib /etc /etc/sysctl.d /etc/systemd/system").stdout

    box.prep().expect(0)

    assert box.host.ssh.run("ls /var/lib /etc /etc/sysctl.d /etc/systemd/system").stdout.replace("orchestrator\n", "") == before
    assert box.host.ssh.run("ls -A /var/lib/orchestrator").stdout == f"{Path(HOST_FOLDER).name}\n"
