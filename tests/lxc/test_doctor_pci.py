"""What a diagnosis says of PCI and containers, against setpci, lspci and the kernel; and that the commands it prints do what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.doctor_users import container_of
from tests.lxc.prepared import Prepared, prepared
from tests.rig.container import Container
from tests.rig.pci_tree import BRIDGES, GPUS
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

ACS_CONTROL = re.compile(r"ACSCtl:.*CmpltRedir[+-]")


@pytest.fixture
def box(workspace: Workspace, tmp_path: Path) -> Iterator[Prepared]:
    with prepared(workspace, tmp_path) as made:
        yield made


def diagnose(box: Prepared) -> dict[str, dict[str, Any]]:
    """The host's verdicts by check, once nothing is missing from any of them."""
    document = box.operator.ask("doctor", "--host", box.name, timeout=120).document
    verdicts = [item for section in document["report"]["sections"] for item in section["verdicts"]]
    for verdict in verdicts:
        assert verdict["outcome"] == "pass" or verdict["next_step"], verdict
    return {verdict["check"]: verdict for verdict in verdicts}


def do(box: Prepared, step: str) -> None:
    """Type what was printed: the command ahead of the remarks."""
    box.host.ssh.run(step.partition(" (")[0].partition("; for good")[0])


def lspci(box: Prepared, address: str = "") -> str:
    """What lspci says of one function, or of all."""
    return box.host.ssh.run(f"lspci {f'-s {address}' if address else ''} -vvv 2>/dev/null").stdout


def test_the_printed_command_ends_acs_redirect(box: Prepared) -> None:
    before = diagnose(box)["acs_redirect"]
    assert before["outcome"] == "warn"
    assert f"at {len(BRIDGES)} of 12 port(s)" in before["detail"]
    assert ACS_CONTROL.findall(lspci(box)) == ["ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+"] * len(BRIDGES)

    do(box, before["next_step"])

    assert ACS_CONTROL.findall(lspci(box)) == ["ACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir-"] * len(BRIDGES)
    assert diagnose(box)["acs_redirect"]["outcome"] == "pass"


def test_the_printed_command_switches_aspm_off(box: Prepared) -> None:
    assert diagnose(box)["aspm"]["outcome"] == "pass"
    box.host.ssh.run(f"setpci -s {GPUS[5]} CAP_EXP+10.w=2:3")
    assert "ASPM L1 Enabled" in lspci(box, GPUS[5])
    found = diagnose(box)["aspm"]
    assert (found["outcome"], found["evidence"]) == ("warn", [f"{GPUS[5]}: L1"])

    do(box, found["next_step"])

    assert "ASPM Disabled" in lspci(box, GPUS[5])
    assert diagnose(box)["aspm"]["outcome"] == "pass"


def test_a_gpu_off_the_bus_is_red_and_named(box: Prepared) -> None:
    box.host.knobs.fall_off_the_bus(GPUS[3])
    found = diagnose(box)
    assert (found["gpu_on_bus"]["outcome"], GPUS[3] in found["gpu_on_bus"]["detail"]) == ("refuse", True)


def test_the_hosts_kernel_names_the_container_of_a_process(container: Container) -> None:
    text = Path(f"/proc/{container.init()}/cgroup").read_text(encoding="utf-8")
    assert container_of(text) == container.name
    assert container_of(Path("/proc/self/cgroup").read_text(encoding="utf-8")) is None
