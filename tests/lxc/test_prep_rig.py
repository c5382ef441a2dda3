"""The rig's host and its knobs: what the tests of ``fab prep`` take for granted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.bare_host import PLAIN_USER, SUDOER, BareHost, start_hosts
from tests.rig.commands import wait_for
from tests.rig.knob_tree import CPUS, NUMA_BALANCING, TRANSPARENT_HUGEPAGE, KnobTree
from tests.rig.pci_tree import BRIDGES, DEVICE_CONTROL, GPUS
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

POLICY = f"{CPUS}/cpufreq/policy0"


@pytest.fixture
def host(workspace: Workspace, tmp_path: Path) -> Iterator[BareHost]:
    """A host of the test's own."""
    made = BareHost.start(workspace, f"rig-{tmp_path.name}")
    yield made
    made.stop()


def test_sysctl_reads_and_writes_the_hosts_own_value(host: BareHost) -> None:
    assert host.ssh.run("sysctl -n kernel.numa_balancing").stdout == "1\n"
    assert host.ssh.run("sysctl -w kernel.numa_balancing=0").stdout == "kernel.numa_balancing = 0\n"
    assert host.knobs.text(NUMA_BALANCING) == "0"


def test_setpci_changes_the_bits_that_lspci_shows(host: BareHost) -> None:
    gpu = GPUS[5]
    shown = "lspci -s {} -vvv 2>/dev/null | grep -o 'MaxReadReq [0-9]*'"
    assert host.ssh.run(shown.format(gpu)).stdout == "MaxReadReq 512\n"

    host.ssh.run(f"setpci -s {gpu} CAP_EXP+8.w=5000:7000")

    assert host.ssh.run(f"setpci -s {gpu} CAP_EXP+8.w").stdout == "5930\n"
    assert host.ssh.run(shown.format(gpu)).stdout == "MaxReadReq 4096\n"
    assert [host.knobs.word(address, DEVICE_CONTROL) for address in GPUS if address != gpu] == [0x2930] * 7


def test_lspci_understands_the_capabilities(host: BareHost) -> None:
    gpu = host.ssh.run(f"lspci -s {GPUS[0]} -vvv 2>/dev/null").stdout
    assert "3D controller" in gpu
    assert "LnkCtl:\tASPM Disabled" in gpu
    assert "Physical Resizable BAR" in gpu
    assert re.search(r"BAR 1: current size: 128GB", gpu)
    for bridge in BRIDGES:
        assert "ReqRedir+ CmpltRedir+" in host.ssh.run(f"lspci -s {bridge} -vvv 2>/dev/null | grep ACSCtl").stdout
    assert "[3f-44]----00.0-[40-44]" in host.ssh.run("lspci -t 2>/dev/null").stdout


def test_a_gpu_off_the_bus_reads_as_all_ones(host: BareHost) -> None:
    host.knobs.fall_off_the_bus(GPUS[0])
    assert "ffff" in host.ssh.run(f"setpci -s {GPUS[0]} 8.w").stdout


def test_knobs_refuse_what_the_kernel_refuses(host: BareHost) -> None:
    def write(path: str, value: str) -> str:
        return host.enter("bash", "-c", f"echo {value} >{path}", check=False).stderr

    assert "Invalid argument" in write(f"{TRANSPARENT_HUGEPAGE}/enabled", "sometimes")
    assert write(f"{TRANSPARENT_HUGEPAGE}/enabled", "never") == ""
    assert host.knobs.text(f"{TRANSPARENT_HUGEPAGE}/enabled") == "always madvise [never]"
    assert "Invalid argument" in write(f"{POLICY}/scaling_governor", "ondemand")
    assert write(f"{POLICY}/scaling_governor", "performance") == ""
    assert host.knobs.text(f"{POLICY}/energy_performance_preference") == "performance"
    assert "Device or resource busy" in write(f"{POLICY}/energy_performance_preference", "power")


def test_a_knob_can_be_made_to_lose_or_refuse_a_write(host: BareHost) -> None:
    host.behave({NUMA_BALANCING: "stays"})
    assert host.ssh.run("sysctl -w kernel.numa_balancing=0; sysctl -n kernel.numa_balancing").stdout.endswith("\n1\n")
    host.behave({NUMA_BALANCING: "EPERM"})
    assert host.enter("sh", "-c", f"echo 0 >{NUMA_BALANCING}", check=False).returncode != 0
    host.behave({})
    assert host.enter("sh", "-c", f"echo 0 >{NUMA_BALANCING}", check=False).returncode == 0


