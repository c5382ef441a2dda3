"""A "bare host" on this machine: a real sshd in a mount namespace of its own, from which the rig's containers are entered.

In that namespace /usr/local/sbin holds a stand-in ``pct`` (``standins/pct``), because the real one exists on Proxmox only. Everything
else, lxc-attach included, is real. Needs root.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.rig.network import free_port
from tests.rig.ssh import SshServer, make_key, public_key
from tests.rig.workspace import Workspace

STANDINS = Path(__file__).parent / "standins"

SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/id.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile none
AllowTcpForwarding yes
MaxStartups 100:30:200
Subsystem sftp internal-sftp
"""

NAMESPACE = """\
mount --make-rprivate /
mount --bind "$1" /usr/local/sbin
exec /usr/sbin/sshd -D -e -f "$2/sshd_config"
"""


@dataclass(frozen=True)
class BareHost:
    """The host. `ssh` logs in as root."""

    ssh: SshServer
    sshd: subprocess.Popen[bytes]

    @classmethod
    def start(cls, workspace: Workspace) -> BareHost:
        """Start it and wait until a login works."""
        folder = workspace.folder("host")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        key, host_key, port = make_key(folder / "id"), make_key(folder / "host_key"), free_port()
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(port=port, folder=folder), encoding="utf-8")
        with (folder / "sshd.log").open("wb") as log:
            argv = ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", str(STANDINS), str(folder)]
            sshd = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        workspace.started(sshd.pid)
        host = cls(SshServer("127.0.0.1", port, "root", key, public_key(host_key)), sshd)
        host.ssh.wait()
        return host

    def stop(self) -> None:
        """End its sshd, and with it the namespace once the last session has gone."""
        self.sshd.terminate()
        self.sshd.wait(timeout=10)
