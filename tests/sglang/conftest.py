"""A box with two real servers: the service that the tests change, and a neighbour that nothing may touch.

A start takes 20 to 45 seconds, so tests share servers: each asks for the one it needs and gets the one that is there when that will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.bare_host import BareHost
from tests.rig.container import Container
from tests.rig.inventory import BY_SSH, rig_hosts, write_backend, write_inventory
from tests.rig.operator import Operator
from tests.rig.sglang import ContainerProcess, ServerByHand, SglangService
from tests.sglang.stage import NEIGHBOUR_PORT, Stage, describe_service, write_tiny_service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Loading dominates, and a rollback loads twice: give each test the time of several loads on a busy machine."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.sglang)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def operator(
    bare_host: BareHost, container: Container, sglang_service: SglangService, tmp_path_factory: pytest.TempPathFactory
) -> Operator:
    """Somebody whose inventory has the service `tiny` and backends that change one argument of it."""
    known_hosts = bare_host.ssh.known_hosts_line + container.ssh.known_hosts_line
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), rig_hosts(bare_host, container), known_hosts)
    write_tiny_service(inventory, describe_service(sglang_service, BY_SSH))
    for policy in ("lpm", "lof", "fcfs", "dfs-weight"):
        write_backend(inventory, policy, {"--schedule-policy": policy})
    write_backend(inventory, "unknown_flag", {"--no-such-flag": "1"})
    return Operator(inventory, tmp_path_factory.mktemp("home"), ("--host", BY_SSH))


@pytest.fixture(scope="session")
def neighbour_started(sglang_service: SglangService) -> Iterator[ServerByHand]:
    """Started early and not waited for, so that it loads beside the first server."""
    server = sglang_service.start_by_hand(NEIGHBOUR_PORT)
    yield server
    server.kill()


@pytest.fixture(scope="session")
def stage(operator: Operator, sglang_service: SglangService, neighbour_started: ServerByHand) -> Iterator[Stage]:
    """The box, whose neighbour loads by now."""
    made = Stage(sglang_service, operator)
    yield made
    made.clear()


@pytest.fixture
def neighbour(stage: Stage, neighbour_started: ServerByHand) -> Iterator[ServerByHand]:
    """The other server, serving; after the test it must be the same processes as before, and answer."""
    assert stage.processes_of(neighbour_started.pid), "an earlier test has ended the neighbour"
    neighbour_started.wait_serving()
    before = stage.processes_of(neighbour_started.pid)
    yield neighbour_started
    assert stage.processes_of(neighbour_started.pid) == before
    assert neighbour_started.generate() > 0


@pytest.fixture
def by_hand(stage: Stage) -> ContainerProcess:
    """The service, serving, started by a person with nohup; its main process."""
    return stage.serving_by_hand()


@pytest.fixture
def serving(stage: Stage) -> ContainerProcess:
    """The service, serving, whoever started it; its main process."""
    return stage.serving()
