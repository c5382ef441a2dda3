"""Where a server may run and what it may take, in the kernel's own formats."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.doctor_place import Placement, check_place, judge_placement, parse_limits, parse_list, parse_proxmox, show_list
from orchestrator.agent.doctor_stuck import WATCH_SECONDS, check_stuck
from orchestrator.agent.wire import Verdict
from tests.unit.agent.gpu_machine import GPUS, Machine, write_tree

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 {files}               files
Max locked memory         8388608              {memory}              bytes
Max realtime timeout      unlimited            unlimited            us
"""

PROXMOX = """\
# GPU container
arch: amd64
cores: 32
features: nesting=1
hostname: sglang
lxc.cgroup2.devices.allow: c 195:* rwm
{more}
[before-upgrade]
cores: 8
lxc.cgroup2.cpuset.cpus: 0-7
"""

CONF = "/etc/pve/lxc/101.conf"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def machine(tmp_path: Path, tree: Path) -> Machine:
    made = Machine(tmp_path, tree)
    allow(made, "0-3", "0-1")
    made.write("/proc/self/limits", LIMITS.format(files="1048576", memory="unlimited"))
    return made


def allow(machine: Machine, cpus: str, nodes: str, capabilities: str = "0") -> None:
    machine.write(
        "/proc/self/status", f"Name:\tpython3\nCapEff:\t{capabilities}\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}\n"
    )


def test_a_container_that_has_all_it_needs(machine: Machine) -> None:
    found = machine.in_container().verdicts(check_place)
    assert [(verdict.check, verdict.outcome) for verdict in found.values() if verdict.check != "shared_memory"] == [
        ("cpuset", "pass"),
        ("limits", "pass"),
    ]
    assert found["cpuset"].detail == "4 CPUs, all of those near each GPU (nodes 0-1)"
    assert "shared_memory" in found


@pytest.mark.parametrize(
    ("cpus", "nodes", "outcome", "words"),
    [
        ("2-3", "0-1", "warn", f"{GPUS[0]}: node 0, CPUs 0-1"),
        ("0-1", "0-1", "warn", f"{GPUS[4]}: node 1, CPUs 2-3"),
        ("0-3", "0", "warn", "memory of node 1"),
        ("0,2", "0-1", "pass", "some of those near each GPU"),
        ("", "", "unknown", "doesn't tell"),
        ("garbage", "0", "unknown", "doesn't tell"),
    ],
)
def test_cpusets(machine: Machine, cpus: str, nodes: str, outcome: str, words: str) -> None:
    allow(machine, cpus, nodes)
    found = machine.in_container().verdicts(check_place)["cpuset"]
    assert found.outcome == outcome
    assert words in f"{found.detail} {found.evidence}"
    if outcome == "warn":
        assert "lxc.cgroup2.cpuset.cpus = 0-3" in str(found.next_step)


def test_a_machine_that_tells_no_nodes(machine: Machine) -> None:
    for gpu in GPUS:
        machine.attribute(gpu, "numa_node", "-1")
    assert "no NUMA node is told" in machine.in_container().verdicts(check_place)["cpuset"].detail


def test_a_cpuset_of_a_plain_host_is_not_a_containers(machine: Machine) -> None:
    placement = Placement(frozenset({9}), frozenset(), {"0000:41:00.0": (0, frozenset({0, 1}))})
    asked: Any = SimpleNamespace(in_container=False)
    step = str(judge_placement(asked, placement, "/proc/self/status").next_step)
    assert "container" not in step
    assert step.endswith("allow 0-1")


@pytest.mark.parametrize(
    ("files", "memory", "evidence", "line"),
    [
        ("20000", "unlimited", ["20000 open files: SGLang wants 65535"], "lxc.prlimit.nofile: 1048576;"),
        (
            "1048576",
            "8388608",
            ["locked memory 8 MiB: too little for RDMA and for transfer engines that pin memory"],
            "lxc.prlimit.memlock: unlimited;",
        ),
        ("20000", "65536", ["locked memory 64 KiB", "20000 open"], "limits.kernel.memlock=unlimited limits.kernel.nofile=1048576;"),
    ],
)
def test_low_limits(machine: Machine, files: str, memory: str, evidence: list[str], line: str) -> None:
    machine.write("/proc/self/limits", LIMITS.format(files=files, memory=memory))
    found = machine.in_container().verdicts(check_place)["limits"]
    assert found.outcome == "warn"
    assert all(text.startswith(start) for text, start in zip(found.evidence, evidence, strict=True))
    assert line in str(found.next_step)


