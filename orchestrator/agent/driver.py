"""Versions of the kernel and of the NVIDIA kernel module, as files tell them: cheap enough to be kept with every verified launch."""

import re
from typing import List

from orchestrator.agent.kernel_files import KernelFiles, Reading
from orchestrator.agent.wire import Fact

KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
"""What ``uname -r`` prints."""
KERNEL = "kernel"
DRIVER = "driver"
"""Names of the facts that are kept with a verified launch (:func:`kept_facts`)."""

VERSION = re.compile(r"\b(\d{3,4}\.\d+(?:\.\d+)?)\b")
"""A version of NVIDIA's driver: 580.159.04, 535.54."""

_MODULE_VERSIONS = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")


def module_version(files: KernelFiles) -> Reading:
    """The version of the loaded kernel module, whole: a difference in the last part alone was seen to break P2P."""
    for path in _MODULE_VERSIONS:
        found = VERSION.search(files.text(path) or "")
        if found is not None:
            return Reading(found.group(1), path)
    return Reading(None, _MODULE_VERSIONS[0], "the NVIDIA kernel module is not loaded")


def is_loaded(files: KernelFiles) -> bool:
    """Whether the NVIDIA kernel module is loaded, whatever its version reads like."""
    return any(map(files.exists, (*_MODULE_VERSIONS, "/sys/module/nvidia")))


def kept_facts(files: KernelFiles) -> List[Fact]:
    """Kernel and driver as they are now, to be compared with when they have changed."""
    module = module_version(files)
    return [Fact(KERNEL, files.text(KERNEL_RELEASE), KERNEL_RELEASE), Fact(DRIVER, module.value, module.source)]
