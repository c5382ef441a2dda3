"""A machine made of files and of scripted answers, for the checks of a diagnosis."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.agent.clock import Deadline
from orchestrator.agent.command import Output
from orchestrator.agent.doctor_context import Commands, Context, DeviceNode
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.pci import gpu_functions
from orchestrator.agent.service_python import Completed, ServicePython
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_host import DoctorRequest

VERSION = "580.159.04"
LIBRARY = "/usr/lib/x86_64-linux-gnu"
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
UVM = "/dev/nvidia-uvm"
CONTROL = "/dev/nvidiactl"

HEALTHY = {
    "/proc/sys/kernel/osrelease": "6.8.12-4-pve",
    "/proc/sys/kernel/random/boot_id": "0e3b3a53-0000-4000-8000-000000000000",
    "/proc/self/uid_map": "0 0 4294967295",
    "/proc/1/stat": "1 (systemd) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 5 1 1 1",
    "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  (root@host)",
    "/proc/devices": DEVICES,
    "/sys/module/nvidia/version": VERSION,
    "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N",
    f"{LIBRARY}/libcuda.so.{VERSION}": "",
}
SMI = Output(0, "".join(f"GPU {index}: NVIDIA B200 (UUID: GPU-{index})\n" for index in range(2)), "")
NO_SMI = Output(None, "", "nvidia-smi: No such file or directory")
GOOD_CUDA = "status 0\ncount_status 0\ncount 2\n"


def character(path: str, major: int, minor: int, mode: int = 0o666, changed: float = 0.0) -> DeviceNode:
    return DeviceNode(path, stat.S_IFCHR | mode, (major, minor), 0, changed)


def empty_file(path: str) -> DeviceNode:
    return DeviceNode(path, stat.S_IFREG, None, 0, 0.0)


def good_nodes(gpus: int = 2) -> dict[str, DeviceNode]:
    nodes = [character(CONTROL, 195, 255), character(UVM, 238, 0), *(character(f"/dev/nvidia{n}", 195, n) for n in range(gpus))]
    return {node.path: node for node in nodes}


@dataclass
class ScriptedPython:
    """Stands for the service's Python: what cuInit, opening nodes and nvcc say."""

    cuda: Completed
    openings: Mapping[str, int]
    nvcc: str
    opening_problem: str | None = None
    path: str = "/opt/venv/bin/python"
    root: str = ""

    def run(self, arguments: Sequence[str], _seconds: float, stdin: str = "") -> Completed:
        program = " ".join(arguments)
        if "cuInit" in program:
            return self.cuda
        if "O_RDWR" in program:
            if self.opening_problem is not None:
                return Completed(None, problem=self.opening_problem)
            rows = [f"{path} {self.openings.get(path.removeprefix(self.root), 0)}\n" for path in arguments[4:]]
            return Completed(0, "".join(rows))
        return Completed(0, self.nvcc)


@dataclass
class Machine:
    """What is there, healthy unless a test says otherwise. `links` are symlinks, relative in their folder."""

    folder: Path
    files: dict[str, str] = field(default_factory=lambda: dict(HEALTHY))
    links: dict[str, str] = field(default_factory=lambda: {f"{LIBRARY}/libcuda.so.1": f"libcuda.so.{VERSION}"})
    nodes: dict[str, DeviceNode] = field(default_factory=good_nodes)
    gpus: int = 2
    smi: Output = SMI
    cuda: Completed = field(default_factory=lambda: Completed(0, GOOD_CUDA))
    openings: dict[str, int] = field(default_factory=dict)
    opening_problem: str | None = None
    capabilities: str = "12.0\n12.0\n"
    nvcc: str = "Cuda compilation tools, release 12.9, V12.9.41"
    container: str | None = "lxc"

    def context(self, **request: Any) -> Context:
        """Write the files and return what the checks are given."""
        for path, text in self.files.items():
            self._place(path).write_text(text, encoding="utf-8")
        for path, target in self.links.items():
            link = self._place(path)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        for index in range(self.gpus):
            device = f"/sys/bus/pci/devices/0000:{index + 1:02x}:00.0"
            self._place(f"{device}/vendor").write_text("0x10de\n")
            self._place(f"{device}/class").write_text("0x030200\n")
        asked = DoctorRequest(place="container", state_root=str(self.folder / "state"), **{"service": "svc", "cuda": True, **request})
        files = KernelFiles(str(self.folder))
        scripted: Any = ScriptedPython(self.cuda, self.openings, self.nvcc, self.opening_problem, root=str(self.folder))
        python: ServicePython = scripted
        commands = Commands(python, Deadline(5.0), self._answer)
        return Context(asked, files, self.container, gpu_functions(files), self.nodes, commands, Deadline(5.0))

    def host(self, **request: Any) -> Context:
        """The same as a bare host without a service."""
        self.container = None
        context = self.context(**{"service": None, **request})
        return replace(context, request=replace(context.request, place="host"))

    def _answer(self, argv: Sequence[str], _seconds: float) -> Output:
        if argv[0] == "nvidia-smi":
            return Output(0, self.capabilities, "") if "compute_cap" in argv[1] and self.smi.good else self.smi
        if argv[0].endswith("ldconfig"):
            known = [path for path in self.links if path.endswith("libcuda.so.1") and path.startswith("/usr")]
            return Output(0, "".join(f"\tlibcuda.so.1 (libc6,x86-64) => {path}\n" for path in known), "")
        return Output(None, "", f"{argv[0]}: No such file or directory")

    def _place(self, path: str) -> Path:
        placed = Path(f"{self.folder}{path}")
        placed.parent.mkdir(parents=True, exist_ok=True)
        return placed


def nothing_of_nvidia(folder: Path) -> Machine:
    """A machine without any trace of NVIDIA."""
    kept = {path: text for path, text in HEALTHY.items() if "nvidia" not in path and "libcuda" not in path}
    kept["/proc/devices"] = "Character devices:\n  1 mem\n"
    return Machine(folder, files=kept, links={}, nodes={}, gpus=0, smi=NO_SMI, cuda=Completed(0, "library libcuda.so.1: cannot open"))


def complete(verdict: Verdict) -> bool:
    """Whether a verdict says what it must: where it was read and, unless all is well, what to type."""
    told = verdict.outcome == Outcome.PASS or bool(verdict.next_step)
    return bool(verdict.check and verdict.detail and verdict.source) and told and verdict.outcome in ("pass", "warn", "refuse", "unknown")
