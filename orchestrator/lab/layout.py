"""What the lab consists of, and where it lies.

::

    DIR/                         mode 700
      lab.json                   the ports, and the mark by which a folder is known to be a lab
      lock                       held (flock) by whoever brings the lab up or down
      server.json                the SSH server's process, while it runs
      server.log
      keys/                      client, client.pub, HOST, HOST.pub
      models/GLM-5-NVFP4/        a config.json and nothing else
      inventory/                 hosts.yml, services/, backends/, tuning/, known_hosts
      hosts/NAME/
        bin/                     the PATH of the host: nvidia-smi, python3 and some of this machine's tools
        home/                    where commands start
        sglang/                  the service's virtual environment, with the stand-in in it
        state/                   the agent's state folders
        processes/               one record for each process of a stand-in server
        gpus.json                what nvidia-smi shows
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIRECTORY = Path(".lab")
ADDRESS = "127.0.0.1"
MARKER = "SSH_LAB_DIRECTORY"
"""Environment variable of everything that is started over the lab's SSH, in the manner of SSH_CONNECTION; its value is the lab's folder."""
TIME_SCALE = 0.2
"""How long the stand-in takes to load and to stop, against what SGLang itself took on a small model."""


@dataclass(frozen=True)
class LabHost:
    """One made-up machine."""

    name: str
    service: str
    gpu_name: str
    compute_capability: str
    gpu_memory_mib: int
    about: str


HOSTS = (
    LabHost("lab-b200", "glm5-b200", "NVIDIA B200", "10.0", 183359, "flashinfer_cutedsl works here and is faster"),
    LabHost(
        "lab-rtx6000",
        "glm5-rtx6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "12.0",
        97887,
        "flashinfer_cutedsl fails after the load and is rolled back",
    ),
)
GPU_COUNT = 8


@dataclass(frozen=True)
class Ports:
    """Of one lab host, on 127.0.0.1."""

    ssh: int
    sglang: int


@dataclass(frozen=True)
class Layout:
    """The paths under one lab's folder, which is absolute."""

    directory: Path

    @classmethod
    def of(cls, directory: Path) -> Layout:
        return cls(directory.expanduser().absolute())

    @property
    def mark(self) -> Path:
        return self.directory / "lab.json"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    @property
    def server_record(self) -> Path:
        return self.directory / "server.json"

    @property
    def server_log(self) -> Path:
        return self.directory / "server.log"

    @property
    def keys(self) -> Path:
        return self.directory / "keys"

    @property
    def client_key(self) -> Path:
        return self.keys / "client"

    @property
    def inventory(self) -> Path:
        return self.directory / "inventory"

    @property
    def model(self) -> Path:
        return self.directory / "models" / "GLM-5-NVFP4"

    def host(self, name: str) -> Path:
        return self.directory / "hosts" / name

    def python(self, name: str) -> Path:
        """The Python of the host's service, which has the stand-in."""
        return self.host(name) / "sglang" / "bin" / "python3"

    def state_root(self, name: str) -> Path:
        return self.host(name) / "state"


def read_ports(layout: Layout) -> dict[str, Ports] | None:
    """The ports of a lab that was written, None where there is none."""
    try:
        described = json.loads(layout.mark.read_text(encoding="utf-8"))["ports"]
        return {host.name: Ports(described[host.name]["ssh"], described[host.name]["sglang"]) for host in HOSTS}
    except (OSError, ValueError, KeyError):
        return None
