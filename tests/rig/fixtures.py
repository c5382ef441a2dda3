"""The rig as pytest fixtures: made once a session, on first use, and removed at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import fuse
from tests.rig.bare_host import BareHost
from tests.rig.booted_host import BootedHost
from tests.rig.container import Container
from tests.rig.inventory import rig_hosts, write_inventory
from tests.rig.network import Bridge
from tests.rig.sglang import SglangService, find_environment
from tests.rig.tiny_model import write_model
from tests.rig.workspace import Workspace


@pytest.fixture(scope="session")
def workspace() -> Iterator[Workspace]:
    """The folder and the record of all that the rig makes."""
    with Workspace() as made:
        yield made


@pytest.fixture(scope="session")
def bridge(workspace: Workspace) -> Bridge:
    """The bridge that all of the rig's containers hang on."""
    return Bridge.add(workspace)


@pytest.fixture(scope="session")
def container(workspace: Workspace, bridge: Bridge) -> Container:
    """A running container with systemd, sshd and Python; it also sees the SGLang environment where there is one."""
    found = find_environment()
    return Container.start(workspace, bridge, read_only=found.folders if found else ())


@pytest.fixture(scope="session")
def bare_host(workspace: Workspace) -> Iterator[BareHost]:
    """A host that is reached by ssh and from which the container is entered. Where there is no FUSE its knobs are plain files."""
    host = BareHost.start(workspace, kernel_like=fuse.missing() is None)
    yield host
    host.stop()


@pytest.fixture
def booted_host(workspace: Workspace, bridge: Bridge) -> Iterator[BootedHost]:
    """A host that boots: systemd, sshd, and knobs with the values of a fresh boot. Each test has a new one, up in about a second."""
    host = BootedHost.start(workspace, bridge)
    yield host
    host.stop()


@pytest.fixture
def lxc_inventory(bare_host: BareHost, container: Container, tmp_path: Path) -> Path:
    """An inventory of the container by each way in: see ``tests.rig.inventory`` for the names. Services are the test's own."""
    known_hosts = bare_host.ssh.known_hosts_line + container.ssh.known_hosts_line
    return write_inventory(tmp_path / "inventory", rig_hosts(bare_host, container), known_hosts)


@pytest.fixture(scope="session")
def sglang_service(container: Container) -> SglangService:
    """The real SGLang in the container, with a tiny model. Nothing is started yet."""
    environment = find_environment()
    assert environment is not None, "the tier is skipped without one"
    write_model(container.path("/srv/models/tiny-llama"))
    return SglangService(container, environment, "/srv/models/tiny-llama")
