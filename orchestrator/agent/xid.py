"""Xid messages: what the NVIDIA driver logs when something went wrong with a GPU.

Meanings are those of NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), by the kind that decides
what to do next. A code without an entry is told as it is.
"""

import re
from typing import Dict, Iterable, List, NamedTuple

from orchestrator.agent.kernel_log import Record

OFF_THE_BUS = 79

_APPLICATION = "look into that program's log first: most often its own fault"
_MEMORY = "nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU when nothing uses it: nvidia-smi -r -i {address}"
_FIRMWARE = "the GPU's firmware stopped answering: nvidia-smi -r -i {address} when nothing uses the GPU, else reboot the host"
_LINK = "nvidia-smi nvlink -s -i {address}; nvidia-smi nvlink -e -i {address}"
_BUS = "reboot the host; if it comes again: power cables, riser, temperature, boot with pcie_aspm=off pcie_port_pm=off"
_RECOVERY = "nvidia-smi --query-gpu=pci.bus_id,gpu_recovery_action --format=csv; do what it says"


class Meaning(NamedTuple):
    """What a code stands for. `cure` may name the GPU as ``{address}``; `own_doing` where a program is at fault, not the GPU."""

    text: str
    cure: str
    own_doing: bool = False


MEANINGS: Dict[int, Meaning] = {
    13: Meaning("graphics or compute engine exception", _APPLICATION, own_doing=True),
    31: Meaning("GPU memory page fault of a program", _APPLICATION, own_doing=True),
    32: Meaning("corrupted push buffer: the PCIe link, or a program", "nvidia-smi -q -d PCIE -i {address}; then that program's log"),
    43: Meaning("a program's channel was stopped", _APPLICATION, own_doing=True),
    45: Meaning("channels removed after a program was killed or failed", _APPLICATION, own_doing=True),
    48: Meaning("double-bit ECC error", _MEMORY),
    61: Meaning("internal micro-controller breakpoint", _FIRMWARE),
    62: Meaning("internal micro-controller halt", _FIRMWARE),
    63: Meaning("a faulty memory row was recorded for remapping", _MEMORY),
    64: Meaning("a faulty memory row could not be recorded for remapping", _MEMORY),
    74: Meaning("NVLink error", _LINK),
    OFF_THE_BUS: Meaning("the GPU fell off the bus", _BUS),
    92: Meaning("many single-bit ECC errors", _MEMORY),
    94: Meaning("contained ECC error: one program was ended", _MEMORY),
    95: Meaning("uncontained ECC error: the GPU must be reset", _MEMORY),
    119: Meaning("GSP firmware timeout", _FIRMWARE),
    120: Meaning("GSP firmware error", _FIRMWARE),
    154: Meaning("the driver changed what it asks for to recover the GPU", _RECOVERY),
}

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.\d)?\): (\d+)\b", re.IGNORECASE)
_FALLEN = re.compile(r"NVRM: .*?\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.\d\b.*fallen off the bus", re.IGNORECASE)


class Xid(NamedTuple):
    """One message about one GPU. `address` is the PCI address of its function 0; `seconds` since boot."""

    address: str
    code: int
    seconds: float
    text: str


def find_xids(records: Iterable[Record]) -> List[Xid]:
    """All Xid messages, in the log's order. Some drivers say that a GPU fell off the bus without a number: that is 79 too."""
    found = []
    for record in records:
        if not record.text.startswith("NVRM:"):
            continue
        match = _XID.search(record.text)
        if match is not None:
            found.append(Xid(pci_address(match[1]), int(match[2]), record.seconds, record.text))
            continue
        fallen = _FALLEN.search(record.text)
        if fallen is not None:
            found.append(Xid(pci_address(fallen[1]), OFF_THE_BUS, record.seconds, record.text))
    return found


def pci_address(text: str) -> str:
    """A PCI address as the kernel's files spell it (``0000:41:00.0``).

    Made from nvidia-smi's spelling (``00000000:41:00.0``) or the log's (``0000:41:00``). What is no address comes back in lower case.
    """
    domain, separator, rest = text.strip().lower().partition(":")
    if not separator or not re.fullmatch(r"[0-9a-f]{4,8}", domain):
        return text.strip().lower()
    return f"{int(domain, 16):04x}:{rest if '.' in rest else rest + '.0'}"


def meaning(code: int) -> Meaning:
    """What a code stands for; one that isn't known here is looked up by a person."""
    unknown = Meaning("not in this program's list", "look it up: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html")
    return MEANINGS.get(code, unknown)
