"""What decides how fast GPUs without NVLink reach each other over PCIe, and so how long each token of tensor parallel decode takes.

Registers are read, not command lines: ``pcie_aspm=off`` leaves on what the firmware had switched on. Offsets are those of pciutils'
lib/header.h and of the kernel's include/uapi/linux/pci_regs.h.
"""

from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.gpu import SECONDS
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.pci import (
    CAPABILITY_EXPRESS,
    DEVICES,
    EXTENDED_ACS,
    EXTENDED_RESIZABLE_BAR,
    ConfigSpace,
    bridges_above,
    read_config,
)
from orchestrator.agent.smi_state import ask_states, parse_p2p
from orchestrator.agent.wire import Outcome, Verdict

COMMAND_LINE = "/proc/cmdline"

_TOPOLOGY = ["nvidia-smi", "topo", "-p2p", "r"]
_NVLINK = ["nvidia-smi", "topo", "-p2p", "n"]
_CONFIG = f"{DEVICES}/*/config"
_REDIRECT = 0x0C
"""PCI_ACS_RR | PCI_ACS_CR: requests and completions between devices below this port go up to the root complex first."""
_ASPM = 0x03
_ASPM_NAMES = {1: "L0s", 2: "L1", 3: "L0s and L1"}
_PREFETCHABLE = 0x2000
"""IORESOURCE_PREFETCH (include/linux/ioport.h), in the third column of a device's `resource` file."""
_BARS = 6
_MIB = 1 << 20
_SMALL_BAR = 256
"""MiB: what BAR1 is without a resized BAR on all GPUs that have one."""
_SHOWN = 8

_P2P_MEANING = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU or its driver does not support it (GeForce cards)",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "U": "unknown",
}


@dataclass(frozen=True)
class Function:
    """One GPU or port above one, with as much of its configuration space as could be read (None: nothing)."""

    address: str
    config: Optional[ConfigSpace]
    is_gpu: bool = False

    @property
    def readable(self) -> bool:
        return self.config is not None and not self.config.cut and not self.config.gone

    @property
    def redirects(self) -> bool:
        """Whether ACS sends traffic between devices below this port to the root complex."""
        if self.config is None or not self.readable:
            return False
        position = self.config.extended_capability(EXTENDED_ACS)
        control = None if position is None else self.config.word(position + 6)
        return control is not None and control != 0xFFFF and bool(control & _REDIRECT)

    @property
    def aspm(self) -> int:
        """The link states that Link Control allows: bit 0 L0s, bit 1 L1."""
        if self.config is None or not self.readable:
            return 0
        position = self.config.capability(CAPABILITY_EXPRESS)
        control = None if position is None else self.config.word(position + 0x10)
        return 0 if control is None or control == 0xFFFF else control & _ASPM


def check_pci(context: Context) -> List[Verdict]:
    """All of it. What is about traffic between GPUs over PCIe is left out where there is one GPU, or NVLink between all."""
    if not context.gpus:
        return []
    several = len(context.gpus) > 1
    over_pcie = several and not _all_nvlink(context)
    verdicts = [*p2p(context, over_pcie)] if several else []
    verdicts += [*iommu(context), *resizable_bar(context)] if over_pcie else []
    return [*verdicts, *_registers(context, read_functions(context), over_pcie)]


def read_functions(context: Context) -> List[Function]:
    """The GPUs, then every port above any of them, each once."""
    ports = dict.fromkeys(port for gpu in context.gpus for port in bridges_above(context.files, gpu))
    addresses = [*context.gpus, *(port for port in ports if port not in context.gpus)]
    return [Function(address, _config(context.files, address), address in context.gpus) for address in addresses]


def _config(files: KernelFiles, address: str) -> Optional[ConfigSpace]:
    try:
        return read_config(files, address)
    except OSError:
        return None


def _registers(context: Context, functions: Sequence[Function], over_pcie: bool) -> List[Verdict]:
    """ACS and ASPM where the registers can be read; one line where they can't."""
    readable = [function for function in functions if function.readable]
    wanted = "ACS redirect and ASPM" if over_pcie else "ASPM"
    if not readable:
        if all(function.config is not None and function.config.gone for function in functions):
            return []  # told of as fallen off the bus
        detail = f"{wanted} can be read by the host's root only (64 bytes of configuration space are shown here)"
        step = "on the host, as root: lspci -vvv | grep -E '^[0-9a-f]|ACSCtl|LnkCtl:'"
        return [Verdict("pci_registers", Outcome.UNKNOWN, detail, [], step, _CONFIG)]
    return [*(_acs(context, readable) if over_pcie else []), *_link_states(context, readable)]


