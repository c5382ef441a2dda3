"""What stands between GPUs without NVLink, on an imagined machine of eight below two PCIe switches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.doctor_nccl import check_nccl, judge
from orchestrator.agent.doctor_pci import Function, bar1_size, check_pci
from orchestrator.agent.pci import ConfigSpace, bridges_above
from orchestrator.agent.wire import Outcome
from tests.rig import pci_tree
from tests.unit.agent.gpu_machine import GPUS, Machine, Smi, p2p_matrix, smi_rows, write_tree

SMALL_BAR = "0x00000000f0000000 0x00000000f3ffffff 0x0000000000040200\n0x0000004000000000 0x000000400fffffff 0x000000000014220c"
"""64 MiB, and a BAR1 of 256 MiB."""
WINDOW = "0x0000001000000000 0x0000001fffffffff 0x0000000000040200\n"
"""64 GiB that are no memory: not prefetchable."""
H200_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n0x0000100000000000 0x0000103fffffffff 0x000000000014220c"
SLEEPS_L1 = 0x0042


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With ACS off, as on a machine that was prepared."""
    root = write_tree(tmp_path_factory.mktemp("tree"))
    for port in pci_tree.BRIDGES:
        path = root / "sys/bus/pci/devices" / port / "config"
        space = bytearray(path.read_bytes())
        space[pci_tree.ACCESS_CONTROL + 6] = 0
        path.write_bytes(bytes(space))
    return root


@pytest.fixture
def machine(tmp_path: Path, tree: Path) -> Machine:
    return Machine(tmp_path, tree)


def only_gpu(machine: Machine) -> None:
    for gpu in GPUS[1:]:
        machine.path(f"/sys/bus/pci/devices/{gpu}").unlink()
    machine.smi = Smi(gpus=smi_rows(GPUS[:1]), p2p=p2p_matrix(1), nvlink=p2p_matrix(1))


def test_ports_above_a_gpu_come_nearest_first(machine: Machine) -> None:
    files = machine.context().files
    assert bridges_above(files, "0000:42:00.0") == ["0000:40:01.0", "0000:3f:00.0", "0000:3e:01.0"]
    assert bridges_above(files, "0000:99:00.0") == []


def test_a_machine_that_was_prepared_takes_a_line_each(machine: Machine) -> None:
    found = machine.verdicts(check_pci)
    assert {name: verdict.outcome for name, verdict in found.items()} == dict.fromkeys(
        ["p2p", "iommu", "resizable_bar", "acs_redirect", "aspm"], Outcome.PASS
    )
    assert found["p2p"].detail == "all 8 GPUs reach each other's memory (P2P)"
    assert found["aspm"].detail == "ASPM is off on the GPUs and the ports above them (20 functions)"
    assert found["resizable_bar"].detail == "BAR1 covers the memory of all GPUs (131072 MiB or more)"


def test_acs_is_told_of_each_port_with_the_command(machine: Machine) -> None:
    for port in ("0000:40:01.0", "0000:3e:01.0"):
        machine.poke(port, pci_tree.ACCESS_CONTROL + 6, 0x001D)
    found = machine.verdicts(check_pci)["acs_redirect"]
    assert found.outcome == "warn"
    assert "on at 2 of 12 port(s)" in found.detail
    assert "for port in 0000:3e:01.0 0000:40:01.0; do setpci -s $port ECAP_ACS+6.w=0:c; done" in str(found.next_step)


@pytest.mark.parametrize(("control", "outcome"), [(0x0004, "warn"), (0x0008, "warn"), (0x0011, "pass"), (0xFFFF, "pass")])
def test_which_bits_of_acs_count(machine: Machine, control: int, outcome: str) -> None:
    machine.poke("0000:40:01.0", pci_tree.ACCESS_CONTROL + 6, control)
    assert machine.verdicts(check_pci)["acs_redirect"].outcome == outcome


def test_aspm_is_read_from_the_register(machine: Machine) -> None:
    machine.poke(GPUS[0], pci_tree.LINK_CONTROL, SLEEPS_L1)
    machine.poke("0000:40:00.0", pci_tree.LINK_CONTROL, 0x0041)
    found = machine.verdicts(check_pci)["aspm"]
    assert (found.outcome, found.evidence) == ("warn", [f"{GPUS[0]}: L1", "0000:40:00.0: L0s"])
    assert f"for link in {GPUS[0]} 0000:40:00.0; do setpci -s $link CAP_EXP+10.w=0:3; done" in str(found.next_step)
    assert "update-grub" in str(found.next_step)


