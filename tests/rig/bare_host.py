"""A "bare host" on this machine: a real sshd in a mount namespace of its own, from which the rig's containers are entered.

In that namespace knobs of our own (:mod:`tests.rig.knob_tree`) lie under the kernel's paths; sysctl, setpci and lspci work on them
unchanged. The rest of /proc/sys and /sys is read-only there, so nothing reaches the machine's own. /etc and /var/lib are the machine's
with a layer of the host's over them, which ends with it. /usr/local/sbin holds stand-ins that say so: ``pct`` and ``nvidia-smi``
(``standins/``). Everything else, lxc-attach included, is real. Needs root.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.rig import fuse, kernel_like_files
from tests.rig.commands import run_command, wait_for
from tests.rig.knob_tree import KnobTree
from tests.rig.network import free_port
from tests.rig.ssh import PLAIN_SHELL, SshServer, make_key, public_key
from tests.rig.workspace import Workspace

SUDOER, PLAIN_USER = "rig-operator", "rig-guest"
"""Accounts of the host beside root: the first may use sudo without a password."""

ACCOUNTS = f"""\
{SUDOER}:x:64101:65534::/:/bin/sh
{PLAIN_USER}:x:64102:65534::/:/bin/sh
"""

PASSWORDS = "".join(f"{user}:*:19000:0:99999:7:::\n" for user in (SUDOER, PLAIN_USER))

SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {key}.pub
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
set -e
folder=$1 tree=$2 server=$3
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$folder/layer"
for name in etc var-lib usr-local-bin; do
    mkdir -p "$folder/layer/$name" "$folder/layer/$name-work"
done
ln -s /usr/local/sbin/nvidia-smi "$folder/layer/usr-local-bin"
mkdir "$folder/layer/etc/sudoers.d"
cat /etc/passwd "$folder/accounts" >"$folder/layer/etc/passwd"
(umask 077 && cat /etc/shadow "$folder/passwords" >"$folder/layer/etc/shadow")
(umask 337 && cat "$folder/sudoers" >"$folder/layer/etc/sudoers.d/rig")
if [ -n "$server" ]; then
    exec 3<>/dev/fuse
    mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other knobs "$folder/mounted"
    setpriv --pdeathsig KILL "$4" -I -S "$server" 3 "$tree" &
    exec 3>&-
fi
mount --all --fstab "$folder/fstab"
mkdir -p /run/sshd  # where sshd drops its privileges; Debian's unit makes it
exec /usr/sbin/sshd -D -e -f "$folder/sshd_config"
"""