def test_nvidia_smi_is_a_stand_in_that_says_so_and_keeps_settings(host: BareHost) -> None:
    query = "nvidia-smi --query-gpu=pci.bus_id,persistence_mode,power.limit --format=csv,noheader,nounits -i 7"
    assert "STAND-IN" in host.ssh.run("cat $(command -v nvidia-smi)").stdout
    assert host.ssh.run(query).stdout == "00000000:C4:00.0, Disabled, 600.00\n"

    host.ssh.run("nvidia-smi -pm 1 && nvidia-smi -i 7 -pl 450")

    assert host.ssh.run(query).stdout == "00000000:C4:00.0, Enabled, 450.00\n"
    assert host.ssh.run("nvidia-smi --query-gpu=index,nonsense --format=csv", check=False).returncode == 2
    assert host.login(PLAIN_USER).run("nvidia-smi -pm 0", check=False).returncode == 4


def test_the_machines_own_knobs_are_out_of_reach(host: BareHost) -> None:
    before = Path(NUMA_BALANCING).read_text(encoding="utf-8")
    other = "0" if host.knobs.text(NUMA_BALANCING) == "1" else "1"

    host.ssh.run(f"sysctl -w kernel.numa_balancing={other}")
    refused = host.ssh.run(
        "for knob in /proc/sys/vm/overcommit_memory /proc/sys/net/core/somaxconn /sys/kernel/mm/ksm/run /sys/kernel/profiling; "
        "do cat $knob | tee $knob >/dev/null; done",
        check=False,
    )

    assert refused.stderr.count("Read-only file system") == 4
    assert Path(NUMA_BALANCING).read_text(encoding="utf-8") == before
    assert not [path for path in host.knobs.mounts() if not host.knobs.path(path[0]).exists()]


def test_what_the_host_writes_to_etc_and_var_lib_is_its_own(host: BareHost) -> None:
    host.ssh.run("echo here >/etc/sysctl.d/90-rig.conf; mkdir /var/lib/rig-folder")
    assert host.path("/etc/sysctl.d/90-rig.conf").read_text(encoding="utf-8") == "here\n"
    assert host.path("/var/lib/rig-folder").is_dir()
    assert not Path("/etc/sysctl.d/90-rig.conf").exists()
    assert not Path("/var/lib/rig-folder").exists()


def test_accounts_with_and_without_sudo(host: BareHost) -> None:
    assert host.login(SUDOER).run("id -un; sudo -n id -un").stdout == f"{SUDOER}\nroot\n"
    assert host.login(PLAIN_USER).run("id -un; sudo -n id -un", check=False).stdout == f"{PLAIN_USER}\n"


def test_fingerprint_sees_a_write_of_the_same_value(host: BareHost) -> None:
    before = host.knobs.fingerprint()
    host.ssh.run("sysctl -w kernel.numa_balancing=1")
    assert {name for name, value in host.knobs.fingerprint().items() if value != before[name]} == {NUMA_BALANCING}


def test_a_missing_knob_is_missing(workspace: Workspace) -> None:
    tree = KnobTree.write(workspace.folder("host-without") / "knobs")
    tree.remove(f"{CPUS}/cpufreq")
    host = BareHost.start(workspace, "host-without", knobs=tree)
    try:
        assert host.ssh.run(f"ls {CPUS}").stdout.split() == ["cpu0", "cpu1", "cpu2", "cpu3", "online", "possible", "present"]
    finally:
        host.stop()


def test_a_stopped_host_leaves_no_process(workspace: Workspace) -> None:
    host = BareHost.start(workspace, "rig-stopped")
    assert _processes_of(host)
    host.stop()
    wait_for("the processes of the host to end", lambda: not _processes_of(host), 10.0)


def test_several_hosts_share_no_knob(workspace: Workspace) -> None:
    hosts = start_hosts(workspace, [f"rig-several-{number}" for number in range(5)])
    try:
        hosts[2].ssh.run("sysctl -w kernel.numa_balancing=0")
        assert [host.knobs.text(NUMA_BALANCING) for host in hosts] == ["1", "1", "0", "1", "1"]
    finally:
        for host in hosts:
            host.stop()


def _processes_of(host: BareHost) -> list[str]:
    """Processes other than ours whose command line names the host's folder."""
    folder = str(host.knobs.folder.parent).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