def _acs(context: Context, functions: Sequence[Function]) -> List[Verdict]:
    ports = [function for function in functions if not function.is_gpu]
    redirecting = [port.address for port in ports if port.redirects]
    if not redirecting:
        said = f"none of {len(ports)} port(s) above the GPUs sends traffic between them to the root complex" if ports else ""
        return [Verdict("acs_redirect", Outcome.PASS, said, source=f"{_CONFIG} (ACSCtl)")] if ports else []
    detail = (
        f"ACS redirect is on at {len(redirecting)} of {len(ports)} port(s): traffic between GPUs goes up to the root complex, "
        "which costs each all-reduce of tensor parallel decode"
    )
    command = context.on_host(f"for port in {' '.join(redirecting)}; do setpci -s $port ECAP_ACS+6.w=0:c; done")
    step = f"{command} (until the next reboot; it ends the isolation between devices that are passed to different virtual machines)"
    return [Verdict("acs_redirect", Outcome.WARN, detail, [], step, f"{_CONFIG} (ACSCtl)")]


def _link_states(context: Context, functions: Sequence[Function]) -> List[Verdict]:
    asleep = [function for function in functions if function.aspm]
    source = f"{_CONFIG} (LnkCtl)"
    if not asleep:
        detail = f"ASPM is off on the GPUs and the ports above them ({len(functions)} functions)"
        return [Verdict("aspm", Outcome.PASS, detail, source=source)]
    evidence = [f"{function.address}: {_ASPM_NAMES[function.aspm]}" for function in asleep]
    detail = "links of the GPUs may go to sleep (ASPM): waking takes microseconds in each step, and some links don't come back"
    words = (context.files.text(COMMAND_LINE) or "").split()
    registers = " ".join(function.address for function in asleep)
    now = context.on_host(f"for link in {registers}; do setpci -s $link CAP_EXP+10.w=0:3; done")
    if "pcie_aspm=off" in words:
        detail += "; pcie_aspm=off is set, and leaves on what the firmware had switched on"
        return [Verdict("aspm", Outcome.WARN, detail, _some(evidence), f"{now}; for good: ASPM off in the firmware's settings", source)]
    step = f"{now}; for good: {boot_line(context, 'pcie_aspm=off pcie_port_pm=off')}, and ASPM off in the firmware's settings"
    return [Verdict("aspm", Outcome.WARN, detail, _some(evidence), step, source)]


def p2p(context: Context, over_pcie: bool) -> List[Verdict]:
    """Whether each GPU may read the memory of each other one, as the driver sees it."""
    source = " ".join(_TOPOLOGY)
    if not over_pcie:
        return [Verdict("p2p", Outcome.PASS, "all GPUs reach each other over NVLink", source=" ".join(_NVLINK))]
    output = context.commands.run(_TOPOLOGY, SECONDS)
    matrix = parse_p2p(output.text) if output.good else {}
    if matrix:
        return [judge_p2p(matrix, source)]
    said = (output.errors.strip() or output.text.strip() or "nothing")[:200]
    return [Verdict("p2p", Outcome.UNKNOWN, f"whether GPUs reach each other's memory can't be told: {said}", [], source, source)]


def _all_nvlink(context: Context) -> bool:
    output = context.commands.run(_NVLINK, SECONDS)
    matrix = parse_p2p(output.text) if output.good else {}
    return bool(matrix) and all(status == "OK" for status in matrix.values())


def judge_p2p(matrix: Mapping[Tuple[int, int], str], source: str) -> Verdict:
    """Pure: one verdict on all pairs."""
    count = len({index for pair in matrix for index in pair})
    lacking = {pair: status for pair, status in matrix.items() if status != "OK"}
    if not lacking:
        return Verdict("p2p", Outcome.PASS, f"all {count} GPUs reach each other's memory (P2P)", source=source)
    statuses = sorted(set(lacking.values()))
    means = "; ".join(f"{status}: {_P2P_MEANING.get(status, 'see nvidia-smi topo -h')}" for status in statuses)
    detail = (
        f"{len(lacking)} of {len(matrix)} pairs of GPUs have no P2P ({means}): what tensor parallel decode exchanges goes through "
        "host memory, and custom all-reduce is off"
    )
    evidence = _some([f"GPU {one} -> GPU {other}: {status}" for (one, other), status in lacking.items()])
    step = "nvidia-smi topo -m; then what is told here of IOMMU, ACS and the BAR; on cards whose driver forbids it nothing helps"
    return Verdict("p2p", Outcome.WARN, detail, evidence, step, source)


