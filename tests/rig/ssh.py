"""Keys, known hosts and OpenSSH's own client for the rig."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.rig.commands import run_command, wait_for

PLAIN_SHELL = "SetEnv SHLVL=1"
"""A line for sshd_config that keeps bash from reading ~/.bashrc for a command, as the one below another shell does not read it.

Whatever this machine's user has there is none of a test's: it takes its time, may wait for a lock, and may leave one when it is killed.
sshd takes only the first line of SetEnv; one that sets more starts with this.
"""


def make_key(path: Path) -> Path:
    """Make an ed25519 key pair without a passphrase and return the private key's path."""
    run_command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)])
    return path


def public_key(private_key: Path) -> str:
    """The public half, as one line."""
    return private_key.with_suffix(".pub").read_text(encoding="utf-8").strip()


@dataclass(frozen=True)
class SshServer:
    """An SSH server and what it takes to get in."""

    address: str
    port: int
    user: str
    key: Path
    host_key: str

    @property
    def known_hosts_line(self) -> str:
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        kind, key = self.host_key.split()[:2]
        return f"{name} {kind} {key}\n"

    def client_argv(self, known_hosts: Path) -> list[str]:
        """OpenSSH's client, strict, with nothing of the user's own settings."""
        strict = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known_hosts}"]
        quiet = ["-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR"]
        return ["ssh", "-F", "none", *strict, *quiet, "-i", str(self.key), "-p", str(self.port), f"{self.user}@{self.address}"]

    def run(self, command: str, *, timeout: float = 30.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command through OpenSSH's client."""
        return run_command([*self.client_argv(self._known_hosts()), command], timeout=timeout, check=check)

    def wait(self, seconds: float = 20.0) -> None:
        """Wait until a login works."""
        wait_for(f"ssh to {self.address}:{self.port}", lambda: self.run("true", check=False).returncode == 0, seconds, 0.1)

    def _known_hosts(self) -> Path:
        path = self.key.with_name(f"known_hosts-{self.address}-{self.port}")
        path.write_text(self.known_hosts_line, encoding="utf-8")
        return path
