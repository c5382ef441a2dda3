"""A "bare host" on this machine that really boots: systemd is PID 1, and neither it nor the agent finds a container's mark.

It is an LXC container (``container.py``) whose init has no ``container`` in its environment, and the knobs of :mod:`tests.rig.knob_tree`
lie over the kernel's paths, with a /proc/cmdline of its own. Its units, sysctl.d, journal, sshd and boots are real; liblxc gives
each start a new boot_id.

How it differs from a real host:

- the knobs are files of ours that answer much as the kernel's do (:mod:`tests.rig.kernel_like_files`); what is not replaced is
  the machine's own, read-only;
- no modules, no udev, no clock to set, no auditing: the capabilities for these are dropped, and nothing of it is tried at boot;
- systemd still sees that it runs in a cgroup namespace (``systemd-detect-virt`` says ``container-other``);
- a "reboot" stops and starts the container; in between the files get the values of a fresh boot. The monotonic clock goes on;
- what starts guests is a stand-in, which records the values that it finds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.rig import fuse, kernel_like_files
from tests.rig.commands import wait_for
from tests.rig.container import CONFIG, Container
from tests.rig.knob_tree import CPUS, NUMA_BALANCING, KnobTree
from tests.rig.network import Bridge, hardware_address
from tests.rig.pci_tree import DEVICE_CONTROL
from tests.rig.skeleton import write_skeleton
from tests.rig.ssh import SshServer, make_key, public_key
from tests.rig.workspace import Workspace

BOOT_ID = "/proc/sys/kernel/random/boot_id"
COMMAND_LINE = "/proc/cmdline"

GUESTS_STANDIN = "pve-guests.service"
"""Proxmox's name, since that is what is ordered against; the unit is a stand-in."""
_RECORDER, _RECORD = "/opt/guests-standin.py", "/var/lib/guests-standin.json"

_INIT = """
lxc.init.cmd = /usr/bin/env --unset=container /lib/systemd/systemd
lxc.cap.drop = sys_time sys_module sys_rawio mac_admin mac_override audit_control audit_read
"""
"""What a systemd that takes itself for a host's would do to the machine below is dropped."""

_GUESTS = f"""\
[Unit]
Description=STAND-IN for Proxmox's pve-guests.service: records the knobs that guests would start with

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I {_RECORDER}

[Install]
WantedBy=multi-user.target
"""

_RECORDING = f"""\
import glob, json, time
at = time.monotonic()
patterns = "{CPUS}/cpufreq/*/scaling_governor", "{NUMA_BALANCING}", "/proc/sys/vm/swappiness", "{BOOT_ID}"
values = {{path: open(path).read().strip() for pattern in patterns for path in glob.glob(pattern)}}
for path in glob.glob("/sys/bus/pci/devices/*.0/config"):
    with open(path, "rb") as stream:
        word = stream.read()[{DEVICE_CONTROL}:{DEVICE_CONTROL} + 2]
    values[path] = "%04x" % int.from_bytes(word, "little")
with open("{_RECORD}", "w") as stream:
    json.dump({{"at": at, "values": values}}, stream)
"""

_NOT_AT_BOOT = ("systemd-repart.service", "systemd-firstboot.service", "systemd-random-seed.service", "systemd-modules-load.service",
                "systemd-udevd.service", "kmod-static-nodes.service", "systemd-binfmt.service", "sys-kernel-debug.mount",
                "sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "dev-hugepages.mount",
                "proc-sys-fs-binfmt_misc.automount")  # fmt: skip
"""What would touch the machine below, or can't work here."""


@dataclass(frozen=True)
class GuestsStart:
    """How the host was when its guests would have been started. `at` is in seconds of CLOCK_MONOTONIC, as systemd's timestamps."""

    at: float
    values: Mapping[str, str]


_KNOBS = """\
set -e
exec 3<>/dev/fuse
mount --make-rprivate /
mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other knobs "$1"
exec "$2" -I -S "$3" 3 "$4"
"""