def test_aspm_that_the_command_line_only_seems_to_switch_off(machine: Machine) -> None:
    machine.poke(GPUS[0], pci_tree.LINK_CONTROL, SLEEPS_L1)
    machine.write("/proc/cmdline", "ro quiet pcie_aspm=off")
    found = machine.verdicts(check_pci)["aspm"]
    assert (found.outcome, "leaves on what the firmware" in found.detail) == ("warn", True)
    assert "update-grub" not in str(found.next_step)


def test_an_iommu_that_translates(machine: Machine) -> None:
    machine.write("/proc/cmdline", "ro intel_iommu=on quiet")
    for number, gpu in enumerate(GPUS):
        machine.write(f"/sys/kernel/iommu_groups/{number}/type", "DMA-FQ\n" if number else "identity\n")
        machine.link(f"/sys/bus/pci/devices/{gpu}/iommu_group", str(machine.path(f"/sys/kernel/iommu_groups/{number}")))
    found = machine.verdicts(check_pci)["iommu"]
    assert (found.outcome, len(found.evidence)) == ("warn", 8)
    assert found.evidence[-1] == "/proc/cmdline: intel_iommu=on"
    assert "/etc/default/grub: iommu=pt" in str(found.next_step)
    machine.write("/etc/kernel/proxmox-boot-uuids", "ABCD-1234\n")
    machine.write("/etc/kernel/cmdline", "root=ZFS=rpool/ROOT/pve-1 boot=zfs\n")
    assert "proxmox-boot-tool refresh" in str(machine.verdicts(check_pci)["iommu"].next_step)
    assert "on the host" in str(machine.in_container().verdicts(check_pci)["iommu"].next_step)


def test_an_iommu_that_lets_addresses_through(machine: Machine) -> None:
    machine.write("/sys/kernel/iommu_groups/1/type", "identity\n")
    for gpu in GPUS:
        machine.link(f"/sys/bus/pci/devices/{gpu}/iommu_group", str(machine.path("/sys/kernel/iommu_groups/1")))
    assert machine.verdicts(check_pci)["iommu"].detail == "the IOMMU lets the GPUs' addresses through (identity)"


def test_a_bar_that_was_not_resized(machine: Machine) -> None:
    machine.attribute(GPUS[1], "resource", SMALL_BAR)
    found = machine.verdicts(check_pci)["resizable_bar"]
    assert (found.outcome, found.evidence) == ("warn", [f"{GPUS[1]}: 256 MiB of 97887 MiB"])


def test_a_bar_is_judged_by_its_capability_where_nvidia_smi_is_silent(machine: Machine) -> None:
    machine.smi = Smi(gpus="NVIDIA-SMI has failed\n", status=9)
    machine.attribute(GPUS[1], "resource", SMALL_BAR)
    found = machine.verdicts(check_pci)
    assert found["resizable_bar"].evidence == [f"{GPUS[1]}: 256 MiB of 131072 MiB"]
    assert found["p2p"].outcome == "unknown"


def test_no_p2p(machine: Machine) -> None:
    machine.smi = Smi(p2p=p2p_matrix(8, "GNS"))
    found = machine.verdicts(check_pci)["p2p"]
    assert (found.outcome, "56 of 56 pairs" in found.detail, "GeForce" in found.detail) == ("warn", True, True)
    assert len(found.evidence) == 9


def test_gpus_with_nvlink_do_not_talk_over_pcie(machine: Machine) -> None:
    machine.smi = Smi(nvlink=p2p_matrix(8))
    machine.poke("0000:40:01.0", pci_tree.ACCESS_CONTROL + 6, 0x001D)
    assert list(machine.verdicts(check_pci)) == ["p2p", "aspm"]


def test_one_gpu_has_nobody_to_talk_to(machine: Machine) -> None:
    only_gpu(machine)
    assert list(machine.verdicts(check_pci)) == ["aspm"]
    assert machine.verdicts(check_nccl, service="llm") == {}


def test_a_container_says_once_what_it_can_not_read(machine: Machine) -> None:
    machine.in_container().cut_configs()
    found = machine.verdicts(check_pci)
    assert [name for name, verdict in found.items() if verdict.outcome == "unknown"] == ["pci_registers"]
    assert "on the host" in str(found["pci_registers"].next_step)


