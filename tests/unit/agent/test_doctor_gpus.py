"""What is said of GPUs on an imagined machine of eight. Answers of nvidia-smi have driver 580.159.04's form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent import smi_state
from orchestrator.agent.command import Output
from orchestrator.agent.doctor_gpus import check_gpus
from orchestrator.agent.doctor_link import Link, check_links, judge, parse_counters
from orchestrator.agent.doctor_users import check_users, container_of
from orchestrator.agent.doctor_xid import check_xids
from orchestrator.agent.kernel_log import parse_records
from orchestrator.agent.smi_state import ask_states, parse_p2p, parse_states
from orchestrator.agent.xid import find_xids, pci_address
from tests.unit.agent.gpu_machine import DATA, GPUS, Machine, Smi, p2p_matrix, smi_row, smi_rows, write_tree

LOST = GPUS[2]
NO_ROW = "Unable to determine the device handle for GPU2: 0000:43:00.0: Unknown Error\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def machine(tmp_path: Path, tree: Path) -> Machine:
    return Machine(tmp_path, tree)


def test_eight_gpus_that_are_well_take_one_line(machine: Machine) -> None:
    found = machine.verdicts(check_gpus)
    assert {name: verdict.outcome for name, verdict in found.items()} == {"gpus": "pass"}
    assert "8 x NVIDIA RTX PRO 6000" in found["gpus"].detail
    assert machine.verdicts(check_gpus, expected_gpus=8)["expected_gpus"].outcome == "pass"


def test_a_real_answer() -> None:
    states = parse_states((DATA / "h200_x2_query.csv").read_text())
    assert [(state.index, state.address, state.memory_total) for state in states] == [
        (0, "0000:00:06.0", 143771),
        (1, "0000:00:07.0", 143771),
    ]
    assert states[0].values[smi_state.FABRIC_STATE] == "Completed"


def test_a_field_that_the_driver_does_not_know_costs_that_field_only(machine: Machine) -> None:
    fewer = "".join(smi_row(index, gpu, "Default, 0, No, No, Disabled, [N/A]") for index, gpu in enumerate(GPUS))
    machine.smi = Smi(gpus=fewer, unknown=("gpu_recovery_action", "fabric.status"))
    found = machine.verdicts(check_gpus)
    assert found["gpus"].outcome == "pass"
    assert "does not tell fabric.status, gpu_recovery_action" in found["gpus"].detail
    assert len(machine.smi.asked) == 3


@pytest.mark.parametrize(
    ("optional", "check", "outcome", "words"),
    [
        ("Default, 3, No, No, Disabled, [N/A], [N/A], None", "gpu_ecc", "warn", "GPU 3 (0000:44:00.0): 3"),
        ("Default, 0, Yes, No, Disabled, [N/A], [N/A], None", "gpu_memory", "warn", "waits to be remapped"),
        ("Default, 0, Yes, Yes, Disabled, [N/A], [N/A], None", "gpu_memory", "warn", "remapping has failed"),
        ("Default, 0, No, No, Enabled, [N/A], [N/A], None", "gpu_mig", "warn", "-mig 0"),
        ("Exclusive_Process, 0, No, No, Disabled, [N/A], [N/A], None", "gpu_compute_mode", "warn", "nvidia-smi -c DEFAULT"),
        ("Prohibited, 0, No, No, Disabled, [N/A], [N/A], None", "gpu_compute_mode", "refuse", "no program"),
        ("Default, 0, No, No, Disabled, In Progress, [N/A], None", "gpu_fabric", "refuse", "802"),
        ("Default, 0, No, No, Disabled, Completed, Insufficient Resources, None", "gpu_fabric", "refuse", "Insufficient"),
        ("Default, 0, No, No, Disabled, Not Started, [N/A], None", "gpu_fabric", "warn", "fabricmanager"),
        ("Default, 0, No, No, Disabled, [N/A], [N/A], Reset", "gpu_recovery", "refuse", "nvidia-smi -r -i 0000:44:00.0"),
        ("Default, 0, No, No, Disabled, [N/A], [N/A], Reboot", "gpu_recovery", "refuse", "reboot"),
        ("Default, 0, No, No, Disabled, [N/A], [N/A], Drain P2P", "gpu_recovery", "warn", "stop what uses"),
        ("Default, 0, No, No, Disabled, [N/A], [N/A], Sing", "gpu_recovery", "warn", "sing"),
        ("[GPU requires reset], [GPU requires reset], No, No, Disabled, [N/A], [N/A], [N/A]", "gpu_recovery", "refuse", "-r"),
    ],
)
def test_what_is_wrong_with_one_gpu(machine: Machine, optional: str, check: str, outcome: str, words: str) -> None:
    machine.smi = Smi(gpus=smi_rows(gpu3=optional))
    found = machine.verdicts(check_gpus)
    assert list(found) == [check]
    verdict = found[check]
    assert verdict.outcome == outcome
    assert words in f"{verdict.detail} {verdict.evidence} {verdict.next_step}"


def test_a_geforce_answers_most_with_not_available(machine: Machine) -> None:
    machine.smi = Smi(gpus=smi_rows(**{f"gpu{index}": "Default, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], None" for index in range(8)}))
    assert machine.verdicts(check_gpus)["gpus"].outcome == "pass"


def test_a_gpu_that_fell_off_the_bus_is_named_by_its_address(machine: Machine) -> None:
    machine.lose(LOST)
    machine.smi = Smi(gpus=smi_rows([gpu for gpu in GPUS if gpu != LOST]))
    found = machine.verdicts(check_gpus, expected_gpus=8)
    assert (found["gpu_on_bus"].outcome, LOST in found["gpu_on_bus"].detail) == ("refuse", True)
    assert (found["expected_gpus"].outcome, "sees 8 on PCI" in found["expected_gpus"].evidence[-1]) == ("refuse", True)


def test_a_gpu_on_pci_that_nvidia_smi_does_not_list(machine: Machine) -> None:
    machine.smi = Smi(gpus=smi_rows([gpu for gpu in GPUS if gpu != LOST]) + NO_ROW)
    found = machine.verdicts(check_gpus)
    assert (found["gpu_on_bus"].outcome, LOST in found["gpu_on_bus"].detail) == ("refuse", True)
    assert found["gpu_on_bus"].evidence == [NO_ROW.strip()]


def test_an_nvidia_smi_that_is_not_this_machines_says_nothing_of_its_gpus(machine: Machine) -> None:
    machine.smi = Smi(gpus=smi_rows(["0000:f1:00.0", "0000:f2:00.0"]))
    verdict = machine.verdicts(check_gpus)["gpu_on_bus"]
    assert (verdict.outcome, verdict.evidence) == ("unknown", list(GPUS))
    assert "none of the 8" in verdict.detail


def test_a_gpu_passed_through_to_a_virtual_machine_is_no_lost_one(machine: Machine) -> None:
    machine.link(f"/sys/bus/pci/devices/{LOST}/driver", "../../../../bus/pci/drivers/vfio-pci")
    machine.smi = Smi(gpus=smi_rows([gpu for gpu in GPUS if gpu != LOST]))
    found = machine.verdicts(check_gpus)
    assert found["gpu_driver"].outcome == "warn"
    assert found["gpu_driver"].evidence == [f"{LOST}: driver vfio-pci"]
    assert "gpu_on_bus" not in found


def test_a_container_is_not_told_of_gpus_that_it_was_not_given(machine: Machine) -> None:
    machine.in_container()
    machine.smi = Smi(gpus=smi_rows(GPUS[:2]))
    assert list(machine.verdicts(check_gpus)) == ["gpus"]
    machine.write(f"/proc/driver/nvidia/gpus/{LOST}/information", "Model: \t\t NVIDIA H200\nDevice Minor: \t 2\nGPU Excluded:\t No\n")
    machine.write("/dev/nvidia2", "")
    found = machine.verdicts(check_gpus)
    assert (found["gpu_on_bus"].outcome, LOST in found["gpu_on_bus"].detail) == ("refuse", True)


def test_an_nvidia_smi_that_hangs_is_asked_once(machine: Machine) -> None:
    machine.smi = Smi(status=None)
    found = machine.verdicts(lambda context: [*check_gpus(context), *check_users(context), *check_xids(context)])
    assert (found["gpus"].outcome, "did not end" in found["gpus"].detail) == ("unknown", True)
    assert len(machine.smi.asked) == 1


def test_a_driver_that_does_not_answer(machine: Machine) -> None:
    machine.smi = Smi(gpus="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", status=9)
    found = machine.verdicts(check_gpus)
    assert (found["gpus"].outcome, "status 9" in found["gpus"].detail) == ("unknown", True)
    assert machine.verdicts(check_gpus, expected_gpus=8)["expected_gpus"].outcome == "refuse"


def test_a_machine_without_gpus(machine: Machine) -> None:
    for path in machine.path("/sys/bus/pci/devices").iterdir():
        path.unlink()
    machine.smi = Smi(gpus="No devices were found\n", status=6)
    for check in (check_gpus, check_links, check_xids, check_users):
        assert machine.verdicts(check) == {}


def test_links_that_are_well(machine: Machine) -> None:
    found = machine.verdicts(check_links)
    assert list(found) == ["pcie_link"]
    assert found["pcie_link"].detail == "8 GPU(s) run on all their lanes (x16); now 32 GT/s, to be judged under load only"


def test_a_slow_link_of_an_idle_gpu_is_nothing(machine: Machine) -> None:
    machine.attribute(LOST, "current_link_speed", "2.5 GT/s PCIe")
    assert machine.verdicts(check_links)["pcie_link"].outcome == "pass"


def test_a_narrow_link_and_whose_fault_it_is(machine: Machine) -> None:
    machine.attribute(LOST, "current_link_width", "8")
    found = machine.verdicts(check_links)["pcie_link"]
    assert (found.outcome, found.evidence) == ("warn", [f"{LOST}: x8 of x16, the slot has x16"])
    assert "reseat" in str(found.next_step)
    machine.attribute("0000:40:02.0", "max_link_width", "8")
    found = machine.verdicts(check_links)["pcie_link"]
    assert (found.evidence, "move the cards" in str(found.next_step)) == ([f"{LOST}: x8 of x16, the slot has x8"], True)


@pytest.mark.parametrize("width", ["0", "63"])
def test_a_link_that_is_down(machine: Machine, width: str) -> None:
    machine.attribute(LOST, "current_link_width", width)
    assert machine.verdicts(check_links)["pcie_link"].outcome == "refuse"


def test_a_gpu_off_the_bus_has_no_link_to_speak_of(machine: Machine) -> None:
    machine.lose(LOST)
    machine.attribute(LOST, "current_link_width", "63")
    assert machine.verdicts(check_links)["pcie_link"].outcome == "pass"


def test_a_slot_slower_than_its_card(machine: Machine) -> None:
    machine.attribute("0000:40:02.0", "max_link_speed", "16.0 GT/s PCIe")
    machine.attribute(LOST, "current_link_speed", "16.0 GT/s PCIe")
    found = machine.verdicts(check_links)
    assert found["pcie_slot"].evidence == [f"{LOST}: the slot does 16 GT/s, the GPU 32"]


@pytest.mark.parametrize(("name", "value"), [("max_link_speed", "2.5 GT/s PCIe"), ("max_link_width", "1")])
def test_a_virtual_machines_port_is_not_believed(machine: Machine, name: str, value: str) -> None:
    machine.attribute("0000:40:02.0", name, value)
    machine.attribute(LOST, "current_link_width", "8")
    assert machine.verdicts(check_links)["pcie_link"].evidence == [f"{LOST}: x8 of x16"]
    assert "pcie_slot" not in machine.verdicts(check_links)


def test_a_width_that_is_not_told(machine: Machine) -> None:
    machine.path(f"/sys/bus/pci/devices/{LOST}/max_link_width").unlink()
    assert machine.verdicts(check_links)["pcie_link"].outcome == "unknown"


def test_counted_errors_come_with_the_logs_last_lines(machine: Machine) -> None:
    machine.attribute(LOST, "aer_dev_correctable", "RxErr 0\nBadTLP 7\nTOTAL_ERR_COR 7")
    assert machine.verdicts(check_links)["pcie_errors"].detail.startswith("7 corrected PCIe errors, and no other,")
    machine.attribute(LOST, "aer_dev_correctable", "RxErr 0\nBadTLP 700\nTOTAL_ERR_COR 700")
    machine.attribute(LOST, "aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 0")
    machine.attribute("0000:40:02.0", "aer_dev_correctable", "TOTAL_ERR_COR 0")
    machine.write("/dev/kmsg", f"4,9,3000000,-;pcieport 0000:40:02.0: AER: Correctable error message received from {LOST}\n")
    found = machine.verdicts(check_links)["pcie_errors"]
    assert (found.outcome, found.detail) == ("warn", "PCIe errors were counted since boot on 1 of 2 functions")
    assert found.evidence[0] == f"{LOST}: 700 corrected"
    assert found.evidence[1].endswith("(3 s after boot)")
    machine.attribute(LOST, "aer_dev_correctable", "TOTAL_ERR_COR 0")
    machine.attribute("0000:40:02.0", "aer_dev_fatal", "SDES 1\nTOTAL_ERR_FATAL 1")
    assert "pcie_aspm=off" in str(machine.verdicts(check_links)["pcie_errors"].next_step)


@pytest.mark.parametrize(
    ("line", "address", "code"),
    [
        ("NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", LOST, 79),
        ("NVRM: Xid (PCI:0000:43:00): 31, pid=704, name=sglang::schedul, Ch 00000008, intr 00000000. MMU Fault", LOST, 31),
        ("NVRM: Xid (PCI:0000:C1:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", GPUS[4], 154),
        ("NVRM: Xid (0000:43:00): 13, Graphics Exception", LOST, 13),
        ("NVRM: The NVIDIA GPU 0000:43:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed\\x0aNVRM: fallen off the bus and is not", LOST, 79),
    ],
)
def test_xid_messages(line: str, address: str, code: int) -> None:
    found = find_xids(parse_records(f"4,1,5000000,-;{line}\n SUBSYSTEM=pci\n DEVICE=+pci:{LOST}\n".encode()))
    assert [(xid.address, xid.code, xid.seconds) for xid in found] == [(address, code, 5.0)]
    assert "x0a" not in found[0].text


def log(*lines: tuple[int, str]) -> str:
    return "5,0,0,-;Linux version 6.8.12-4-pve\n" + "".join(f"4,{at},{at}000000,-;{line}\n" for at, line in lines)


def test_no_xid(machine: Machine) -> None:
    assert machine.verdicts(check_xids)["xid"].detail == "no Xid in this boot"
    machine.write("/dev/kmsg", "4,7000,3600000000,-;later\n")
    assert "the log begins 1.0 h after boot" in machine.verdicts(check_xids)["xid"].detail


def test_a_programs_fault_is_told_apart_from_a_gpus(machine: Machine) -> None:
    page_fault = "NVRM: Xid (PCI:0000:41:00): 31, pid=704, name=python3, Ch 00000008"
    machine.write("/dev/kmsg", log((60, page_fault), (3600, page_fault)))
    found = machine.verdicts(check_xids)["xid"]
    assert (found.outcome, "program's log" in str(found.next_step)) == ("warn", True)
    assert found.evidence == [f"{page_fault} (1.0 h ago; 2 in this boot)"]
    machine.write("/dev/kmsg", log((60, "NVRM: Xid (PCI:0000:42:00): 48, DBE"), (3600, page_fault)))
    found = machine.verdicts(check_xids)["xid"]
    assert "0000:42:00.0: Xid 48" in found.detail
    assert "-i 0000:42:00.0" in str(found.next_step)


def test_a_gpu_that_fell_off_the_bus_is_red_until_it_answers_again(machine: Machine) -> None:
    machine.write(
        "/dev/kmsg", log((60, "NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus."), (61, "NVRM: Xid (PCI:0000:43:00): 154, x"))
    )
    assert machine.verdicts(check_xids)["xid"].outcome == "warn"
    machine.smi = Smi(gpus=smi_rows([gpu for gpu in GPUS if gpu != LOST]))
    found = machine.verdicts(check_xids)["xid"]
    assert (found.outcome, LOST in found.detail, "reboot" in str(found.next_step)) == ("refuse", True, True)


def test_a_log_that_can_not_be_read(machine: Machine) -> None:
    assert machine.verdicts(check_xids)["xid"].outcome == "pass"
    machine.write("/dev/kmsg", "")
    assert "it is empty" in machine.verdicts(check_xids)["xid"].detail
    machine.path("/dev/kmsg").unlink()
    assert "No such file" in machine.verdicts(check_xids)["xid"].detail
    assert "on the host" in str(machine.in_container().verdicts(check_xids)["xid"].next_step)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0::/lxc/101/ns/system.slice/sglang.service", "101"),
        ("0::/lxc.payload.gpu1/init.scope", "gpu1"),
        ("12:cpu:/\n1:name=systemd:/lxc.payload.proj_gpu1/x\n0::/", "proj_gpu1"),
        ("0::/lxc/101/ns/system.slice/docker-0123456789abcdef.scope", "101"),
        ("0::/system.slice/docker-0123456789abcdef.scope", "docker 0123456789ab"),
        ("0::/user.slice/user-0.slice/session-1.scope", None),
        ("", None),
    ],
)
def test_container_of_a_process(text: str, name: str | None) -> None:
    assert container_of(text) == name


def app(index: int, pid: int, memory: str) -> str:
    return f"GPU-{index:04d}, {pid}, {memory}\n"


def test_who_uses_the_gpus_as_the_host_sees_it(machine: Machine) -> None:
    machine.process(800, "sglang::schedul", "0::/lxc/101/ns/system.slice/x.service")
    machine.smi = Smi(apps=app(0, 800, "90000") + app(1, 800, "90000"))
    assert machine.verdicts(check_users, container="101")["gpu_users"].detail == (
        "only the service's 1 process(es) in container 101 use the GPUs, 180000 MiB"
    )
    assert machine.verdicts(check_users)["gpu_users"].outcome == "pass"
    machine.process(900, "python3", "0::/lxc/102/ns/x")
    machine.process(901, "Xorg", "0::/user.slice")
    machine.smi.apps += app(3, 900, "5000") + app(3, 901, "[N/A]")
    found = machine.verdicts(check_users, container="101")["gpu_users"]
    assert (found.outcome, found.evidence) == (
        "warn",
        ["process 900 (python3 in container 102): 5000 MiB of GPU 3", "process 901 (Xorg): an unknown amount of GPU 3"],
    )
    assert "-p 900,901" in str(found.next_step)


def test_memory_that_nobody_is_listed_for(machine: Machine) -> None:
    assert machine.verdicts(check_users)["gpu_users"].detail == "nobody uses the GPUs"
    machine.smi = Smi(gpus=smi_row(0, GPUS[0], memory="70000, 97887"))
    found = machine.verdicts(check_users)["gpu_users"]
    assert (found.outcome, found.evidence) == ("warn", [f"GPU 0 ({GPUS[0]}): 70000 MiB"])
    hidden = machine.in_container().verdicts(check_users)["gpu_users"]
    assert (hidden.outcome, "on the host" in str(hidden.next_step)) == ("warn", True)


def test_a_number_of_another_pid_namespace_is_nobody_here(machine: Machine) -> None:
    machine.in_container().process(800, "cron", gpu=False)
    machine.smi = Smi(apps=app(0, 800, "5000"))
    found = machine.verdicts(check_users)["gpu_users"]
    assert (found.outcome, found.evidence) == ("warn", ["process 800 (not visible here): 5000 MiB of GPU 0"])


def test_the_services_own_processes_are_not_foreign(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Member:
        pid = 800

    class Server:
        members = (Member,)

    monkeypatch.setattr("orchestrator.agent.processes.find_server", lambda port: Server)
    machine.in_container().process(800, "sglang::schedul", gpu=False)
    machine.process(801, "python3")
    machine.smi = Smi(apps=app(0, 800, "90000"))
    assert machine.verdicts(check_users, service="llm", port=30000)["gpu_users"].outcome == "pass"
    machine.smi.apps += app(0, 801, "5000")
    assert machine.verdicts(check_users, service="llm", port=30000)["gpu_users"].evidence == ["process 801 (python3): 5000 MiB of GPU 0"]
    machine.smi.apps = app(0, 800, "90000") + app(1, 4000000, "5000")
    assert machine.verdicts(check_users, service="llm", port=30000)["gpu_users"].outcome == "unknown"


def test_p2p_answers() -> None:
    assert parse_p2p((DATA / "h200_x2_p2p_r.txt").read_text()) == {(0, 1): "OK", (1, 0): "OK"}
    assert parse_p2p((DATA / "h200_x2_p2p_p.txt").read_text()) == {(0, 1): "NS", (1, 0): "NS"}
    assert len(parse_p2p(p2p_matrix(8))) == 56
    assert parse_p2p(p2p_matrix(1)) == {}
    assert parse_p2p("") == {}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:41:00.0", LOST.replace("43", "41")),
        ("0000:C1:00", GPUS[4]),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("no address", "no address"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert pci_address(text) == address


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    parse_states(text)
    parse_p2p(text)
    parse_counters(text)
    container_of(text)
    pci_address(text)
    find_xids(parse_records(text.encode("utf-8", "surrogatepass")))


@given(st.lists(st.sampled_from(["GPU0", "GPU1", "GPU99999", "X", "OK", "\t", "\n", "\x1b[4m", "GPU", "NS"]), max_size=40))
def test_any_matrix_is_parsed(words: list[str]) -> None:
    assert all(one != other for one, other in parse_p2p("".join(words)))


@given(st.lists(st.sampled_from([*smi_rows().split(","), "\n", ",", "Field", '"compute_mode"', "[GPU requires reset]", "No"]), max_size=60))
def test_any_rows_are_parsed(words: list[str]) -> None:
    parse_states(",".join(words))


@given(st.text(), st.one_of(st.none(), st.integers()))
def test_any_answer_ends_the_asking(text: str, status: int | None) -> None:
    ask_states(lambda _argv, _seconds: Output(status, text, ""))


@given(st.binary())
def test_any_bytes_of_the_log_are_parsed(data: bytes) -> None:
    parse_records(b"4,1,5000000,-;" + data)


numbers = st.one_of(st.none(), st.integers(min_value=0, max_value=64))
speeds = st.one_of(st.none(), st.floats(min_value=0, max_value=64))


@given(st.lists(st.builds(Link, st.just(LOST), numbers, numbers, speeds, speeds, numbers, speeds), min_size=1, max_size=9))
def test_any_links_are_judged(links: list[Link]) -> None:
    assert judge(links)