def test_a_line_for_a_file_of_the_host_names_the_file(machine: Machine) -> None:
    machine.write("/proc/self/limits", LIMITS.format(files="20000", memory="65536"))
    step = "in /etc/security/limits.d/90-gpu.conf: * - memlock unlimited; * - nofile 1048576; then log in again"
    assert machine.verdicts(check_place, service="llm")["limits"].next_step == step


def test_root_of_the_host_raises_limits_itself(machine: Machine) -> None:
    machine.write("/proc/self/limits", LIMITS.format(files="20000", memory="8388608"))
    allow(machine, "0-3", "0-1", "000001ffffffffff")
    assert machine.verdicts(check_place, service="llm")["limits"].outcome == "pass"
    machine.write("/proc/self/uid_map", "         0     100000      65536")
    assert machine.in_container().verdicts(check_place)["limits"].outcome == "warn"


def test_limits_of_the_running_server_count(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        class main:  # noqa: N801
            pid = 800

    monkeypatch.setattr("orchestrator.agent.processes.find_server", lambda port: Server)
    machine.write("/proc/800/limits", LIMITS.format(files="1024", memory="unlimited"))
    machine.write("/proc/800/status", "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0-1\n")
    found = machine.in_container().verdicts(check_place, service="llm", port=30000)
    assert (found["limits"].outcome, found["limits"].source) == ("warn", "/proc/800/limits")
    assert found["cpuset"].outcome == "warn"


def test_limits_that_can_not_be_read(machine: Machine) -> None:
    machine.write("/proc/self/limits", "nonsense")
    assert machine.in_container().verdicts(check_place)["limits"].outcome == "unknown"


def test_a_host_without_service_is_asked_for_its_own_things_only(machine: Machine) -> None:
    assert machine.verdicts(check_place, container="101") == {}


@pytest.mark.parametrize(
    ("more", "outcome", "words"),
    [
        ("", "warn", "in /etc/pve/lxc/101.conf: lxc.cgroup2.cpuset.cpus: 0-3; then pct reboot 101"),
        ("lxc.cgroup2.cpuset.cpus: 0-63", "pass", "keeps its CPUs (0-63)"),
        ("cores: 0", "warn", "any 32 CPUs"),
    ],
)
def test_proxmox_moves_containers(machine: Machine, more: str, outcome: str, words: str) -> None:
    machine.write(CONF, PROXMOX.format(more=more))
    found = machine.verdicts(check_place, container="101")["rebalancing"]
    assert found.outcome == outcome
    assert words in f"{found.detail} {found.next_step}"


def test_proxmox_without_cores_or_configuration(machine: Machine) -> None:
    machine.write(CONF, "arch: amd64\nhostname: sglang\n")
    assert machine.verdicts(check_place, container="101")["rebalancing"].outcome == "pass"
    machine.path(CONF).unlink()
    assert machine.verdicts(check_place, container="101")["rebalancing"].outcome == "unknown"
    assert machine.verdicts(check_place, container="sglang") == {}


def test_snapshots_are_not_the_configuration() -> None:
    settings = parse_proxmox(PROXMOX.format(more=""))
    assert (settings["cores"], "lxc.cgroup2.cpuset.cpus" in settings) == ("32", False)


def test_two_daemons_that_tune(machine: Machine) -> None:
    machine.write("/usr/lib/systemd/system/tuned.service", "[Unit]\n")
    assert machine.verdicts(check_place) == {}
    machine.write("/usr/lib/systemd/system/power-profiles-daemon.service", "[Unit]\n")
    assert machine.verdicts(check_place)["tuning_daemons"].outcome == "warn"
    machine.link("/etc/systemd/system/power-profiles-daemon.service", "/dev/null")
    assert machine.verdicts(check_place) == {}


def stuck(machine: Machine, pid: int, name: str, waits_in: str, **more: bool) -> None:
    machine.process(pid, name, state="D", **{"gpu": False, **more})  # type: ignore[arg-type]
    machine.write(f"/proc/{pid}/wchan", waits_in)


def look(machine: Machine, sleep: object = None) -> list[Verdict]:
    slept: list[float] = []

    def check(context: Context) -> list[Verdict]:
        return check_stuck(context, sleep or slept.append)  # type: ignore[arg-type]

    found = list(machine.verdicts(check).values())
    assert sum(slept) == pytest.approx(WATCH_SECONDS) if found and sleep is None else True
    return found


@pytest.mark.parametrize(
    ("name", "waits_in", "gpu"),
    [
        ("nvidia-smi", "0", False),
        ("python3", "uvm_va_space_destroy", False),
        ("python3", "os_acquire_rwlock_write", False),
        ("sglang::schedul", "0", True),
        ("cat", "nvidia_open", False),
    ],
)
def test_a_process_stuck_in_the_driver_is_red(machine: Machine, name: str, waits_in: str, gpu: bool) -> None:
    stuck(machine, 700, name, waits_in, gpu=gpu)
    (found,) = look(machine)
    assert (found.outcome, "reboot" in str(found.next_step)) == ("refuse", True)
    assert f"process 700 ({name}), state D" in found.evidence[0]


@pytest.mark.parametrize(("name", "waits_in", "state"), [("python3", "folio_wait_bit_common", "D"), ("python3", "uvm_ioctl", "S")])
def test_a_process_that_reads_a_disk_or_sleeps_is_nothing(machine: Machine, name: str, waits_in: str, state: str) -> None:
    machine.process(700, name, state=state, gpu=False)
    machine.write("/proc/700/wchan", waits_in)
    assert look(machine) == []


def test_a_process_that_runs_now_and_then_is_not_stuck(machine: Machine) -> None:
    stuck(machine, 700, "nvidia-smi", "0")
    runs: list[float] = []

    def run(seconds: float) -> None:
        runs.append(seconds)
        machine.write("/proc/700/status", f"voluntary_ctxt_switches:\t{10 + len(runs)}\n")

    assert look(machine, run) == []
    assert len(runs) == 1


def test_a_thread_that_hangs_while_its_process_sleeps(machine: Machine) -> None:
    machine.process(700, "python3", gpu=False)
    for thread, state, waits_in in ((700, "S", "0"), (705, "D", "uvm_va_block_make_resident")):
        folder = f"/proc/700/task/{thread}"
        machine.write(f"{folder}/stat", f"{thread} (python3) {state} 1 700 700 0 -1 4194560 " + "0 " * 12 + "4711 99 100 184467\n")
        machine.write(f"{folder}/wchan", waits_in)
    (found,) = look(machine)
    assert found.evidence == ["process 700 (python3, thread 705), state D in uvm_va_block_make_resident"]


def test_a_proc_full_of_nonsense(machine: Machine) -> None:
    machine.write("/proc/700/stat", "700 (")
    machine.write("/proc/701/stat", "")
    machine.path("/proc/702").mkdir()
    assert look(machine) == []


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("3-1", set()), ("0-99999999", set())])
def test_lists(text: str, numbers: set[int]) -> None:
    assert parse_list(text) == numbers


@given(st.frozensets(st.integers(min_value=0, max_value=300), min_size=1))
def test_lists_go_there_and_back(numbers: frozenset[int]) -> None:
    assert parse_list(show_list(numbers)) == numbers


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    parse_list(text)
    parse_proxmox(text)
    parse_limits(text)


@given(st.lists(st.sampled_from(["Max locked memory", "Max open files", " ", "   ", "unlimited", "8388608", "\n", "-1"]), max_size=30))
def test_any_limits_are_parsed(words: list[str]) -> None:
    parse_limits("".join(words))
