"""An address as ssh takes it, and what ssh's configuration adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.remote.ssh_config import Login, login_of, read_address, usual_keys, with_keys


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("gpu1", (None, "gpu1", None)),
        ("root@gpu1.example", ("root", "gpu1.example", None)),
        ("root@192.0.2.1:2222", ("root", "192.0.2.1", 2222)),
        ("2001:db8::1", (None, "2001:db8::1", None)),
        ("root@[2001:db8::1]:22", ("root", "2001:db8::1", 22)),
        ("ssh://root@gpu1:2222/", ("root", "gpu1", 2222)),
    ],
)
def test_addresses(text: str, read: tuple[str | None, str, int | None]) -> None:
    assert read_address(text) == read


@pytest.mark.parametrize("text", ["", "-oProxyCommand=true", "a b", "gpu1:0", "gpu1:99999", "@gpu1", "gpu1/101", "root@"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        read_address(text)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_gpu").touch()
    path = tmp_path / ".ssh" / "config"
    path.write_text(
        "Host gpu\n HostName 192.0.2.7\n User operator\n Port 2222\n IdentityFile ~/.ssh/id_gpu\n IdentityFile ~/.ssh/id_gone\n"
        " ProxyJump outer,me@inner:23\n"
        "Host outer\n HostName outer.example\n User jumper\n"
        "Host piped\n ProxyCommand nc %h %p\n"
        "Host ring\n ProxyJump ring\n"
        "Host odd\n Port none\n"
    )
    return path


def test_the_configuration_says_address_user_port_keys_and_the_way(config: Path) -> None:
    outer = Login("outer", "outer.example", "jumper")
    inner = Login("inner", "inner", "me", 23, jump=outer)
    assert login_of("gpu") == Login("gpu", "192.0.2.7", "operator", 2222, ("~/.ssh/id_gpu",), inner)


def test_what_is_typed_counts_before_the_configuration(config: Path) -> None:
    login = login_of("root@gpu:22", identity_files=["/keys/mine"])
    assert (login.user, login.port, login.address, login.identity_files) == ("root", 22, "192.0.2.7", ("/keys/mine",))


def test_without_a_configuration_the_user_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")
    assert login_of("gpu1", config=tmp_path / "none") == Login("gpu1", "gpu1", "somebody")


@pytest.mark.parametrize(("alias", "problem"), [("piped", "ProxyCommand"), ("ring", "leads nowhere"), ("odd", "is no port")])
def test_what_an_inventory_can_not_say_is_refused(config: Path, alias: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        login_of(alias)


def test_usual_keys_are_named_where_no_agent_holds_one(config: Path) -> None:
    (config.parent / "id_ed25519").touch()
    usual = usual_keys()
    assert usual == ["~/.ssh/id_ed25519"]
    login = login_of("gpu")
    assert login.jump is not None
    by_file = with_keys(login, usual, agent=False)
    assert by_file.identity_files == ("~/.ssh/id_gpu",), "as configured"
    assert by_file.jump is not None
    assert by_file.jump.identity_files == ("~/.ssh/id_ed25519",)
    assert with_keys(login, usual, agent=True).jump == login.jump
