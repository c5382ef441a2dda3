"""One SSH login: where, as whom, with which keys, through what. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Endpoint:
    """Where an SSH connection goes. The inventory is the whole truth: no ssh_config is read, ever.

    Attributes:
        host: the host's name in the inventory, as typed after ``fab trust``.
        use_agent: whether keys of the operator's SSH agent are offered. With `identity_files` only those keys are.
        jump: the login that the connection goes through, checked as strictly as this one.
        place: what is reached by it, for the screen, where that is not the host itself: ``gpu1/101``.
    """

    host: str
    address: str
    user: str
    port: int = 22
    identity_files: tuple[Path, ...] = ()
    use_agent: bool = False
    jump: Endpoint | None = None
    place: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """Whose login it is, for the screen: ``gpu1``, or ``gpu1/101`` for that of its container."""
        return self.place or self.host

    @property
    def declared(self) -> str:
        """Where hosts.yml declares it: ``gpu1``, or ``gpu1's container``."""
        return f"{self.host}'s container" if self.place and self.place != self.host else self.host

    @property
    def where(self) -> str:
        """The address and port for the screen."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def known_hosts_name(self) -> str:
        """The name in known_hosts: the address, ``[address]:port`` for another port than 22 (sshd(8))."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


@dataclass(frozen=True)
class Deadlines:
    """How long each step may take, in seconds. A peer that stops answering is given up after `interval` + `unanswered`."""

    connect: float = 10.0
    banner: float = 10.0
    handshake: float = 15.0
    authentication: float = 20.0
    channel: float = 15.0
    interval: float = 5.0
    unanswered: float = 15.0