@dataclass
class BootedHost:
    """The host. `tree` holds its knobs, as seen from outside; it is written anew at each boot."""

    container: Container
    tree: KnobTree
    _workspace: Workspace
    _server: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, workspace: Workspace, bridge: Bridge) -> BootedHost:
        """Boot one more machine on `bridge` and wait until systemd and sshd answer. A machine without FUSE skips the test."""
        fuse.require()
        number = bridge.next_number()
        name = f"{bridge.name}-host-{number}"
        folder = workspace.folder(name)
        address = bridge.address(number)
        key = make_key(folder / "id")
        host_key = write_skeleton(folder / "rootfs", name, address, public_key(key))
        container = Container(name, folder, address, SshServer(address, 22, "root", key, host_key))
        (folder / "mounted").mkdir()
        host = cls(container, _fresh_tree(folder / "knobs"), workspace)
        host._write_settings()
        config = CONFIG.format(name=name, root=folder / "rootfs", bridge=bridge.name, address=address, hardware=hardware_address(address))
        (folder / "config").write_text(config + _INIT + "".join(host._mount_entries()), encoding="utf-8")
        workspace.will_start_container(name)
        host._boot()
        return host

    @property
    def ssh(self) -> SshServer:
        return self.container.ssh

    def reboot(self, prepare: Callable[[KnobTree], None] = lambda tree: None) -> None:
        """Boot it anew, from the kernel's own values. `prepare` makes them, or the stand-in programs, what this boot is to find."""
        self.stop()
        self.container.path(_RECORD).unlink(missing_ok=True)
        prepare(_fresh_tree(self.tree.folder))
        self._boot()

    def stop(self) -> None:
        """Pull the plug. The knobs first: who hangs in one of them can't be killed before."""
        if self._server is not None:
            self._server.kill()
            self._server.wait(timeout=10)
            self._server = None
            self.container.stop()

    def guests_start(self, seconds: float = 30.0) -> GuestsStart:
        """Wait for the stand-in of what starts guests and return what it recorded at this boot.

        Raises:
            TimeoutError: it was not started within `seconds`.
        """
        wait_for("the start of the guests", lambda: self.show(GUESTS_STANDIN, "ActiveState")["ActiveState"] == "active", seconds, 0.1)
        data = json.loads(self.container.path(_RECORD).read_text(encoding="utf-8"))
        return GuestsStart(data["at"], data["values"])

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit."""
        lines = self.container.run("systemctl", "show", "--property", ",".join(properties), unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def exists(self, path: str) -> bool:
        """Whether there is such a file, or a link of that name, in its own file system."""
        real = self.container.path(path)
        return real.is_symlink() or real.exists()

    def text(self, path: str) -> str:
        """A file of its own file system."""
        return self.container.path(path).read_text(encoding="utf-8")

    def machine_pid(self, inside: int) -> int:
        """The number that one of its processes has on the machine below.

        Raises:
            LookupError: there is no such process.
        """
        namespace = Path(f"/proc/{self.container.init()}/ns/pid").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                status = (process / "status").read_text(encoding="utf-8", errors="replace")
                numbers = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
                if int(numbers[-1]) == inside and (process / "ns/pid").readlink() == namespace:
                    return int(numbers[0])
            except OSError:
                continue
        raise LookupError(f"no process {inside} in {self.container.name}")

    def _boot(self) -> None:
        mounted = self.container.folder / "mounted"
        server = [sys.executable, kernel_like_files.__file__, str(self.tree.folder)]
        argv = ["unshare", "--mount", "sh", "-c", _KNOBS, "sh", str(mounted), *server]
        self._server = process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        self._workspace.started(process.pid)
        wait_for(
            "the host's knobs", lambda: f" {mounted} " in Path(f"/proc/{process.pid}/mountinfo").read_text(encoding="utf-8"), 10.0, 0.01
        )
        self.container.boot(["nsenter", "--mount", f"--target={process.pid}"])

    def _mount_entries(self) -> list[str]:
        """`optional`: a network namespace of its own lacks some sysctls."""
        mounted = self.container.folder / "mounted"
        mounts = [*self.tree.mounts(), (COMMAND_LINE, COMMAND_LINE)]
        return [f"lxc.mount.entry = {mounted}{source} {target.lstrip('/')} none bind,optional 0 0\n" for source, target in mounts]

    def _write_settings(self) -> None:
        units = self.container.path("/etc/systemd/system")
        for unit in _NOT_AT_BOOT:
            (units / unit).symlink_to("/dev/null")
        self.container.write(f"/etc/systemd/system/{GUESTS_STANDIN}", _GUESTS)
        (units / "multi-user.target.wants" / GUESTS_STANDIN).symlink_to(f"/etc/systemd/system/{GUESTS_STANDIN}")
        self.container.write(_RECORDER, _RECORDING)
        self.container.write("/etc/systemd/journald.conf.d/rig.conf", "[Journal]\nAudit=no\nStorage=persistent\n")
        masks = self.container.path("/etc/sysctl.d")
        masks.mkdir()
        for path in Path("/usr/lib/sysctl.d").glob("*.conf"):
            (masks / path.name).symlink_to("/dev/null")


def behave(tree: KnobTree, behaviour: Mapping[str, str]) -> None:
    """How single knobs answer from now on: :mod:`tests.rig.kernel_like_files` has the words."""
    (tree.folder / kernel_like_files.BEHAVIOUR).write_text(json.dumps(dict(behaviour)), encoding="utf-8")


def _fresh_tree(folder: Path) -> KnobTree:
    shutil.rmtree(folder, ignore_errors=True)
    tree = KnobTree.write(folder)
    tree.put(COMMAND_LINE, "BOOT_IMAGE=/boot/vmlinuz root=/dev/sda1 ro quiet")
    return tree