def iommu(context: Context) -> List[Verdict]:
    """Whether the GPUs' addresses are translated, which keeps P2P from going the short way."""
    kinds = {gpu: context.files.text(f"{DEVICES}/{gpu}/iommu_group/type") for gpu in context.gpus}
    translated = {gpu: kind for gpu, kind in kinds.items() if kind is not None and kind.startswith("DMA")}
    source = f"{DEVICES}/*/iommu_group/type"
    if translated:
        evidence = [f"{gpu}: {kind}" for gpu, kind in translated.items()]
        words = [word for word in (context.files.text(COMMAND_LINE) or "").split() if "iommu" in word]
        evidence.append(f"{COMMAND_LINE}: {' '.join(words) or 'nothing about the IOMMU'}")
        detail = f"the IOMMU translates for {len(translated)} GPU(s): P2P is slow through it, and NCCL may hang when told to use it anyway"
        step = f"{boot_line(context, 'iommu=pt')} (iommu=off breaks virtual machines with passed-through devices)"
        return [Verdict("iommu", Outcome.WARN, detail, evidence, step, source)]
    if all(kind is None for kind in kinds.values()):
        if not context.files.glob("/sys/class/iommu/*"):
            return [Verdict("iommu", Outcome.PASS, "there is no IOMMU between the GPUs", source="/sys/class/iommu")]
        return [Verdict("iommu", Outcome.PASS, "an IOMMU is there, the GPUs are not behind it", source=source)]
    found = ", ".join(sorted({kind for kind in kinds.values() if kind is not None}))
    return [Verdict("iommu", Outcome.PASS, f"the IOMMU lets the GPUs' addresses through ({found})", source=source)]


def resizable_bar(context: Context) -> List[Verdict]:
    """Whether the window through which others reach a GPU's memory (BAR1) covers all of it."""
    memory = {state.address: state.memory_total for state in ask_states(context.commands.run).gpus}
    sizes = {gpu: bar1_size(context.files.text(f"{DEVICES}/{gpu}/resource") or "") for gpu in context.gpus}
    wanted = {gpu: memory.get(gpu) or _largest_bar(context.files, gpu) for gpu in context.gpus}
    source = f"{DEVICES}/*/resource; nvidia-smi --query-gpu=memory.total"
    small, untold = [], []
    for gpu, size in sizes.items():
        target = wanted[gpu]
        if not size or (target is None and size > _SMALL_BAR):
            untold.append(gpu)
        elif target is None or size < target:
            small.append(f"{gpu}: {size} MiB" + (f" of {target} MiB" if target is not None else ""))
    if small:
        detail = f"BAR1 of {len(small)} GPU(s) is smaller than their memory (no resizable BAR): P2P over PCIe is slow or refused"
        step = "firmware's settings: Above 4G Decoding and Re-Size BAR on; then nvidia-smi -q -d MEMORY shows BAR1 as large as FB"
        return [Verdict("resizable_bar", Outcome.WARN, detail, _some(small), step, source)]
    if untold:
        step = "nvidia-smi -q -d MEMORY | grep -A1 -E 'FB|BAR1'"
        return [Verdict("resizable_bar", Outcome.UNKNOWN, f"the size of BAR1 can't be told for {', '.join(untold)}", [], step, source)]
    least = min(size for size in sizes.values() if size)
    return [Verdict("resizable_bar", Outcome.PASS, f"BAR1 covers the memory of all GPUs ({least} MiB or more)", source=source)]


def bar1_size(text: str) -> Optional[int]:
    """MiB of the largest prefetchable BAR in a device's `resource` file (lines ``START END FLAGS``), None where there is none."""
    largest = 0
    for line in text.splitlines()[:_BARS]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if flags & _PREFETCHABLE and end > start:
            largest = max(largest, end - start + 1)
    return largest // _MIB or None


def _largest_bar(files: KernelFiles, address: str) -> Optional[int]:
    """MiB of the largest size that the resizable BAR capability offers; for a GPU of which nvidia-smi says nothing."""
    config = _config(files, address)
    position = None if config is None else config.extended_capability(EXTENDED_RESIZABLE_BAR)
    offered = None if config is None or position is None else config.double_word(position + 4)
    if offered is None or offered == 0xFFFFFFFF or offered >> 4 == 0:
        return None
    return 1 << ((offered >> 4).bit_length() - 1)


def boot_line(context: Context, words: str) -> str:
    """What to do to have words on the host's kernel command line from the next boot on, for the boot loader that it has."""
    files = context.files
    if context.in_container:
        return f"on the host, in the kernel's command line: {words} (/etc/default/grub and update-grub, or its boot loader's way); reboot"
    if files.exists("/etc/kernel/proxmox-boot-uuids") and files.exists("/etc/kernel/cmdline"):
        return f"in /etc/kernel/cmdline, at the end of its line: {words}; then proxmox-boot-tool refresh; reboot"
    if files.exists("/usr/sbin/grubby"):
        return f"grubby --update-kernel=ALL --args='{words}'; reboot"
    return f"in GRUB_CMDLINE_LINUX_DEFAULT of /etc/default/grub: {words}; then update-grub; reboot"


def _some(lines: Sequence[str]) -> List[str]:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]
