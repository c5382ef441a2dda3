"""`fab doctor` on a real container and its host, by each way in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rig.inventory import BY_LXC_ATTACH, BY_PCT_STANDIN, BY_SSH, write_backend, write_service, write_tuning
from tests.rig.operator import Operator

pytestmark = pytest.mark.lxc

SERVICE = {"python": "/usr/bin/python3", "model": "/srv/models/none", "port": 31001}
SWAPPINESS = Path("/proc/sys/vm/swappiness")


@pytest.fixture
def operator(lxc_inventory: Path, tmp_path: Path) -> Operator:
    """An operator with one service on each of the rig's hosts; all three are the same container, where there is no SGLang."""
    for host in (BY_SSH, BY_LXC_ATTACH, BY_PCT_STANDIN):
        write_service(lxc_inventory, f"service-{host}", {"host": host, **SERVICE})
    write_backend(lxc_inventory, "auto", {})
    home = tmp_path / "home"
    home.mkdir()
    return Operator(lxc_inventory, home)


def change_host(operator: Operator, host: str, **keys: Any) -> None:
    """Set keys of one host in hosts.yml."""
    path = operator.inventory / "hosts.yml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["hosts"][host] |= keys
    path.write_text(yaml.safe_dump(data), encoding="utf-8")


def parts(document: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """The verdicts by the part's first or last word, then by check."""
    found = {}
    for section in document["report"]["sections"]:
        words = section["heading"].replace(",", "").split()
        found[words[-1 if words[-1] == "together" else 0]] = {item["check"]: item for item in section["verdicts"]}
    return found


def red(part: dict[str, dict[str, Any]]) -> list[str]:
    return [check for check, item in part.items() if item["outcome"] == "refuse"]


@pytest.mark.parametrize("host", [BY_SSH, BY_LXC_ATTACH, BY_PCT_STANDIN])
def test_a_machine_without_gpus_and_a_container_without_sglang(operator: Operator, host: str) -> None:
    answer = operator.ask("doctor", "--host", host, timeout=120).expect(3)

    found = parts(answer.document)
    assert list(found) == ["host", "container", "together", "service"]
    assert {name: red(part) for name, part in found.items() if name != "service"} == {"host": [], "container": [], "together": []}
    assert red(found["service"]) == ["sglang"]
    assert found["together"]["same_machine"]["outcome"] == "pass"
    for part in (found["host"], found["container"], found["together"]):
        assert all(item["source"] for item in part.values())
        assert all(item["next_step"] for item in part.values() if item["outcome"] in {"refuse", "warn"})
    facts = {fact["name"]: fact["value"] for fact in answer.document["report"]["container"]["report"]["facts"]}
    assert facts["container"] == "lxc"


def test_a_host_that_can_not_be_reached_is_yellow_and_the_container_stands(operator: Operator) -> None:
    change_host(operator, BY_SSH, port=1, tuning="drifting")
    write_tuning(operator.inventory, "drifting", [{"knob": "sysctl", "name": "vm.swappiness", "value": int(SWAPPINESS.read_text()) + 1}])
    found = parts(operator.ask("doctor", "--host", BY_SSH, timeout=120).expect(3).document)

    assert list(found) == ["host", "container", "service"]
    assert found["host"]["reach"]["outcome"] == "warn"
    tuning = found["host"]["tuning"]
    swappiness = int(SWAPPINESS.read_text())
    assert (tuning["outcome"], tuning["next_step"]) == ("warn", f"on the host, as root: sysctl -w vm.swappiness={swappiness + 1}")
    assert f"vm.swappiness is {swappiness}" in tuning["detail"]


def test_a_container_that_is_not_there_is_exit_4_with_what_its_host_says(operator: Operator) -> None:
    change_host(operator, BY_LXC_ATTACH, container={"reached_by": "lxc-attach", "name": "gone"})
    found = parts(operator.ask("doctor", "--host", BY_LXC_ATTACH, timeout=120).expect(4).document)

    assert found["container"]["reach"]["outcome"] == "refuse"
    assert "reach" not in found["host"]
    assert found["host"]


def test_a_host_without_a_service_is_diagnosed_with_its_container(operator: Operator) -> None:
    for path in (operator.inventory / "services").iterdir():
        path.unlink()
    answer = operator.ask("doctor", "--host", BY_SSH, timeout=120).expect(0)

    assert list(parts(answer.document)) == ["host", "container", "together"]


def test_it_fits_in_eighty_columns_and_leaves_nothing_behind(operator: Operator, container: Any) -> None:
    shown = operator.show("doctor", "--host", BY_LXC_ATTACH, timeout=120)

    assert shown.returncode == 3, shown.stderr
    assert "host and container together" in shown.stdout
    long = [line for line in shown.stdout.splitlines() if len(line) > 80 and not line.lstrip().startswith(("-> ", "next: "))]
    assert [line for line in long if len(max(line.split(), key=len)) < 60] == []
    assert not container.path("/var/lib/orchestrator").exists()