def test_gpus_off_the_bus_are_told_of_elsewhere(machine: Machine) -> None:
    machine.lose(GPUS[0])
    assert machine.verdicts(check_pci)["aspm"].outcome == "pass"
    for gpu in GPUS:
        machine.lose(gpu)
    for path in machine.path("/sys/bus/pci/devices").glob("*/config"):
        path.unlink()
        path.write_bytes(b"\xff" * 4096)
    assert "aspm" not in machine.verdicts(check_pci)


def test_a_tree_with_holes_gives_no_traceback(machine: Machine) -> None:
    for gpu in GPUS:
        for name in ("config", "resource", "numa_node"):
            machine.path(f"/sys/bus/pci/devices/{gpu}/{name}").unlink()
    machine.smi = Smi(p2p="", nvlink="garbage")
    found = machine.verdicts(check_pci)
    assert (found["resizable_bar"].outcome, found["p2p"].outcome) == ("unknown", "unknown")


@pytest.mark.parametrize(
    ("environment", "outcome", "words"),
    [
        ({}, "pass", "nothing keeps NCCL from P2P"),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_DEBUG": "INFO"}, "pass", "NCCL_DEBUG=INFO"),
        ({"NCCL_P2P_DISABLE": "1"}, "warn", "NCCL_P2P_DISABLE=1 (service's environment)"),
        ({"NCCL_P2P_LEVEL": "LOC"}, "warn", "never used"),
        ({"NCCL_P2P_LEVEL": "NVL"}, "warn", "NVLink only"),
        ({"NCCL_P2P_LEVEL": "SYS"}, "pass", "NCCL_P2P_LEVEL=SYS"),
    ],
)
def test_what_nccl_is_told(machine: Machine, environment: dict[str, str], outcome: str, words: str) -> None:
    found = machine.verdicts(check_nccl, service="llm", environment=environment)["nccl"]
    assert found.outcome == outcome
    assert words in f"{found.detail} {found.evidence}"


def test_nccls_own_files_count_less_than_the_environment(machine: Machine) -> None:
    machine.write("/etc/nccl.conf", "# P2P hangs\nNCCL_P2P_DISABLE=1\nnonsense\n")
    assert machine.verdicts(check_nccl, service="llm")["nccl"].evidence == [
        "NCCL_P2P_DISABLE=1 (/etc/nccl.conf): P2P is off, all-reduce goes through host memory"
    ]
    assert machine.verdicts(check_nccl, service="llm", environment={"NCCL_P2P_DISABLE": "0"})["nccl"].outcome == "pass"
    machine.write("/home/llm/.nccl.conf", "NCCL_P2P_LEVEL = LOC\n")
    found = machine.verdicts(check_nccl, service="llm", environment={"HOME": "/home/llm"})["nccl"]
    assert "/home/llm/.nccl.conf" in found.evidence[1]


def test_the_running_servers_arguments() -> None:
    found = judge({}, ["python3", "-m", "sglang.launch_server", "--disable-custom-all-reduce"])
    assert (found.outcome, "custom-all-reduce" in found.evidence[0]) == ("warn", True)
    assert judge({}, ["python3", "-m", "sglang.launch_server"]).outcome == "pass"


@pytest.mark.parametrize(
    ("text", "size"),
    [(SMALL_BAR, 256), (WINDOW + SMALL_BAR, 256), ("", None), ("0x0 0x0 0x0", None), (H200_BAR, 262144)],
)
def test_bar_sizes(text: str, size: int | None) -> None:
    assert bar1_size(text) == size


@given(st.binary(max_size=4096))
def test_any_configuration_space_is_read(content: bytes) -> None:
    function = Function("0000:41:00.0", ConfigSpace(content))
    assert 0 <= function.aspm <= 3
    assert function.redirects in (True, False)


@given(st.lists(st.integers(min_value=0, max_value=1023), min_size=1, max_size=40))
def test_capability_lists_that_go_round_in_circles_end(offsets: list[int]) -> None:
    space = bytearray(4096)
    space[0x34] = 0x40 + offsets[0] % 0xC0
    for index, offset in enumerate(offsets):
        following = offsets[(index + 1) % len(offsets)]
        space[0x40 + offset % 0xBF] = following & 0xFF
        at = 0x100 + offset * 3
        space[at : at + 4] = (following << 20 | 1 << 16 | 0x0B).to_bytes(5, "little")[:4]
    Function("0000:41:00.0", ConfigSpace(bytes(space))).redirects  # noqa: B018
    assert Function("0000:41:00.0", ConfigSpace(bytes(space))).aspm in range(4)


@given(st.text())
def test_any_resource_file_is_read(text: str) -> None:
    bar1_size(text)
