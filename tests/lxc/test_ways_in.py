"""The program on a real container, by each way in: ssh, lxc-attach from the host, and a stand-in `pct` on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.container import Container
from tests.rig.inventory import BY_LXC_ATTACH, BY_PCT_STANDIN, BY_SSH, write_service
from tests.rig.operator import Operator

pytestmark = pytest.mark.lxc

SERVICE = {"python": "/usr/bin/python3", "model": "/srv/models/none", "port": 31001}


@pytest.fixture
def operator(lxc_inventory: Path, tmp_path: Path) -> Operator:
    """An operator with one service on each of the rig's hosts; all three are the same container."""
    for host in (BY_SSH, BY_LXC_ATTACH, BY_PCT_STANDIN):
        write_service(lxc_inventory, f"service-{host}", {"host": host, **SERVICE})
    home = tmp_path / "home"
    home.mkdir()
    return Operator(lxc_inventory, home)


@pytest.mark.parametrize("host", [BY_SSH, BY_LXC_ATTACH, BY_PCT_STANDIN])
def test_status_of_a_container_where_nothing_serves(operator: Operator, host: str, container: Container) -> None:
    answer = operator.ask("status", "--host", host, timeout=60)

    answer.expect(0)
    report = answer.document["report"]
    assert report["health"] == "down"
    assert report["server"] is None
    assert not container.path(f"/var/lib/orchestrator/service-{host}").exists()


def test_unknown_host_key_is_refused_with_the_command_that_trusts_it(operator: Operator) -> None:
    (operator.inventory / "known_hosts").write_text("", encoding="utf-8")

    answer = operator.ask("status", "--host", BY_SSH, timeout=60)

    answer.expect(4)
    assert "trust" in answer.document["error"]["next_step"]


def test_container_that_is_not_there_is_exit_4(operator: Operator) -> None:
    hosts = operator.inventory / "hosts.yml"
    text = hosts.read_text(encoding="utf-8")
    hosts.write_text(text.replace("name: '", "name: 'gone"), encoding="utf-8")

    answer = operator.ask("status", "--host", BY_LXC_ATTACH, timeout=60)

    answer.expect(4)
