"""The memory bandwidth of a GPU by the driver's name for it, with where the figure is published. Pure.

A row is confirmed where the figure is NVIDIA's own, as public sources quoted it in November 2026: a document of NVIDIA's, or software of
NVIDIA's that quotes one, which are TensorRT-LLM 0.x (``tensorrt_llm/auto_parallel/cluster_info.py``) and aiconfigurator
(``systems/*.yaml``). A row that is not says so wherever a floor is made of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Bandwidth:
    """Of one GPU's memory. `name` is a part of the driver's name for it, in whole words.

    Attributes:
        source: the document's title and year, or number.
        confirmed: whether it is known to be NVIDIA's figure.
        remark: what NVIDIA says elsewhere, where that is another figure.
    """

    name: str
    gigabytes_per_second: float
    source: str
    confirmed: bool = True
    remark: str = ""

    @property
    def told(self) -> str:
        """The source for the screen, with what weakens it."""
        doubt = "" if self.confirmed else " (not confirmed by NVIDIA)"
        return f"{self.source}{doubt}{f'; {self.remark}' if self.remark else ''}"


_A100 = "NVIDIA's A100 data sheet (1758950 r4, June 2021)"
_RTX = "NVIDIA's RTX Blackwell GPU architecture white paper, table 3 (2025)"
_RTX_PRO = "NVIDIA's RTX Blackwell PRO GPU architecture white paper 1.0, table 4 (2025)"
_BLACKWELL = "NVIDIA's Blackwell data sheet (3384703), by aiconfigurator (2026)"
_GH200 = "press reports of August 2023"

BANDWIDTHS = (
    Bandwidth(
        "RTX PRO 6000 Blackwell Server",
        1597.0,
        "NVIDIA's RTX PRO 6000 Blackwell Server Edition data sheet (December 2025)",
        remark="NVIDIA's aiconfigurator (2026) takes the workstation's 1792 GB/s for it",
    ),
    Bandwidth("RTX PRO 6000 Blackwell", 1792.0, _RTX_PRO),
    Bandwidth("GB300", 8000.0, "Inside NVIDIA Blackwell Ultra, NVIDIA's technical blog (August 2025)"),
    Bandwidth("GB200", 8000.0, _BLACKWELL),
    Bandwidth(
        "B300",
        7750.0,
        "NVIDIA's Blackwell Ultra data sheet, by aiconfigurator (2026): 62 TB/s for eight",
        remark="NVIDIA's HGX AI Factory reference architecture (2026) says up to 8000 GB/s",
    ),
    # 7680 bits at 3996 MHz by its driver are 7672 GB/s; the DGX B200's sheet rounds eight of them to 64 TB/s.
    Bandwidth("B200", 7700.0, _BLACKWELL, remark="NVIDIA's DGX B200 data sheet says 64 TB/s for eight"),
    Bandwidth("GH200 480GB", 4000.0, _GH200, confirmed=False),
    Bandwidth("GH200", 4900.0, _GH200, confirmed=False),
    Bandwidth("H200", 4800.0, "NVIDIA's H200 data sheet (3002446, November 2023)"),
    Bandwidth("H100 NVL", 3938.0, "NVIDIA's H100 NVL product brief, PB-11773-001 (March 2024)"),
    Bandwidth("H100 PCIe", 2000.0, "NVIDIA's H100 PCIe product brief, PB-11133-001 (November 2022), which says more than that"),
    Bandwidth("H100 80GB HBM3", 3350.0, "NVIDIA's H100 data sheet (3440270, September 2024)"),
    Bandwidth("H20-3e", 4917.0, "NVIDIA's aiconfigurator (2025), which names no document"),
    Bandwidth("H20", 4000.0, "NVIDIA's TensorRT-LLM 0.x, which names no document"),
    Bandwidth("A100-SXM4-80GB", 2039.0, _A100),
    Bandwidth("A100 80GB PCIe", 1935.0, _A100),
    Bandwidth("A100", 1555.0, _A100),
    Bandwidth("L40S", 864.0, "NVIDIA's L40S data sheet (28413), by TensorRT-LLM 0.x"),
    Bandwidth("L40", 864.0, "NVIDIA's L40 data sheet, by TensorRT-LLM 0.x"),
    Bandwidth("L4", 300.0, "NVIDIA's L4 data sheet (2595652), by TensorRT-LLM 0.x"),
    Bandwidth("RTX 6000 Ada", 960.0, _RTX_PRO),
    Bandwidth("RTX 5090", 1792.0, _RTX),
    Bandwidth("RTX 4090", 1008.0, _RTX),
)
"""The first whose name is part of the driver's counts, so longer names come first. ``floor:`` of a service's file goes before it."""

_ANOTHER = re.compile(r"\bLaptop\b|\bMIG\b")
"""In the driver's name: a GPU of less bandwidth than the one that it is named after, or a part of one."""


def published_bandwidth(gpu_name: str) -> Bandwidth | None:
    """The row of a GPU by the driver's name for it (``NVIDIA H100 80GB HBM3``); None where there is none."""
    if _ANOTHER.search(gpu_name):
        return None
    return next((row for row in BANDWIDTHS if re.search(rf"(?<!\w){re.escape(row.name)}(?!\w)", gpu_name)), None)
