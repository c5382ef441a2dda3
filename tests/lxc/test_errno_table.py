"""What of the host's knobs a container can read and write, for each kind of container: measured, and as the agent tells it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lxc.in_container import STATE, AgentInContainer
from tests.rig.container import Container, Flavour
from tests.rig.network import Bridge
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

OK, ABSENT = "can be written", "is not there"
REFUSED = "not reachable from here: go to the host"
_REFUSALS = ("EROFS", "EACCES", "EPERM")

OPEN_FOR_WRITING = """
import errno, os
def attempt(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "OK"
out({path: attempt(path) for path in given["paths"]})
"""

READ = """
def read(path):
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read(4096).hex()
    except OSError:
        return None
out({path: read(path) for path in given["paths"]})
"""

TUNE = """
from orchestrator.agent import wire_host
from orchestrator.agent.tuning import tune
out(tune(wire.from_json(wire_host.TuneRequest, given["request"]), ignore))
"""


@dataclass(frozen=True)
class Row:
    """One knob. `places` holds the class in a privileged container, in an unprivileged one like Proxmox's, and in one like Incus's."""

    path: str
    places: tuple[str, str, str]

    def expected(self, flavour: Flavour) -> str:
        return dict(zip(Flavour, self.places, strict=True))[flavour]


EVERYWHERE_REFUSED = (REFUSED, REFUSED, REFUSED)

TABLE = [
    Row("/proc/sys/kernel/numa_balancing", EVERYWHERE_REFUSED),
    Row("/proc/sys/vm/swappiness", EVERYWHERE_REFUSED),
    Row("/proc/sys/vm/nr_hugepages", EVERYWHERE_REFUSED),
    Row("/proc/sys/vm/zone_reclaim_mode", EVERYWHERE_REFUSED),
    Row("/proc/sys/vm/max_map_count", EVERYWHERE_REFUSED),
    Row("/proc/sys/kernel/shmmax", (REFUSED, REFUSED, OK)),
    Row("/proc/sys/net/core/somaxconn", (OK, OK, OK)),
    Row("/proc/sys/net/core/rmem_max", EVERYWHERE_REFUSED),
    Row("/sys/kernel/mm/transparent_hugepage/enabled", EVERYWHERE_REFUSED),
    Row("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", EVERYWHERE_REFUSED),
    Row("/sys/devices/system/cpu/cpu1/online", EVERYWHERE_REFUSED),
    Row("/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", EVERYWHERE_REFUSED),
    Row("/sys/module/pcie_aspm/parameters/policy", EVERYWHERE_REFUSED),
    Row("/sys/block/loop0/queue/read_ahead_kb", EVERYWHERE_REFUSED),
    Row("/sys/bus/pci/devices/0000:00:00.0/config", EVERYWHERE_REFUSED),
    Row("/dev/cpu_dma_latency", (ABSENT, ABSENT, ABSENT)),
]


@pytest.fixture(scope="module", params=list(Flavour), ids=lambda flavour: str(flavour.name).lower())
def agent(request: pytest.FixtureRequest, workspace: Workspace) -> Iterator[AgentInContainer]:
    """The agent's code in a container of each flavour."""
    flavour: Flavour = request.param
    if flavour is Flavour.PRIVILEGED:
        yield AgentInContainer.install(request.getfixturevalue("container"))
        return
    bridge: Bridge = request.getfixturevalue("bridge")
    made = Container.start(workspace, bridge, flavour=flavour)
    yield AgentInContainer.install(made)
    made.stop()


def test_unprivileged_ones_have_ids_of_their_own(agent: AgentInContainer) -> None:
    privileged = agent.container.flavour is Flavour.PRIVILEGED
    first, _, count = agent.text("/proc/self/uid_map").split()[0:3]
    assert first == "0"
    assert (count == "4294967295") is privileged
    assert agent.container.ssh.run("id -u; cat /proc/1/comm").stdout == "0\nsystemd\n"


def test_each_knob_is_of_the_class_that_the_table_says(agent: AgentInContainer) -> None:
    here = [row for row in TABLE if Path(row.path).exists() or row.places[0] == ABSENT]
    assert len(here) >= 10, "this machine has hardly any of the knobs"

    found = agent.python(OPEN_FOR_WRITING, paths=[row.path for row in here])

    assert {path: _class(answer) for path, answer in found.items()} == {row.path: row.expected(agent.container.flavour) for row in here}


def test_values_are_the_hosts(agent: AgentInContainer) -> None:
    paths = [row.path for row in TABLE if row.places == EVERYWHERE_REFUSED and not row.path.endswith("config") and Path(row.path).exists()]

    found = agent.python(READ, paths=paths)

    assert {path: bytes.fromhex(content) for path, content in found.items()} == {path: Path(path).read_bytes() for path in paths}


def test_configuration_space_is_cut_for_who_is_not_the_hosts_root(agent: AgentInContainer) -> None:
    configs = sorted(str(path) for path in Path("/sys/bus/pci/devices").glob("*/config"))
    if not configs:
        pytest.skip("this machine has no PCI devices")

    found = agent.python(READ, paths=configs)

    expected = {path: len(Path(path).read_bytes()) for path in configs}
    if agent.container.flavour is not Flavour.PRIVILEGED:
        expected = dict.fromkeys(configs, 64)
    assert {path: len(content) // 2 for path, content in found.items()} == expected


def test_tune_tells_what_to_type_on_the_host(agent: AgentInContainer) -> None:
    swappiness = Path("/proc/sys/vm/swappiness").read_text(encoding="utf-8").strip()
    resume = Path("/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us").read_text(encoding="utf-8").strip()
    settings = [
        {"kind": "sysctl", "name": "vm.swappiness", "value": str(int(swappiness) + 1)},
        {"kind": "cpu_resume_latency", "value": str(int(resume or 0) + 50)},
        {"kind": "sysctl", "name": "vm.swappiness", "value": swappiness},
        {"kind": "sysctl", "name": "vm.swappiness"},
    ]

    report = agent.python(TUNE, request=_request(settings))

    set_elsewhere, each_cpu, same, observed = report["results"]
    assert [result["outcome"] for result in report["results"]] == ["not_settable", "not_settable", "same", "observed"]
    assert set_elsewhere["before"] == set_elsewhere["after"] == {"": swappiness}
    assert set_elsewhere["commands"] == [f"sysctl -w vm.swappiness={int(swappiness) + 1}"]
    assert set(each_cpu["before"].values()) == {resume}
    assert "cpu0" in each_cpu["before"]
    assert "/sys/devices/system/cpu/" in each_cpu["commands"][0]
    assert observed["after"] == same["after"] == {"": swappiness}
    assert Path("/proc/sys/vm/swappiness").read_text(encoding="utf-8").strip() == swappiness
    assert not agent.container.path(f"{STATE}/.host").exists()


def test_tune_sets_and_reverts_what_is_the_containers_own(agent: AgentInContainer) -> None:
    machine = Path("/proc/sys/net/core/somaxconn")
    before = agent.text(str(machine)).strip()
    other, of_the_machine = str(int(before) + 4096), machine.read_text(encoding="utf-8")
    settings = [{"kind": "sysctl", "name": "net.core.somaxconn", "value": other, "place": "container"}]

    changed = agent.python(TUNE, request=_request(settings))["results"][0]

    assert (changed["outcome"], changed["before"], changed["after"]) == ("changed", {"": before}, {"": other})
    assert agent.text(str(machine)).strip() == other
    assert machine.read_text(encoding="utf-8") == of_the_machine
    assert agent.python(TUNE, request=_request(settings))["results"][0]["outcome"] == "same"

    reverted = agent.python(TUNE, request=_request([], action="revert"))

    assert [result["outcome"] for result in reverted["results"]] == ["changed"]
    assert agent.text(str(machine)).strip() == before
    assert reverted["originals"] == 0


def _request(settings: list[dict[str, str]], action: str = "apply") -> dict[str, object]:
    return {"profile": "rig", "settings": settings, "action": action, "write": True, "state_root": STATE, "place": "container"}


def _class(answer: str) -> str:
    if answer in _REFUSALS:
        return REFUSED
    return {"OK": OK, errno.errorcode[errno.ENOENT]: ABSENT}.get(answer, answer)
