"""A GPU box of real parts: a host that boots, a real container with systemd, and an operator. SGLang, nvidia-smi and libcuda are stand-ins.

In the container they are the lab's (`orchestrator/lab/standin`): a made-up ``nvidia-smi`` on the PATH, a Python with SGLang's stand-in
and a made-up libcuda, one ``gpus.json`` that both read. The host's ``nvidia-smi`` and knobs are :mod:`tests.rig.knob_tree`'s.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator
import orchestrator.lab
from tests.lxc.prepared import KNOBS, PROFILE
from tests.rig.booted_host import BootedHost
from tests.rig.container import Container
from tests.rig.inventory import BY_SSH, login, write_inventory, write_service, write_tuning
from tests.rig.network import Bridge
from tests.rig.operator import Operator
from tests.rig.tiny_model import write_model
from tests.rig.workspace import Workspace

SERVICE, PORT = "glm5", 30091
MODEL = "/srv/models/glm5"
STATE = "/var/lib/orchestrator"
GPU_COUNT = 8

_BOX = "/opt/box"
PYTHON = f"{_BOX}/sglang/bin/python"

_GPUS = {
    "count": GPU_COUNT,
    "name": "NVIDIA B200",
    "compute_capability": "10.0",
    "memory_mib": 183359,
    "uuid": "GPU-1ab00100-0000-0000-0000",
}
_SETTINGS = {
    "time_scale": 0.02,
    "tokens_per_second": 20000,
    "compute_capability": _GPUS["compute_capability"],
    "gpu_memory_mib": _GPUS["memory_mib"],
    "processes": f"{_BOX}/processes",
}
_POLICY = {
    "drain": 5.0,
    "clean": 20.0,
    "load_total": 120.0,
    "load_stall": 60.0,
    "measure": False,
    "generations": 1,
    "measure_repeats": 2,
    "measure_input_tokens": 16,
    "measure_output_tokens": 16,
}
_SERVICE: Mapping[str, Any] = {
    "host": BY_SSH,
    "python": PYTHON,
    "model": MODEL,
    "port": PORT,
    "backend": "auto",
    "arguments": {"--tp-size": 1, "--quantization": "modelopt_fp4", "--enable-metrics": True},
    "policy": _POLICY,
}
_KERNEL_MODULES = ("flashinfer/__init__.py", "flashinfer/fused_moe.py", "cutlass.py")
"""What the backend profiles ask for: names only, unmarked for a compute capability."""

_MOUNT = f"""\
[Unit]
Description=STAND-IN for the driver's tools: a made-up nvidia-smi on the PATH
[Mount]
What={_BOX}/sbin
Where=/usr/local/sbin
Type=none
Options=bind
[Install]
WantedBy=local-fs.target
"""
"""/usr is this machine's, read-only, and this lies over one empty folder of it in the container alone."""


@dataclass(frozen=True)
class StandinBox:
    """The box, and somebody who looks after it."""

    host: BootedHost
    container: Container
    operator: Operator

    def reboot(self) -> None:
        """Reboot the host, which loses its knobs, and start its container again."""
        self.container.stop()
        self.host.reboot()
        self.container.boot()

    def describe_gpus(self, **changes: int) -> None:
        """How the container's GPUs are from now on: ``count``, and ``cu_init``, which is cuInit's answer."""
        self.container.write(f"{_BOX}/gpus.json", json.dumps({**_GPUS, **changes}))

    def main(self, port: int = PORT) -> int | None:
        """The process that listens, as numbered in the container; None when none does."""
        found = self.container.shell(f"ss -Hltnp 'sport = :{port}' | sed -n 's/.*pid=\\([0-9]*\\).*/\\1/p'").stdout.split()
        return int(found[0]) if found else None

    def servers(self) -> list[int]:
        """Every process of any server, as numbered in the container."""
        return [int(number) for number in self.container.shell("pgrep -f '^sglang::|sglang.launch_server'", check=False).stdout.split()]

    def started_with(self, pid: int) -> list[str]:
        """The command line of a process."""
        return self.container.run("cat", f"/proc/{pid}/cmdline").stdout.split("\0")[:-1]

    def text(self, path: str) -> str:
        """A file in the container, "" when there is none."""
        return self.container.run("cat", path, check=False).stdout


@contextmanager
def standin_box(workspace: Workspace, bridge: Bridge, folder: Path) -> Iterator[StandinBox]:
    """Make the box; the operator's files are in `folder`. Nothing serves yet."""
    with ExitStack() as made:
        host = BootedHost.start(workspace, bridge)
        made.callback(host.stop)
        container = Container.start(workspace, bridge)
        made.callback(container.stop)
        _install(container)
        yield StandinBox(host, container, Operator(_write_inventory(folder, host, container), _home(folder)))


def _home(folder: Path) -> Path:
    home = folder / "home"
    home.mkdir()
    return home


def _install(container: Container) -> None:
    box = container.path(_BOX)
    for name in ("processes", "sbin"):
        (box / name).mkdir(parents=True)
    standin = Path(orchestrator.lab.__file__).parent / "standin"
    shutil.copytree(standin, box / "standin", ignore=shutil.ignore_patterns("__pycache__"))
    container.write(f"{_BOX}/gpus.json", json.dumps(_GPUS))
    container.write(f"{_BOX}/sbin/nvidia-smi", f'#!/bin/sh\nexec /usr/bin/python3 -I -S {_BOX}/standin/nvidia_smi.py {_BOX} "$@"\n', 0o755)
    _write_python(container)
    write_model(container.path(MODEL))
    container.write("/etc/systemd/system/usr-local-sbin.mount", _MOUNT)
    container.run("systemctl", "enable", "--now", "usr-local-sbin.mount")


def _write_python(container: Container) -> None:
    """A virtual environment whose SGLang and libcuda are the lab's."""
    venv = f"{_BOX}/sglang"
    packages = f"{venv}/lib/python3.11/site-packages"
    container.write(f"{venv}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    container.write(f"{venv}/standin.json", json.dumps(_SETTINGS))
    container.write(f"{packages}/sglang_standin.pth", f"{_BOX}/standin\nimport sglang.standin.driver\n")
    container.write(f"{packages}/sglang-0.5.23.dist-info/METADATA", "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    for name in _KERNEL_MODULES:
        container.write(f"{packages}/{name}", "class CuteDslMoEWrapper: ...\n\n\ndef cutlass_fused_moe(): ...\n")
    container.path(f"{venv}/bin").mkdir()
    container.path(PYTHON).symlink_to("/usr/bin/python3")


def _write_inventory(folder: Path, host: BootedHost, container: Container) -> Path:
    reached = {"reached_by": "ssh", "id": int(container.name), **login(container.ssh)}
    entry = {**login(host.ssh), "gpus": GPU_COUNT, "tuning": PROFILE, "container": reached}
    known_hosts = host.ssh.known_hosts_line + container.ssh.known_hosts_line
    inventory = write_inventory(folder / "inventory", {BY_SSH: entry}, known_hosts)
    write_service(inventory, SERVICE, _SERVICE)
    write_tuning(inventory, PROFILE, KNOBS)
    shipped = Path(orchestrator.__file__).parents[1] / "inventory/backends"
    shutil.copytree(shipped, inventory / "backends", dirs_exist_ok=True)
    return inventory
