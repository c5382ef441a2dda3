"""An address as ``ssh`` takes it, and what the operator's ``~/.ssh/config`` says of it: read once, to write an inventory from it.

Connections never read that file (:mod:`connection`): what it says is written into hosts.yml, where everybody sees it.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paramiko

from orchestrator.errors import ConnectError, UsageError

_PATTERN = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@\s/]+)@)?(?P<address>\[[0-9A-Fa-f:.%]+\]|[^\s:@/\[\]]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.%]*:[^\s@/]*)"
    r"(?::(?P<port>[0-9]{1,5}))?/?"
)
_USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
"""What OpenSSH tries by itself (ssh_config(5), IdentityFile), and paramiko 5 can read."""
_MOST_JUMPS = 8


@dataclass(frozen=True)
class Login:
    """One login, as it would be written into hosts.yml.

    Attributes:
        alias: what was typed, without user and port: a Host of ssh's configuration, a name or an address.
        identity_files: as written; empty where only the SSH agent is asked.
        jump: the login that leads to it.
    """

    alias: str
    address: str
    user: str
    port: int = 22
    identity_files: tuple[str, ...] = ()
    jump: Login | None = None

    @property
    def is_alias(self) -> bool:
        """Whether ssh's configuration calls it something else than its address."""
        return self.alias != self.address


def read_address(text: str) -> tuple[str | None, str, int | None]:
    """User, address and port of ``user@address:port``, ``[2001:db8::1]:22`` or ``ssh://user@address:port``; None for what is not said.

    Raises:
        UsageError: it is none of these.
    """
    found = _PATTERN.fullmatch(text.strip())
    port = int(found["port"]) if found is not None and found["port"] else None
    if found is None or found["address"].startswith("-") or (port is not None and not 1 <= port <= 65535):
        raise UsageError(f"{text!r} is no address: user@address:port, or a Host of ~/.ssh/config", next_step="fab init root@192.0.2.11")
    return found["user"], found["address"].strip("[]"), port


def login_of(text: str, *, user: str | None = None, identity_files: Sequence[str] = (), config: Path | None = None) -> Login:
    """The login that ``ssh TEXT`` would make, as far as an inventory can say it.

    Args:
        user: who logs in, where neither the text nor the configuration says.
        identity_files: keys to offer, instead of those that the configuration names.
        config: ssh's configuration; the operator's own by default.

    Raises:
        UsageError: it is no address, or needs what can't be written into hosts.yml (ProxyCommand).
    """
    login = _login(text, _read(config or Path.home() / ".ssh" / "config"), _MOST_JUMPS)
    if identity_files:
        login = replace(login, identity_files=tuple(identity_files))
    return replace(login, user=user) if user is not None else login


def _read(path: Path) -> paramiko.SSHConfig:
    if not path.is_file():
        return paramiko.SSHConfig()
    try:
        return paramiko.SSHConfig.from_path(str(path))
    except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
        raise UsageError(f"{path} can't be read: {error}", next_step=f"ssh -G -F {path} localhost") from None


def _login(text: str, config: paramiko.SSHConfig, jumps_left: int) -> Login:
    user, alias, port = read_address(text)
    said = _looked_up(config, alias)
    jump = said.get("proxyjump")
    hops = [] if jump is None or jump.lower() == "none" else [hop.strip() for hop in jump.split(",")]
    if len(hops) > jumps_left:
        raise UsageError(f"the ProxyJump of {alias} in ssh's configuration leads nowhere", next_step=f"ssh -G {alias} | grep -i proxyjump")
    if not hops and said.get("proxycommand", "none").lower() != "none":
        what = f"{alias} is reached by a ProxyCommand in ssh's configuration, which an inventory can't say"
        raise UsageError(what, next_step="write ProxyJump instead, or give the address itself")
    through: Login | None = None
    for hop in hops:
        first = _login(hop, config, jumps_left - len(hops))
        through = first if through is None else replace(first, jump=through)
    return Login(
        alias=alias,
        address=said.get("hostname", alias),
        user=user or said.get("user") or getpass.getuser(),
        port=port or _port(said.get("port"), alias),
        identity_files=tuple(_identities(said)),
        jump=through,
    )


def _looked_up(config: paramiko.SSHConfig, alias: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = config.lookup(alias)
    except (paramiko.SSHException, ValueError, KeyError) as error:
        raise UsageError(f"ssh's configuration for {alias} can't be understood: {error}", next_step=f"ssh -G {alias}") from None
    return found


def _port(text: str | None, alias: str) -> int:
    if text is None:
        return 22
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise UsageError(f"the Port of {alias} in ssh's configuration is no port: {text!r}")
    return int(text)


def _identities(said: Mapping[str, Any]) -> list[str]:
    """Those that exist here; ssh goes by silently where one does not."""
    return [_short(Path(item).expanduser()) for item in said.get("identityfile", []) if Path(item).expanduser().exists()]


def usual_keys(home: Path | None = None) -> list[str]:
    """The keys that OpenSSH would try by itself and that exist."""
    folder = (home or Path.home()) / ".ssh"
    return [_short(folder / name) for name in _USUAL_KEYS if (folder / name).is_file()]


def agent_holds_keys() -> bool:
    """Whether an SSH agent runs and has something to offer.

    Raises:
        ConnectError: something else answers at its socket.
    """
    try:
        agent = paramiko.Agent()
    except paramiko.SSHException as error:
        raise ConnectError(f"the SSH agent does not answer as one: {error}", next_step="ssh-add -l") from error
    try:
        return bool(agent.get_keys())
    finally:
        agent.close()


def with_keys(login: Login, usual: Sequence[str], *, agent: bool) -> Login:
    """The login, and those before it, with the usual keys where neither a key is named nor an agent holds one."""
    jump = None if login.jump is None else with_keys(login.jump, usual, agent=agent)
    keys = login.identity_files or (() if agent else tuple(usual))
    return replace(login, identity_files=keys, jump=jump)


def _short(path: Path) -> str:
    home = f"{Path.home()}/"
    return f"~/{str(path).removeprefix(home)}" if str(path).startswith(home) else str(path)