@dataclass(frozen=True)
class BareHost:
    """The host. `ssh` logs in as root. `knobs` are its knobs, as seen from outside."""

    ssh: SshServer
    sshd: subprocess.Popen[bytes]
    knobs: KnobTree

    @classmethod
    def start(cls, workspace: Workspace, name: str = "host", *, knobs: KnobTree | None = None, kernel_like: bool = True) -> BareHost:
        """Start it and wait until it answers; see :func:`start_hosts` for several."""
        host = cls.launch(workspace, name, knobs=knobs, kernel_like=kernel_like)
        host.wait()
        return host

    @classmethod
    def launch(
        cls,
        workspace: Workspace,
        name: str = "host",
        *,
        knobs: KnobTree | None = None,
        kernel_like: bool = True,
        key: Path | None = None,
        host_key: Path | None = None,
        login_shell: bool = False,
    ) -> BareHost:
        """Start it without waiting for it.

        `knobs` is a tree that the test has made as it likes. With `kernel_like` they refuse what the kernel refuses
        (:mod:`tests.rig.kernel_like_files`), and a machine without FUSE skips the test; without, they are plain files, which costs less.
        Keys are made when not given. With `login_shell` a command over ssh starts as it does for this machine's root, ~/.bashrc included.
        """
        if kernel_like:
            fuse.require()
        folder = workspace.folder(name)
        knobs = knobs or KnobTree.write(folder / "knobs")
        key, host_key = key or make_key(folder / "id"), host_key or make_key(folder / "host_key")
        port = free_port()
        settings = SSHD_CONFIG.format(port=port, folder=host_key.parent, key=key) + ("" if login_shell else f"{PLAIN_SHELL}\n")
        _write_settings(folder, knobs, kernel_like, settings)
        server = kernel_like_files.__file__ if kernel_like else ""
        with (folder / "sshd.log").open("wb") as log:
            argv = ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", str(folder), str(knobs.folder), server, sys.executable]
            sshd = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        workspace.started(sshd.pid)
        return cls(SshServer("127.0.0.1", port, "root", key, public_key(host_key)), sshd, knobs)

    def wait(self, seconds: float = 20.0) -> None:
        """Wait until its sshd answers.

        Raises:
            RuntimeError: it has ended instead; the message is what it said.
        """
        wait_for(f"the sshd on port {self.ssh.port}", lambda: self.sshd.poll() is not None or _greets(self.ssh.port), seconds, 0.01)
        if self.sshd.poll() is not None:
            raise RuntimeError(f"the host did not start\n{self.log()}")

    def log(self) -> str:
        """What its sshd has said."""
        return (self.knobs.folder.parent / "sshd.log").read_text(encoding="utf-8", errors="replace")

    def login(self, user: str) -> SshServer:
        """The way in as another of its accounts."""
        return dataclasses.replace(self.ssh, user=user)

    def path(self, path: str) -> Path:
        """A file as the host itself sees it, while it runs."""
        return Path(f"/proc/{self.sshd.pid}/root{path}")

    def enter(self, *argv: str, check: bool = True, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command on it without SSH."""
        return run_command(["nsenter", "--mount", f"--target={self.sshd.pid}", *argv], check=check, timeout=timeout)

    def behave(self, behaviour: Mapping[str, str]) -> None:
        """How single knobs answer from now on, when it is `kernel_like`: :mod:`tests.rig.kernel_like_files` has the words."""
        name = kernel_like_files.BEHAVIOUR
        (self.knobs.folder / f"{name}.new").write_text(json.dumps(dict(behaviour)), encoding="utf-8")
        (self.knobs.folder / f"{name}.new").rename(self.knobs.folder / name)
        (self.knobs.folder / kernel_like_files.WAITING).unlink(missing_ok=True)

    @property
    def has_somebody_waiting(self) -> bool:
        """Whether a write waits for its word to go, since the last :meth:`behave`."""
        return (self.knobs.folder / kernel_like_files.WAITING).exists()

    def stop(self) -> None:
        """End its sshd, and with it the namespace once the last session has gone."""
        self.sshd.terminate()
        self.sshd.wait(timeout=10)


def start_hosts(workspace: Workspace, names: list[str], *, kernel_like: bool = False, login_shell: bool = False) -> list[BareHost]:
    """Start several at once, which share their keys but nothing else, and wait for all of them."""
    keys = workspace.folder("keys-of-hosts")
    key, host_key = (path if path.exists() else make_key(path) for path in (keys / "id", keys / "host_key"))
    hosts = [
        BareHost.launch(workspace, name, kernel_like=kernel_like, key=key, host_key=host_key, login_shell=login_shell) for name in names
    ]
    for host in hosts:
        host.wait()
    return hosts


def _write_settings(folder: Path, knobs: KnobTree, kernel_like: bool, sshd_config: str) -> None:
    for name in ("layer", "mounted"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "sshd_config").write_text(sshd_config, encoding="utf-8")
    (folder / "accounts").write_text(ACCOUNTS, encoding="utf-8")
    (folder / "passwords").write_text(PASSWORDS, encoding="utf-8")
    (folder / "sudoers").write_text(f"{SUDOER} ALL=(ALL:ALL) NOPASSWD: ALL\n", encoding="utf-8")
    (folder / "fstab").write_text("".join(_mounts(folder, knobs, kernel_like)), encoding="utf-8")


def _mounts(folder: Path, knobs: KnobTree, kernel_like: bool) -> list[str]:
    layer, source = folder / "layer", folder / "mounted" if kernel_like else knobs.folder
    overlays = [
        f"overlay {path} overlay lowerdir={path},upperdir={layer}/{name},workdir={layer}/{name}-work 0 0\n"
        for path, name in (("/etc", "etc"), ("/var/lib", "var-lib"), ("/usr/local/bin", "usr-local-bin"))
    ]
    guards = ["/proc/sys /proc/sys none bind,ro 0 0\n", "none /sys none remount,bind,ro 0 0\n"]
    virtual = f"/sys/devices/virtual {source}/sys/devices/virtual none bind,ro 0 0\n"
    binds = [f"{source}{path} {target} none rbind 0 0\n" for path, target in knobs.mounts()]
    return [*overlays, *guards, virtual, *binds]


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
