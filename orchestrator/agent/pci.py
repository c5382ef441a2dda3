"""PCI functions and their configuration space, as the kernel shows them under /sys/bus/pci/devices.

Offsets and ids are those of pciutils' lib/header.h. Without CAP_SYS_ADMIN in the first user namespace only the first 64 bytes can be
read (``pci_read_config``, drivers/pci/pci-sysfs.c), which reads like a device without capabilities: so that is told apart.
"""

import os
import re
from typing import List, Optional

from orchestrator.agent.codec import record
from orchestrator.agent.kernel_files import KernelFiles

DEVICES = "/sys/bus/pci/devices"

CAPABILITY_EXPRESS = 0x10
"""PCI_CAP_ID_EXP."""
EXTENDED_ACS = 0x0D
"""PCI_EXT_CAP_ID_ACS."""
EXTENDED_RESIZABLE_BAR = 0x15
"""PCI_EXT_CAP_ID_REBAR."""

MAX_READ_REQUESTS = (128, 256, 512, 1024, 2048, 4096)
"""Bytes, in the order of their codes in Device Control."""
READ_REQUEST_MASK = 0x7000
"""PCI_EXP_DEVCTL_READRQ: bits 14:12 of Device Control. The bit above them resets the function (PCI_EXP_DEVCTL_FLRESET)."""

_DEVICE_CONTROL = 8
_READ_REQUEST_SHIFT = 12
_FUNCTION_LEVEL_RESET = 0x8000
_ALL_ONES = 0xFFFF

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
_HEADER_BYTES = 64
FIRST_EXTENDED = 0x100
"""Where the extended capabilities begin, and so where those of PCI end."""
GONE = "it reads as all ones: the device has fallen off the bus"
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"


@record(frozen=True)
class ConfigSpace:
    """One function's configuration space, 64 to 4096 bytes of it."""

    content: bytes

    @property
    def gone(self) -> bool:
        """All ones: the device has fallen off the bus."""
        return self.content[:2] == b"\xff\xff"

    @property
    def cut(self) -> bool:
        """Only the header could be read: this process is not root of the host."""
        return len(self.content) <= _HEADER_BYTES

    def word(self, offset: int) -> Optional[int]:
        """16 bits, None beyond what could be read."""
        piece = self.content[offset : offset + 2]
        return int.from_bytes(piece, "little") if len(piece) == 2 else None

    def double_word(self, offset: int) -> Optional[int]:
        """32 bits, None beyond what could be read."""
        piece = self.content[offset : offset + 4]
        return int.from_bytes(piece, "little") if len(piece) == 4 else None

    def capability(self, wanted: int) -> Optional[int]:
        """Offset of a capability, None where there is none (or `gone`, or `cut`)."""
        if self.gone or self.cut:
            return None
        position, seen = self.content[0x34] & 0xFC, set()
        while position >= 0x40 and position + 2 <= len(self.content) and position not in seen:
            seen.add(position)
            if self.content[position] == wanted:
                return position
            position = self.content[position + 1] & 0xFC
        return None

    def extended_capability(self, wanted: int) -> Optional[int]:
        """Offset of an extended capability (from 0x100 on), None where there is none."""
        position, seen = FIRST_EXTENDED, set()
        while position >= FIRST_EXTENDED and position not in seen:
            seen.add(position)
            header = self.double_word(position)
            if header is None or header in (0, 0xFFFFFFFF):
                return None
            if header & 0xFFFF == wanted:
                return position
            position = (header >> 20) & 0xFFC
        return None


def gpu_functions(files: KernelFiles) -> List[str]:
    """PCI addresses of the NVIDIA GPUs (``0000:41:00.0``): their function 0, not the audio or USB functions beside it."""
    found = []
    for path in files.glob(f"{DEVICES}/*"):
        if not path.endswith(".0") or files.text(f"{path}/vendor") != _NVIDIA:
            continue
        if (files.text(f"{path}/class") or "").startswith(_GPU_CLASSES):
            found.append(os.path.basename(path))
    return found


def bridges_above(files: KernelFiles, address: str) -> List[str]:
    """PCI addresses of the ports between a function and its root complex, nearest first; none where it sits on the root bus.

    Each function lies in the folder of the port above it (/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0).
    """
    folders = os.path.realpath(files.path(f"{DEVICES}/{address}")).split("/")[:-1]
    return [folder for folder in reversed(folders) if re.fullmatch(_ADDRESS, folder)]


def config_path(address: str) -> str:
    """Where the configuration space of a function is read and written."""
    return f"{DEVICES}/{address}/config"


def read_config(files: KernelFiles, address: str, length: int = 4096) -> ConfigSpace:
    """Read as much of the configuration space as this process may, or its first `length` bytes.

    Raises:
        OSError: there is no such function, or it may not be read at all.
    """
    with open(files.path(config_path(address)), "rb", buffering=0) as stream:
        return ConfigSpace(stream.read(length))


class ConfigError(Exception):
    """A configuration space does not hold what was looked for; the message says what it means."""


def max_read_request(config: ConfigSpace) -> int:
    """MaxReadReq in bytes: how much a function may ask for in one read of memory.

    Raises:
        ConfigError: it is not there to be read.
    """
    word = config.word(_device_control(config))
    if word is None or word == _ALL_ONES:
        raise ConfigError(GONE)
    code = (word & READ_REQUEST_MASK) >> _READ_REQUEST_SHIFT
    if code >= len(MAX_READ_REQUESTS):
        raise ConfigError(f"bits 14:12 of Device Control hold {code}, which is reserved")
    return MAX_READ_REQUESTS[code]


def set_max_read_request(files: KernelFiles, address: str, size: int) -> None:
    """Read Device Control, change bits 14:12, write its two bytes. Not atomic against the driver; setpci(8) is no better.

    Raises:
        ConfigError: the register can't be read, so it is not written either.
        OSError: the kernel refuses.
    """
    with open(files.path(config_path(address)), "r+b", buffering=0) as stream:
        offset = _device_control(ConfigSpace(stream.read(FIRST_EXTENDED)))
        word = int.from_bytes(os.pread(stream.fileno(), 2, offset), "little")
        if word == _ALL_ONES:
            raise ConfigError(GONE)
        os.pwrite(stream.fileno(), with_read_request(word, size).to_bytes(2, "little"), offset)


def with_read_request(word: int, size: int) -> int:
    """Device Control with another MaxReadReq, and never with the bit that resets the function."""
    code = MAX_READ_REQUESTS.index(size)
    return (word & ~READ_REQUEST_MASK & ~_FUNCTION_LEVEL_RESET) | code << _READ_REQUEST_SHIFT


def _device_control(config: ConfigSpace) -> int:
    if config.gone:
        raise ConfigError(GONE)
    if config.cut:
        raise ConfigError("only its first 64 bytes could be read, as by anybody who is not root of the host")
    position = config.capability(CAPABILITY_EXPRESS)
    if position is None:
        raise ConfigError("it has no PCI Express capability")
    return position + _DEVICE_CONTROL


def is_gone(files: KernelFiles, address: str) -> bool:
    """Whether a function that the kernel knows no longer answers: all of its configuration space reads as ones."""
    try:
        return read_config(files, address).gone
    except OSError:
        return False
