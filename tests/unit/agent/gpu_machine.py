"""An imagined GPU host for the checks of a diagnosis: the rig's PCI tree, files, and a nvidia-smi that says what a test wants."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.agent.command import Output
from orchestrator.agent.doctor_context import Commands, Context, make_context
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.wire import Verdict
from orchestrator.agent.wire_host import DoctorRequest, PlaceKind
from tests.rig import pci_tree

DATA = Path(__file__).parents[2] / "data" / "nvidia_smi"
GPUS = pci_tree.GPUS
WELL = "Default, 0, No, No, Disabled, [N/A], [N/A], None"
"""The optional fields of a PCIe card that is well, in the order of smi_state.OPTIONAL."""


def smi_row(index: int, address: str, rest: str = WELL, memory: str = "0, 97887") -> str:
    return f"{index}, 0000{address.upper()}, GPU-{index:04d}, NVIDIA RTX PRO 6000 Blackwell Server Edition, {memory}, {rest}\n"


def smi_rows(addresses: Sequence[str] = GPUS, **changed: str) -> str:
    """Rows of ``--query-gpu``; `changed` maps ``gpu3`` to its optional fields."""
    return "".join(smi_row(index, address, changed.get(f"gpu{index}", WELL)) for index, address in enumerate(addresses))


def p2p_matrix(count: int, status: str = "OK") -> str:
    """As driver 580.159.04 prints it, the underlined header included."""
    header = " \t\x1b[4m" + "".join(f"GPU{index}\t" for index in range(count)) + "\x1b[0m\n"
    rows = [f" GPU{row}\t" + "".join("X\t" if row == column else f"{status}\t" for column in range(count)) + "\n" for row in range(count)]
    return header + "".join(rows) + "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  NS   = Not supported\n"


@dataclass
class Smi:
    """What nvidia-smi answers. `unknown` are fields that this driver doesn't know; `status` None: it doesn't end in time."""

    gpus: str = field(default_factory=smi_rows)
    apps: str = ""
    p2p: str = field(default_factory=lambda: p2p_matrix(8))
    nvlink: str = field(default_factory=lambda: p2p_matrix(8, "NS"))
    unknown: tuple[str, ...] = ()
    status: int | None = 0
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], seconds: float) -> Output:
        self.asked.append(list(argv))
        if self.status is None:
            return Output(None, "", f"nvidia-smi did not end within {seconds:g} s")
        question = argv[1]
        if question == "topo":
            return Output(self.status, {"r": self.p2p, "n": self.nvlink}[argv[3]], "")
        if question.startswith("--query-compute-apps"):
            return Output(self.status, self.apps, "")
        fields = question.partition("=")[2].split(",")
        for name in fields:
            if name in self.unknown:
                return Output(2, f'Field "{name}" is not a valid field to query.\n\n', "")
        return Output(self.status, self.gpus, "")


def write_tree(root: Path) -> Path:
    """Eight GPUs below two switches, all with the nvidia driver."""
    pci_tree.write_functions(root / "sys")
    for gpu in GPUS:
        (root / "sys/bus/pci/devices" / gpu / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
    return root


class Machine:
    """Files below `root`, and contexts over them. `tree` is one of :func:`write_tree`, whose files are shared until changed."""

    def __init__(self, root: Path, tree: Path) -> None:
        self.root = root
        self.smi = Smi()
        shutil.copytree(tree, root, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
        self.write("/proc/self/uid_map", "         0          0 4294967295")
        self.write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet")
        self.write("/proc/uptime", "7200.00 14000.00")
        self.write("/dev/kmsg", "5,0,0,-;Linux version 6.8.12-4-pve\n")
        self.request: dict[str, object] = {"place": PlaceKind.HOST, "state_root": "/var/lib/orchestrator"}
        self.container: str | None = None

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, text: str) -> None:
        self._write(self.path(path), text.encode())

    def link(self, path: str, target: str) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).unlink(missing_ok=True)
        self.path(path).symlink_to(target)

    def attribute(self, address: str, name: str, text: str) -> None:
        """One file of a PCI function."""
        self.write(f"/sys/bus/pci/devices/{address}/{name}", text + "\n")

    def poke(self, address: str, offset: int, value: int) -> None:
        """Set 16 bits of a function's configuration space."""
        path = self.path(f"/sys/bus/pci/devices/{address}/config")
        space = bytearray(path.read_bytes())
        struct.pack_into("<H", space, offset, value)
        self._write(path, bytes(space))

    def lose(self, address: str) -> None:
        """The function falls off the bus."""
        self._write(self.path(f"/sys/bus/pci/devices/{address}/config"), b"\xff" * 4096)

    def cut_configs(self) -> None:
        """As an unprivileged container sees them."""
        for path in self.path("/sys/bus/pci/devices").glob("*/config"):
            self._write(path, path.read_bytes()[:64])

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    def process(self, pid: int, name: str, cgroup: str = "0::/", gpu: bool = True, state: str = "S", parent: int = 1) -> None:
        self.write(f"/proc/{pid}/comm", name + "\n")
        self.write(f"/proc/{pid}/cgroup", cgroup + "\n")
        self.write(f"/proc/{pid}/stat", f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 4194560 " + "0 " * 12 + "4711 99 100 184467\n")
        self.write(f"/proc/{pid}/status", f"Name:\t{name}\nvoluntary_ctxt_switches:\t10\nnonvoluntary_ctxt_switches:\t2\n")
        self.path(f"/proc/{pid}/fd").mkdir(parents=True, exist_ok=True)
        if gpu:
            self.link(f"/proc/{pid}/fd/7", "/dev/nvidia0")

    def in_container(self) -> Machine:
        self.container = "lxc"
        self.request["place"] = PlaceKind.CONTAINER
        return self

    def context(self, **changed: object) -> Context:
        request = DoctorRequest(**{**self.request, **changed})  # type: ignore[arg-type]
        context = make_context(request, KernelFiles(str(self.root)), self.container)
        commands = Commands(ServicePython("python3"), context.deadline, self.smi)
        return Context(request, context.files, self.container, context.gpus, context.nodes, commands, context.deadline)

    def verdicts(self, check: Callable[[Context], list[Verdict]], **changed: object) -> dict[str, Verdict]:
        """What a check says, by name; each verdict is looked at for what all of them must have."""
        found = check(self.context(**changed))
        for verdict in found:
            assert verdict.source, verdict
            assert verdict.outcome == "pass" or verdict.next_step, verdict
            assert verdict.detail, verdict
        assert len({verdict.check for verdict in found}) == len(found), found
        return {verdict.check: verdict for verdict in found}
