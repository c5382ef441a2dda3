"""Which service on which host is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Inventory, load_inventory
from orchestrator.errors import UsageError
from orchestrator.flows.target import choose_target
from tests.unit.flows.samples import write_inventory


@pytest.fixture
def two_hosts(tmp_path: Path) -> Inventory:
    return load_inventory(write_inventory(tmp_path / "inventory", second_host=True))


def test_the_only_host_and_service_need_not_be_named(tmp_path: Path) -> None:
    target = choose_target(load_inventory(write_inventory(tmp_path / "inventory")), None, None)
    assert (target.host.name, target.service.name, target.place) == ("gpu1", "glm5", "gpu1/101")


@pytest.mark.parametrize(
    ("host", "service", "expected"),
    [("gpu2", None, ("gpu2", "tiny", "gpu2")), (None, "tiny", ("gpu2", "tiny", "gpu2")), ("gpu1", "glm5", ("gpu1", "glm5", "gpu1/101"))],
)
def test_one_name_is_enough(two_hosts: Inventory, host: str | None, service: str | None, expected: tuple[str, ...]) -> None:
    target = choose_target(two_hosts, host, service)
    assert (target.host.name, target.service.name, target.place) == expected


def test_without_a_name_the_candidates_are_listed(two_hosts: Inventory) -> None:
    with pytest.raises(UsageError) as error:
        choose_target(two_hosts, None, None)
    assert error.value.evidence == ["gpu1: glm5", "gpu2: tiny"]


@pytest.mark.parametrize(("host", "service"), [("gpu9", None), (None, "nix"), ("gpu1", "tiny"), ("root@gpu1", None)])
def test_wrong_names_are_wrong_usage(two_hosts: Inventory, host: str | None, service: str | None) -> None:
    with pytest.raises(UsageError):
        choose_target(two_hosts, host, service)
