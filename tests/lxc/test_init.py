"""`fab init` from zero on a real container: root on the host, a user with sudo on the host, and ssh into the container alone.

The server is the lab's stand-in; container, systemd, users, sudo and SSH are real. Containers of others may run on this machine, so the
one that is meant is always named and no other is entered.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.config import load_inventory
from tests.rig.bare_host import PLAIN_USER, SUDOER, BareHost
from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.operator import Answer, Operator
from tests.rig.somebodys_venv import somebodys_venv
from tests.rig.ssh import SshServer
from tests.rig.tiny_model import write_model

pytestmark = pytest.mark.lxc

PORT = 30066
VENV = "/opt/sglang-of-somebody"
MODEL = "/srv/models/Tiny-Found"
BY_HAND = f"""
setsid env -i PATH={VENV}/bin:/usr/bin:/bin HOME=/root SGLANG_STANDIN_TIME_SCALE=0.05 nohup {VENV}/bin/python -m sglang.launch_server \\
    --model-path {MODEL} --port {PORT} > /root/server.out 2>&1 < /dev/null &
"""
STATE = "/var/lib/orchestrator"


@dataclass
class Stage:
    """A container in which somebody serves, and an operator with nothing but a key."""

    container: Container
    operator: Operator

    def kept(self) -> str:
        """All that this program has left in the container: of other tests, and none of this one."""
        return self.container.run("find", STATE, check=False).stdout

    def init(self, login: SshServer, *flags: str) -> Answer:
        given = ("--identity", str(login.key), "--port", str(PORT), "--fingerprint", fingerprint(login), "--yes", *flags)
        return self.operator.ask("init", f"{login.user}@{login.address}:{login.port}", *given, timeout=180)

    def listens(self) -> bool:
        return bool(self.container.shell(f"ss -Hltn 'sport = :{PORT}'", check=False).stdout.strip())


def fingerprint(login: SshServer) -> str:
    """As ``ssh-keygen -l`` shows it on the machine's console."""
    key = base64.b64decode(login.host_key.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


@pytest.fixture
def idle(container: Container, tmp_path: Path) -> Iterator[Stage]:
    """SGLang is installed, and nothing serves."""
    write_model(container.path(MODEL))
    home = tmp_path / "home"
    home.mkdir()
    with somebodys_venv(container, VENV):
        yield Stage(container, Operator(tmp_path / "inventory", home))


@pytest.fixture
def stage(idle: Stage) -> Iterator[Stage]:
    """Somebody has started a server. Nothing that is done leaves anything in the container."""
    before = idle.kept()
    idle.container.shell(BY_HAND)
    wait_for("the server", idle.listens, 30.0, 0.3)
    yield idle
    idle.container.shell(f"kill $(ss -Hltnp 'sport = :{PORT}' | sed -n 's/.*pid=\\([0-9]*\\).*/\\1/p')")
    wait_for("the server's end", lambda: not idle.listens(), 30.0, 0.3)
    assert idle.kept() == before


def planned(answer: Answer, stage: Stage) -> None:
    """It ended with a plan of a relaunch of what runs, which goes on."""
    answer.expect(0)
    assert answer.document["written"] is True
    assert answer.document["checks"]["plan"] == 0, answer.errors
    arguments = answer.document["plan"]["launch"]["arguments"]
    assert (MODEL in arguments, str(PORT) in arguments) == (True, True)
    assert stage.listens(), "it was not touched"
    status = stage.operator.ask("status", timeout=60).expect(0)
    assert status.document["report"]["health"] == "serving"


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", SUDOER])
def test_through_the_host(stage: Stage, bare_host: BareHost, user: str) -> None:
    answer = stage.init(bare_host.login(user), "--container", stage.container.name, "--name", "box", "--service", "prod")
    planned(answer, stage)
    inventory = load_inventory(stage.operator.inventory)
    host, service = inventory.host("box"), inventory.service("prod")
    assert (host.user, host.become) == (user, "none" if user == "root" else "sudo")
    assert host.container is not None
    assert (host.container.reached_by, host.container.id) == ("lxc-attach", int(stage.container.name))
    assert (service.place, service.python, service.model, service.port) == ("container", f"{VENV}/bin/python", MODEL, PORT)
    assert service.environment == {"SGLANG_STANDIN_TIME_SCALE": "0.05"}


@pytest.fixture
def only_the_rigs(bare_host: BareHost, container: Container) -> Iterator[None]:
    """The host's lxc-ls tells of the rig's container alone, so that no container of others on this machine is entered."""
    script = bare_host.path("/usr/local/bin/lxc-ls")
    script.write_text(f'#!/bin/sh\n# A filter over the real one.\n/usr/bin/lxc-ls "$@" | grep -ow {container.name}\n')
    script.chmod(0o755)
    yield
    script.unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("only_the_rigs")
def test_the_container_that_serves_is_found_by_itself(stage: Stage, bare_host: BareHost) -> None:
    answer = stage.init(bare_host.login(SUDOER))
    planned(answer, stage)
    (host,) = load_inventory(stage.operator.inventory).hosts.values()
    assert host.container is not None
    assert host.container.id == int(stage.container.name)
    assert [place["place"] for place in answer.document["places"]] == ["none", stage.container.name]
    again = stage.init(bare_host.login(SUDOER)).expect(0)
    assert again.document["files"] == []


@pytest.mark.slow
def test_by_ssh_into_the_container_alone(stage: Stage) -> None:
    answer = stage.init(stage.container.ssh)
    planned(answer, stage)
    inventory = load_inventory(stage.operator.inventory)
    (host,) = inventory.hosts.values()
    assert host.container is None
    assert answer.document["places"][0]["report"]["container"] == "lxc"
    (service,) = inventory.services.values()
    assert (service.name, service.place) == ("tiny-found", "host")


def test_a_user_without_sudo_is_told_why_no_container_is_seen(stage: Stage, bare_host: BareHost) -> None:
    answer = stage.init(bare_host.login(PLAIN_USER), "--container", stage.container.name)
    answer.expect(2)
    assert "sudo -n is refused" in " ".join(answer.errors.split())
    assert not stage.operator.inventory.exists()


@pytest.mark.slow
def test_where_nothing_serves_the_python_is_found_and_a_launch_planned(idle: Stage, bare_host: BareHost) -> None:
    before = idle.kept()
    words = ("--container", idle.container.name, "--name", "box", "--service", "new", "--model", MODEL)
    answer = idle.init(bare_host.ssh, *words)
    answer.expect(0)
    assert answer.document["checks"]["plan"] == 0, answer.errors
    assert answer.document["plan"]["verb"] == "launch"
    assert load_inventory(idle.operator.inventory).service("new").python == f"{VENV}/bin/python"
    assert idle.kept() == before


@pytest.mark.slow
def test_by_the_name_in_sshs_configuration_and_through_a_jump_host(stage: Stage, bare_host: BareHost) -> None:
    inside, outside = stage.container.ssh, bare_host.ssh
    (stage.operator.home / ".ssh").mkdir()
    (stage.operator.home / ".ssh/config").write_text(
        f"Host mygpu\n HostName {inside.address}\n User root\n IdentityFile {inside.key}\n ProxyJump way\n"
        f"Host way\n HostName {outside.address}\n User root\n Port {outside.port}\n IdentityFile {outside.key}\n"
    )
    compared = [word for login in (inside, outside) for word in ("--fingerprint", fingerprint(login))]
    answer = stage.operator.ask("init", "mygpu", *compared, "--port", str(PORT), "--yes", timeout=180)
    answer.expect(0)
    assert answer.document["checks"]["plan"] == 0, answer.errors
    inventory = load_inventory(stage.operator.inventory)
    assert list(inventory.hosts) == ["way", "mygpu"]
    assert (inventory.host("mygpu").jump, inventory.host("mygpu").address) == ("way", inside.address)
    status = stage.operator.ask("status", "--host", "mygpu", timeout=60).expect(0)
    assert status.document["report"]["health"] == "serving"
