"""A real LXC container with systemd, sshd, sudo and Python, up in about a second; privileged or not.

Its /usr is this machine's, read-only; the rest is a skeleton of a few files. /proc/sys and /sys are read-only in it, as on a real
box (``lxc.mount.auto = proc:mixed sys:mixed``). In an unprivileged one sudo does not work, as /usr belongs to the machine's root.
Needs root and the packages that ``install_packages.sh`` names.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.rig.commands import CommandError, run_command, wait_for
from tests.rig.network import Bridge, hardware_address
from tests.rig.skeleton import write_skeleton
from tests.rig.ssh import SshServer, make_key, public_key
from tests.rig.workspace import Workspace

CONFIG = """\
lxc.uts.name = {name}
lxc.rootfs.path = dir:{root}
lxc.net.0.type = veth
lxc.net.0.link = {bridge}
lxc.net.0.flags = up
lxc.net.0.hwaddr = {hardware}
lxc.net.0.ipv4.address = {address}/24
lxc.apparmor.profile = unconfined
lxc.mount.auto = cgroup:mixed proc:mixed sys:mixed
lxc.mount.entry = /usr usr none ro,bind 0 0
lxc.tty.max = 1
lxc.pty.max = 1024
lxc.autodev = 1
lxc.init.cmd = /lib/systemd/systemd
"""


FIRST_ID, IDS = 100_000, 65_536
"""What an unprivileged container's uid 0 is on the machine, and how many ids it has."""

UNPRIVILEGED = f"""\
lxc.idmap = u 0 {FIRST_ID} {IDS}
lxc.idmap = g 0 {FIRST_ID} {IDS}
"""

START_WITH_IDS = """\
set -e
mount --make-rprivate /
mount --bind "$1" /etc/subuid
mount --bind "$1" /etc/subgid
shift
exec lxc-start "$@"
"""
"""newuidmap maps only what /etc/subuid and /etc/subgid give to root; the machine's own stay as they are."""


class Flavour(Enum):
    """How managers of containers set them up; the value is what the configuration says beside :data:`CONFIG`."""

    PRIVILEGED = ""
    """As plain LXC and Proxmox do."""
    UNPRIVILEGED_LIKE_PROXMOX = UNPRIVILEGED
    """/proc/sys and /sys are read-only, as in a privileged one."""
    UNPRIVILEGED_LIKE_INCUS = UNPRIVILEGED + "lxc.mount.auto =\nlxc.mount.auto = cgroup:mixed proc:rw sys:rw\n"
    """/proc/sys and /sys are writable as far as their owners say."""


@dataclass(frozen=True)
class Container:
    """One container. `name` is what ``lxc-attach --name`` takes: a number, as on Proxmox, where it is the guest's id."""

    name: str
    folder: Path
    address: str
    ssh: SshServer
    flavour: Flavour = Flavour.PRIVILEGED

    @classmethod
    def start(
        cls, workspace: Workspace, bridge: Bridge, *, read_only: Sequence[Path] = (), flavour: Flavour = Flavour.PRIVILEGED
    ) -> Container:
        """Start one more container on `bridge` and wait until systemd and sshd answer.

        `read_only` are folders of this machine that it sees under the same paths.
        """
        name = str(random.randint(100_000, 999_999_999))
        number = bridge.next_number()
        host_name = f"{bridge.name}-{number}"
        folder = workspace.folder(host_name)
        address = bridge.address(number)
        key = make_key(folder / "id")
        host_key = write_skeleton(folder / "rootfs", host_name, address, public_key(key))
        hardware = hardware_address(address)
        config = CONFIG.format(name=host_name, root=folder / "rootfs", bridge=bridge.name, address=address, hardware=hardware)
        binds = [f"lxc.mount.entry = {path} {str(path).lstrip('/')} none ro,bind,create=dir 0 0\n" for path in read_only]
        (folder / "config").write_text(config + flavour.value + "".join(binds), encoding="utf-8")
        if flavour is not Flavour.PRIVILEGED:
            (folder / "ids").write_text(f"root:{FIRST_ID}:{IDS}\n", encoding="utf-8")
            _give_away(folder / "rootfs")
        container = cls(name, folder, address, SshServer(address, 22, "root", key, host_key), flavour)
        workspace.will_start_container(name)
        container.boot()
        return container

    def boot(self, enter: Sequence[str] = ()) -> None:
        """Start it (again, after :meth:`stop`). `enter` is what runs a command in another mount namespace, if it is to start from one."""
        log, options = self.folder / "lxc.log", ["--rcfile", str(self.folder / "config")]
        try:
            run_command([*enter, *self._starter(), "--name", self.name, *options, "--logfile", str(log), "-l", "INFO", "-d"])
            wait_for(f"systemd in {self.name}", lambda: self.run("systemctl", "is-active", "ssh", check=False).returncode == 0, 30.0, 0.1)
        except (CommandError, TimeoutError) as error:
            raise RuntimeError(f"{error}\n{log.read_text(encoding='utf-8', errors='replace')[-4000:]}") from error
        self.ssh.wait()

    def _starter(self) -> list[str]:
        if self.flavour is Flavour.PRIVILEGED:
            return ["lxc-start"]
        return ["unshare", "--mount", "sh", "-c", START_WITH_IDS, "sh", str(self.folder / "ids")]

    def stop(self) -> None:
        """Kill everything in it."""
        run_command(["lxc-stop", "--kill", "--name", self.name])

    def init(self) -> int:
        """The number that its PID 1 has on the machine."""
        return int(run_command(["lxc-info", "--name", self.name, "--pid", "--no-humanize"]).stdout)

    def attach_argv(self, *argv: str) -> list[str]:
        """The command that runs `argv` in it from the machine."""
        return ["lxc-attach", "--clear-env", "--name", self.name, "--", *argv]

    def run(self, *argv: str, timeout: float = 30.0, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in it as root, through lxc-attach."""
        return run_command(self.attach_argv(*argv), timeout=timeout, check=check, stdin=stdin)

    def shell(self, script: str, *, timeout: float = 30.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell script in it as root, through lxc-attach; the script travels over stdin."""
        return self.run("sh", "-s", timeout=timeout, check=check, stdin=script)

    def path(self, inside: str) -> Path:
        """Where a file of its own file system lies on the machine. Not for what is mounted there: /usr, /run, /tmp, /proc."""
        return self.folder / "rootfs" / inside.lstrip("/")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        """Write a file in it."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)


def _give_away(root: Path) -> None:
    """Shift all owners below `root` into the container's range of ids, and mask what may not be mounted with them."""
    (root / "etc/systemd/system/sys-kernel-debug.mount").symlink_to("/dev/null")
    for folder, names, files in os.walk(root):
        for path in (Path(folder, name) for name in (*names, *files)):
            found = path.lstat()
            os.chown(path, FIRST_ID + found.st_uid, FIRST_ID + found.st_gid, follow_symlinks=False)
    os.chown(root, FIRST_ID, FIRST_ID)
