"""The root file system of the rig's container: everything but /usr, a few files in all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.rig.ssh import make_key, public_key

COPIED = ("ld.so.conf", "ld.so.conf.d", "ld.so.cache", "alternatives", "ssl", "pam.d", "security", "login.defs", "profile", "bash.bashrc",
          "os-release", "debian_version", "dbus-1", "shells", "default", "nsswitch.conf", "environment")  # fmt: skip
"""What of the machine's own /etc a Debian needs to log in and to find its libraries. No accounts, no keys."""

OPERATOR = "operator"
"""An account that is not root and may use sudo without a password."""

ACCOUNTS = f"""\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
sshd:x:101:65534::/run/sshd:/usr/sbin/nologin
messagebus:x:102:102::/nonexistent:/usr/sbin/nologin
{OPERATOR}:x:1000:1000::/home/{OPERATOR}:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""

GROUPS = f"""\
root:x:0:
daemon:x:1:
tty:x:5:
disk:x:6:
kmem:x:15:
utmp:x:43:
shadow:x:42:
systemd-journal:x:101:
messagebus:x:102:
{OPERATOR}:x:1000:
nogroup:x:65534:
"""

SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM yes
AcceptEnv LANG LC_*
MaxStartups 100:30:200
Subsystem sftp /usr/lib/openssh/sftp-server
"""

HOSTS = """\
127.0.0.1 localhost
{address} {name}
"""


def write_skeleton(root: Path, name: str, address: str, authorized_key: str) -> str:
    """Write the file system under `root` and return the public host key of its sshd."""
    _make_folders(root)
    _copy_settings(root / "etc")
    _write_accounts(root, authorized_key)
    _enable_units(root / "etc/systemd/system")
    _write(root / "etc/hostname", f"{name}\n")
    _write(root / "etc/hosts", HOSTS.format(address=address, name=name))
    _write(root / "etc/machine-id", "")
    _write(root / "etc/ssh/sshd_config", SSHD_CONFIG)
    return public_key(make_key(root / "etc/ssh/ssh_host_ed25519_key"))


def _make_folders(root: Path) -> None:
    folders = ("usr", "etc/ssh", "etc/sudoers.d", "proc", "sys", "dev", "run", "tmp", "var/lib", "var/log", "var/tmp", "opt", "srv")
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")


def _copy_settings(etc: Path) -> None:
    for name in COPIED:
        source = Path("/etc") / name
        if source.is_dir():
            shutil.copytree(source, etc / name, symlinks=True)
        elif source.exists():
            shutil.copy2(source, etc / name)


def _write_accounts(root: Path, authorized_key: str) -> None:
    names = [line.partition(":")[0] for line in ACCOUNTS.splitlines()]
    _write(root / "etc/passwd", ACCOUNTS)
    _write(root / "etc/group", GROUPS)
    _write(root / "etc/shadow", "".join(f"{name}:*:19000:0:99999:7:::\n" for name in names), 0o640)
    _write(root / "etc/sudoers", f"root ALL=(ALL:ALL) ALL\n{OPERATOR} ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440)
    for home, owner in (("root", 0), (f"home/{OPERATOR}", 1000)):
        keys = root / home / ".ssh"
        keys.mkdir(parents=True, mode=0o700)
        _write(keys / "authorized_keys", authorized_key + "\n", 0o600)
        (root / home).chmod(0o700)
        for path in (root / home, keys, keys / "authorized_keys"):
            os.chown(path, owner, owner)


def _enable_units(folder: Path) -> None:
    wants = folder / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "ssh.service").symlink_to("/lib/systemd/system/ssh.service")
    (folder / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    for unit in ("systemd-networkd.service", "lxc.service", "lxc-net.service", "lxc-monitord.service", "apt-daily.timer"):
        (folder / unit).symlink_to("/dev/null")


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
