"""PCI functions as files: what the kernel shows of them under /sys, configuration space included; setpci and ``lspci -vvv`` read it.

Eight NVIDIA GPUs below two PCIe switches: root port, the switch's upstream port, its four downstream ports, and at each of them a
GPU with its audio function, as in a server with two Broadcom switches. Offsets and bits are those of pciutils' lib/header.h.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

EXPRESS = 0x60
"""Where the PCI Express capability lies in all of these functions."""
DEVICE_CONTROL = EXPRESS + 0x08
LINK_CONTROL = EXPRESS + 0x10
ACCESS_CONTROL = 0x100
"""Where the bridges' ACS capability lies; its control word is 6 bytes on."""
RESIZABLE_BAR = 0x100
"""Where the GPUs' Resizable BAR capability lies; its control word is 8 bytes on."""

MAX_READ_REQUEST_512 = 0x2930
"""A GPU's Device Control after a boot: MaxReadReq 512, MaxPayload 256, relaxed ordering and no snoop as Linux leaves them."""

_ENDPOINT, _ROOT_PORT, _UPSTREAM_PORT, _DOWNSTREAM_PORT = 0, 4, 5, 6
_GEN5_X16 = 5 | 16 << 4
_ASPM_L1_SUPPORTED = 2 << 10
_ACS_ALL = 0x1F
_ACS_REDIRECT = 0x1D
_BAR_128_GIB = 17
_SPEED = "32.0 GT/s PCIe"

SWITCHES = (0x3E, 0xBE)
"""The bus of the root port above each switch. The GPUs are on the fourth bus from there on: 0x41 to 0x44, 0xc1 to 0xc4."""
GPUS = tuple(f"0000:{bus + 3 + slot:02x}:00.0" for bus in SWITCHES for slot in range(4))
"""PCI addresses of the GPUs."""
BRIDGES = tuple(
    address for bus in SWITCHES for address in (f"0000:{bus:02x}:01.0", *(f"0000:{bus + 2:02x}:{slot:02x}.0" for slot in range(4)))
)
"""PCI addresses of the bridges that have ACS: root ports and downstream ports."""


@dataclass(frozen=True)
class Function:
    """One PCI function. `parents` are the folders above it, from ``pci0000:3e`` on; `buses` is (primary, secondary, last) of a bridge."""

    address: str
    parents: tuple[str, ...]
    ids: tuple[int, int]
    class_code: int
    port: int
    node: int
    buses: tuple[int, int, int] | None = None
    device_control: int = MAX_READ_REQUEST_512
    files: dict[str, str] = field(default_factory=dict)

    def config(self) -> bytes:
        """4096 bytes of configuration space."""
        space = bytearray(4096)
        struct.pack_into("<HHHH", space, 0, *self.ids, 0x0406, 0x0010)
        struct.pack_into("<I", space, 0x08, self.class_code << 8 | 0xA1)
        space[0x34] = EXPRESS
        if self.buses:
            space[0x0E] = 1
            space[0x18:0x1B] = bytes(self.buses)
        self._express(space)
        if self.port in (_ROOT_PORT, _DOWNSTREAM_PORT):
            struct.pack_into("<IHH", space, ACCESS_CONTROL, 1 << 16 | 0x0D, _ACS_ALL, _ACS_REDIRECT)
        if self.class_code == 0x030200:
            sizes = sum(1 << bit for bit in range(10, 22))
            struct.pack_into("<III", space, RESIZABLE_BAR, 1 << 16 | 0x15, sizes, _BAR_128_GIB << 8 | 1 << 5 | 1)
        return bytes(space)

    def _express(self, space: bytearray) -> None:
        flags = 2 | self.port << 4
        struct.pack_into("<BBHI", space, EXPRESS, 0x10, 0, flags, 0x10008001 if self.port == _ENDPOINT else 0x8001)
        struct.pack_into("<HHI", space, DEVICE_CONTROL, self.device_control, 0, _GEN5_X16 | _ASPM_L1_SUPPORTED)
        struct.pack_into("<HH", space, LINK_CONTROL, 0x0040, _GEN5_X16)
        struct.pack_into("<IHH", space, EXPRESS + 0x2C, 0x3E, 5, 0)


def write_functions(sys_folder: Path) -> None:
    """Write devices/pci* and bus/pci/devices below `sys_folder`."""
    links = sys_folder / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    for function in functions():
        folder = sys_folder.joinpath("devices", *function.parents, function.address)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config").write_bytes(function.config())
        for name, text in {**_attributes(function), **function.files}.items():
            (folder / name).write_text(text + "\n", encoding="utf-8")
        (links / function.address).symlink_to(os.path.relpath(folder, links))


def functions() -> Iterator[Function]:
    """All of them, bridges before what is below them."""
    for node, bus in enumerate(SWITCHES):
        yield from _below_root_port(bus, node)


def _below_root_port(bus: int, node: int) -> Iterator[Function]:
    last = bus + 6
    root, upstream = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
    above: tuple[str, ...] = (f"pci0000:{bus:02x}",)
    yield Function(root, above, (0x1022, 0x14AB), 0x060400, _ROOT_PORT, node, (bus, bus + 1, last))
    above = (*above, root)
    yield Function(upstream, above, (0x1000, 0xC040), 0x060400, _UPSTREAM_PORT, node, (bus + 1, bus + 2, last), 0x0930)
    above = (*above, upstream)
    for slot in range(4):
        port, gpu_bus = f"0000:{bus + 2:02x}:{slot:02x}.0", bus + 3 + slot
        yield Function(port, above, (0x1000, 0xC040), 0x060400, _DOWNSTREAM_PORT, node, (bus + 2, gpu_bus, gpu_bus), 0x0930)
        gpu = f"0000:{gpu_bus:02x}:00"
        yield Function(f"{gpu}.0", (*above, port), (0x10DE, 0x2BB1), 0x030200, _ENDPOINT, node, files={"resource": _gpu_regions(gpu_bus)})
        yield Function(f"{gpu}.1", (*above, port), (0x10DE, 0x22E8), 0x040300, _ENDPOINT, node)


def _attributes(function: Function) -> dict[str, str]:
    return {
        "vendor": f"0x{function.ids[0]:04x}",
        "device": f"0x{function.ids[1]:04x}",
        "class": f"0x{function.class_code:06x}",
        "irq": "0",
        "numa_node": str(function.node),
        "local_cpulist": "0-1" if function.node == 0 else "2-3",
        "current_link_speed": _SPEED,
        "max_link_speed": _SPEED,
        "current_link_width": "16",
        "max_link_width": "16",
        "resource": "\n".join([_NO_REGION] * 7),
    }


_NO_REGION = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


def _gpu_regions(bus: int) -> str:
    """Region 0 of 64 MiB, region 1 of 128 GiB."""
    first, second = bus << 24, bus << 40
    regions = [
        f"0x{first:016x} 0x{first + (64 << 20) - 1:016x} 0x0000000000040200",
        f"0x{second:016x} 0x{second + (128 << 30) - 1:016x} 0x000000000014220c",
    ]
    return "\n".join(regions + [_NO_REGION] * 5)
