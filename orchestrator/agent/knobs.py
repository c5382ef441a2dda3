"""Knobs: what can be read and set of a machine, and the table of them.

A knob knows its items, how to read and write them, when two values mean the same, and what a person would type. What is done with
it, in which order and with which proof, is the same for all of them: :mod:`knob_look` and :mod:`tuning`.
"""

import importlib
import re
import time
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence

from orchestrator.agent.host_folder import HostFolder
from orchestrator.agent.kernel_files import KernelFiles, Reading
from orchestrator.agent.wire_host import KnobSetting

if TYPE_CHECKING:
    from orchestrator.agent.command import Output

Readings = Dict[str, Reading]
"""By item; the item is ``""`` where there is one only."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"
DRIVER_VERSION = "/sys/module/nvidia/version"


class AbsentError(Exception):
    """This machine has no such knob, or its driver does not let it be set; the message says why. No failure of ours."""


class UnreadableError(Exception):
    """It could not be asked here and now, so nobody can say; the message says why."""


class RefusedError(Exception):
    """A write was refused by other than the kernel; the message holds its words."""


class UnsuitableError(Exception):
    """The setting itself makes no sense, such as a name that no sysctl can have."""


class Machine:
    """What a knob looks at: the kernel's files, other programs, and what we keep on the host."""

    def __init__(self, files: KernelFiles, folder: HostFolder) -> None:
        self.files = files
        self.folder = folder
        self.stuck: Dict[str, str] = {}
        """What did not answer in time, and how that was told: a program, a device. It is not asked again, since each wait adds up."""

    def run(self, argv: Sequence[str], seconds: float) -> "Output":
        """Run a program, for `seconds` at most; one that did not end before is not started again."""
        from orchestrator.agent.command import Output, run_bounded

        program = argv[0]
        if program in self.stuck:
            return Output(None, "", self.stuck[program])
        began = time.monotonic()
        output = run_bounded(argv, seconds)
        if output.status is None and time.monotonic() - began >= seconds:
            self.stuck[program] = output.errors
        return output

    def boot_id(self) -> str:
        """Of this boot of the kernel; empty where it can't be read."""
        return self.files.text(BOOT_ID) or ""


class Knob:
    """One knob, as one setting of a profile asks for it. A new kind overrides what differs.

    Values are text, as the kernel or nvidia-smi shows them.
    """

    source = ""
    """Where the values are read: a path (with ``*`` for items) or a command."""
    container_shows = True
    """Whether a container shows the host's values."""
    namespaced = False
    """Whether a container has one of its own, so that setting it there is nobody else's business."""
    told: Optional[str] = None
    """For a knob that is never set while the machine runs: what has to be restarted after the commands."""
    disturbs = False
    """Whether setting it may set other knobs as well."""

    def __init__(self, setting: KnobSetting) -> None:
        self.setting = setting

    def read(self, machine: Machine) -> Readings:
        """All items.

        Raises:
            AbsentError: this machine has no such knob.
            UnreadableError: what would have to say it did not.
        """
        raise NotImplementedError

    def equal(self, found: str, wanted: str) -> bool:
        """Whether two values mean the same."""
        return same_words(found, wanted)

    def original(self, found: str) -> str:
        """What a revert writes, had `found` been there before our first write."""
        return found

    def unsuitable(self, wanted: str) -> Optional[str]:
        """Why no machine at all could take the value `wanted`; None for one that may be right."""
        return None

    def obstacle(self, machine: Machine, item: str, wanted: str) -> Optional[str]:
        """Why there is no use in writing `wanted` here, where that can be known without trying."""
        return None

    def write(self, machine: Machine, item: str, value: str) -> None:
        """Set one item. Whether it did is found by reading.

        Raises:
            OSError: the kernel refuses.
            AbsentError: the driver does not let it be set as things are.
            RefusedError: something else refuses.
        """
        raise NotImplementedError

    def write_all(self, machine: Machine, wanted: Dict[str, str]) -> Dict[str, Exception]:
        """Set several items, and return what :meth:`write` raised for each."""
        problems: Dict[str, Exception] = {}
        for item, value in wanted.items():
            try:
                self.write(machine, item, value)
            except (OSError, AbsentError, RefusedError) as error:
                problems[item] = error
        return problems

    def commands(self, wanted: Dict[str, str]) -> List[str]:
        """What a person would type on the machine to set these items."""
        raise NotImplementedError

    def remark(self, values: Dict[str, str]) -> str:
        """What one has to know to read these values; empty where they speak for themselves."""
        return ""


class Entry(NamedTuple):
    """Where a kind of knob is defined. The module is imported only when a profile has such a knob."""

    module: str
    name: str


KNOBS: Dict[str, Entry] = {
    "tuned_profile": Entry("knob_tuned", "TunedProfile"),
    "module_parameter": Entry("knob_files", "ModuleParameter"),
    "gpu_persistence_mode": Entry("knob_nvidia", "PersistenceMode"),
    "gpu_power_limit": Entry("knob_nvidia", "PowerLimit"),
    "gpu_clocks": Entry("knob_nvidia", "Clocks"),
    "pcie_max_read_request": Entry("knob_pci", "MaxReadRequest"),
    "cpu_governor": Entry("knob_files", "CpuGovernor"),
    "cpu_energy_preference": Entry("knob_files", "CpuEnergyPreference"),
    "cpu_resume_latency": Entry("knob_files", "CpuResumeLatency"),
    "transparent_hugepage": Entry("knob_files", "TransparentHugepage"),
    "sysctl": Entry("knob_files", "Sysctl"),
}
"""The kinds, in the order in which they are written.

tuned sets others. Without persistence mode the driver forgets limits and clocks as soon as nobody uses the GPU. The governor
decides whether an energy preference may be set.
"""

WRITE_ORDER = {kind: position for position, kind in enumerate(KNOBS)}


def make_knob(setting: KnobSetting) -> Knob:
    """The knob that a setting is about.

    Raises:
        UnsuitableError: this agent knows no such kind, or the setting makes no sense.
    """
    entry = KNOBS.get(setting.kind)
    if entry is None:
        raise UnsuitableError(f"this agent knows no knob {setting.kind!r}; it knows {', '.join(sorted(KNOBS))}")
    knob: Knob = getattr(importlib.import_module("orchestrator.agent." + entry.module), entry.name)(setting)
    reason = None if setting.value is None else knob.unsuitable(setting.value)
    if reason:
        raise UnsuitableError(reason)
    return knob


def same_words(found: str, wanted: str) -> bool:
    """Equal but for white space and the way of writing numbers (``600`` and ``600.00``, tabs and spaces between several)."""
    one, other = found.split(), wanted.split()
    return len(one) == len(other) and all(a == b or _same_number(a, b) for a, b in zip(one, other))  # noqa: B905 - Python 3.9


def _same_number(one: str, other: str) -> bool:
    return bool(re.match(_NUMBER, one) and re.match(_NUMBER, other)) and float(one) == float(other)


_NUMBER = r"-?[0-9]+(\.[0-9]+)?\Z"


def shell_word(text: str) -> str:
    """`text` as one word of a shell's command line."""
    return text if re.match(r"[\w.,:/=+-]+\Z", text) else "'" + text.replace("'", "'\\''") + "'"
