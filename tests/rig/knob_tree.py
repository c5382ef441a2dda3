"""The knobs of a GPU host as a tree of files of our own, to be mounted over the kernel's paths in a mount namespace.

A two-socket server of four CPUs with eight GPUs (:mod:`tests.rig.pci_tree`), as it is after a boot: NUMA balancing on, governor
powersave, MaxReadReq 512, no module parameter set. Everything lies in one folder under the same paths as on the machine.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.rig.pci_tree import GPUS, write_functions

NUMA_BALANCING = "/proc/sys/kernel/numa_balancing"
TRANSPARENT_HUGEPAGE = "/sys/kernel/mm/transparent_hugepage"
CPUS = "/sys/devices/system/cpu"
NVIDIA_SMI = "/usr/local/sbin/nvidia-smi"
DRIVER = "580.159.04"

_STANDINS = Path(__file__).parent / "standins"

_FOLDERS = ("/sys/devices", "/sys/bus/pci/devices", "/sys/module", TRANSPARENT_HUGEPAGE, "/proc/driver")
"""What is replaced as a whole. Below /proc/sys single files are."""

_FILES = {
    NUMA_BALANCING: "1",
    "/proc/sys/vm/swappiness": "60",
    "/proc/sys/vm/zone_reclaim_mode": "0",
    "/proc/sys/vm/max_map_count": "65530",
    "/proc/sys/net/core/rmem_max": "212992",
    f"{TRANSPARENT_HUGEPAGE}/enabled": "always [madvise] never",
    f"{TRANSPARENT_HUGEPAGE}/defrag": "always defer defer+madvise [madvise] never",
    f"{CPUS}/online": "0-3",
    f"{CPUS}/possible": "0-3",
    f"{CPUS}/present": "0-3",
    "/sys/devices/system/node/online": "0-1",
    "/sys/devices/system/node/node0/cpulist": "0-1",
    "/sys/devices/system/node/node1/cpulist": "2-3",
    "/sys/module/nvidia/version": DRIVER,
    "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N",
    "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build",
}

_POLICY = {
    "scaling_driver": "amd-pstate-epp",
    "scaling_available_governors": "performance powersave",
    "scaling_governor": "powersave",
    "energy_performance_available_preferences": "default performance balance_performance balance_power power",
    "energy_performance_preference": "balance_performance",
}

_GPU = {
    "index": None,
    "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "driver_version": DRIVER,
    "persistence_mode": "Disabled",
    "power.limit": "600.00",
    "power.default_limit": "600.00",
    "power.min_limit": "400.00",
    "power.max_limit": "600.00",
    "memory.used": "1",
    "memory.total": "97887",
    "compute_mode": "Default",
    "ecc.errors.uncorrected.volatile.total": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "mig.mode.current": "Disabled",
    "gpu_recovery_action": "None",
}


@dataclass(frozen=True)
class KnobTree:
    """The tree in `folder`. Paths given are those of the machine (``/proc/sys/...``)."""

    folder: Path

    @classmethod
    def write(cls, folder: Path) -> KnobTree:
        """Write a fresh one."""
        tree = cls(folder)
        for path, text in _files():
            tree.put(path, text)
        write_functions(folder / "sys")
        for path in ("/sys/devices/virtual", "/proc/driver", "/usr/local/sbin"):
            tree.path(path).mkdir(parents=True, exist_ok=True)
        for standin in _STANDINS.iterdir():
            shutil.copy2(standin, tree.path("/usr/local/sbin"))
        return tree

    def path(self, path: str) -> Path:
        """Where the file really lies."""
        return self.folder / path.lstrip("/")

    def put(self, path: str, text: str) -> None:
        """Write a file, as if the machine had booted with it."""
        real = self.path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text + "\n", encoding="utf-8")

    def text(self, path: str) -> str:
        """A file's text without outer white space."""
        return self.path(path).read_text(encoding="utf-8").strip()

    def values(self, pattern: str) -> set[str]:
        """The different texts of all files that match a glob."""
        return {path.read_text(encoding="utf-8").strip() for path in self.folder.glob(pattern.lstrip("/"))}

    def remove(self, path: str) -> None:
        """Take a file or a folder away: a machine without that knob. Before the host starts, when it is a sysctl."""
        real = self.path(path)
        if real.is_dir() and not real.is_symlink():
            shutil.rmtree(real)
        else:
            real.unlink()

    def config(self, address: str) -> Path:
        """The configuration space of a PCI function."""
        return self.path(f"/sys/bus/pci/devices/{address}/config")

    def word(self, address: str, offset: int) -> int:
        """16 bits of a configuration space."""
        return int.from_bytes(self.config(address).read_bytes()[offset : offset + 2], "little")

    def fall_off_the_bus(self, address: str) -> None:
        """From now on the function reads as all ones."""
        self.config(address).write_bytes(b"\xff" * 4096)

    def mounts(self) -> list[tuple[str, str]]:
        """What is to be mounted, as (path in the tree, path of the machine)."""
        sysctls = [f"/{path.relative_to(self.folder)}" for path in sorted(self.path("/proc/sys").rglob("*")) if path.is_file()]
        return [(path, path) for path in ("/usr/local/sbin", *_FOLDERS, *sysctls)]

    def fingerprint(self) -> dict[str, str]:
        """Content and time of the last write of every file: equal only if nobody wrote anything, not even the same value again."""
        found = {}
        for path in sorted(self.folder.glob("*/**/*")):
            if path.is_file() and not path.is_symlink():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
                found[f"/{path.relative_to(self.folder)}"] = f"{digest} {path.stat().st_mtime_ns}"
        return found

    def contents(self) -> dict[str, bytes]:
        """Every file's content."""
        return {name: self.path(name).read_bytes() for name in self.fingerprint()}


def _files() -> Iterator[tuple[str, str]]:
    yield from _FILES.items()
    for cpu in range(4):
        yield f"{CPUS}/cpu{cpu}/power/pm_qos_resume_latency_us", "0"
        yield f"{CPUS}/cpufreq/policy{cpu}/related_cpus", str(cpu)
        for name, text in _POLICY.items():
            yield f"{CPUS}/cpufreq/policy{cpu}/{name}", text
    for index, address in enumerate(GPUS):
        state = f"{NVIDIA_SMI}-state/{address}"
        for name, value in _GPU.items():
            yield f"{state}/{name}", str(index) if value is None else value
        yield f"{state}/pci.bus_id", f"0000{address.upper()}"
        yield f"{state}/uuid", f"GPU-00000000-0000-0000-0000-{index:012d}"
