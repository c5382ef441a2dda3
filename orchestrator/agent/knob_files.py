"""Knobs that are files of the kernel: sysctls, CPU frequency and idle states, huge pages, module parameters."""

import errno
import os
import re
from typing import Dict, List, Optional

from orchestrator.agent.kernel_files import KernelFiles, Reading
from orchestrator.agent.knobs import AbsentError, Knob, Machine, Readings, UnsuitableError, shell_word
from orchestrator.agent.wire_host import KnobSetting

_ABSENT_SYSCTLS = {"kernel.numa_balancing": "this kernel was built without CONFIG_NUMA_BALANCING"}
_POLICY = "/sys/devices/system/cpu/cpufreq/policy*"


class FileKnob(Knob):
    """One file, or a file of the same name in each of several folders: then one part of `source` has a ``*`` and names the items."""

    absent = ""
    """What it means that there is no such file."""

    def read(self, machine: Machine) -> Readings:
        readings = {item: self._read_item(machine.files, item) for item in self._items(machine.files)}
        if all(reading.error_number in (errno.ENOENT, errno.ENOTDIR) for reading in readings.values()):
            raise AbsentError(f"there is no {self.source}: {self.absent}")
        return readings

    def value(self, text: str) -> str:
        """The value in what the file shows."""
        return text

    def write(self, machine: Machine, item: str, value: str) -> None:
        machine.files.write(self.path(item), value)

    def commands(self, wanted: Dict[str, str]) -> List[str]:
        values = set(wanted.values())
        if len(values) == 1:
            return [f"echo {shell_word(values.pop())} | tee {self.source}"]
        return [f"echo {shell_word(value)} | tee {self.path(item)}" for item, value in wanted.items()]

    def path(self, item: str, name: Optional[str] = None) -> str:
        """The file of an item, or the one called `name` beside it."""
        path = "/".join(item if "*" in part else part for part in self.source.split("/"))
        return path if name is None else os.path.join(os.path.dirname(path), name)

    def _items(self, files: KernelFiles) -> List[str]:
        parts = self.source.split("/")
        starred = [position for position, part in enumerate(parts) if "*" in part]
        if not starred:
            return [""]
        return [os.path.basename(folder) for folder in files.glob("/".join(parts[: starred[0] + 1]))]

    def _read_item(self, files: KernelFiles, item: str) -> Reading:
        reading = files.read(self.path(item))
        return reading if reading.value is None else reading._replace(value=self.value(reading.value))


_OF_NAMESPACES = re.compile(r"net\.|user\.|fs\.mqueue\.|kernel\.(shm|msg|sem\b|sem_|hostname|domainname|ns_last_pid)")
"""Sysctls of which a container has its own (net, user, ipc, uts and pid namespaces)."""


class Sysctl(FileKnob):
    """A file below /proc/sys, by its name as sysctl(8) takes it."""

    def __init__(self, setting: KnobSetting) -> None:
        super().__init__(setting)
        words = sysctl_words(setting.name)
        self.source = "/proc/sys/" + "/".join(words)
        self.namespaced = bool(_OF_NAMESPACES.match(".".join(words)))
        self.container_shows = not self.namespaced
        self.absent = _ABSENT_SYSCTLS.get(setting.name, "this kernel has no such sysctl")

    def commands(self, wanted: Dict[str, str]) -> List[str]:
        return [f"sysctl -w {shell_word(f'{self.setting.name}={value}')}" for value in wanted.values()]


def sysctl_words(name: str) -> List[str]:
    """The folders and the file of a sysctl. The separator that comes first in its name is the one that counts (sysctl(8)).

    Raises:
        UnsuitableError: no sysctl can be called so.
    """
    first = re.search(r"[./]", name)
    if first is not None and first.group() == ".":
        name = name.translate({ord("."): "/", ord("/"): "."})
    words = name.split("/")
    if first is None or any(word in ("", ".", "..") or not re.match(r"[\w.:@-]+\Z", word) for word in words):
        raise UnsuitableError(f"{name!r} is no name of a sysctl")
    return words


class CpuGovernor(FileKnob):
    """The cpufreq governor of every policy."""

    source = f"{_POLICY}/scaling_governor"
    absent = "no cpufreq driver is loaded (a virtual machine, or a firmware that keeps the frequencies to itself)"

    def obstacle(self, machine: Machine, item: str, wanted: str) -> Optional[str]:
        return _not_offered(machine, self.path(item, "scaling_available_governors"), wanted)


class CpuEnergyPreference(FileKnob):
    """The energy performance preference (EPP) of every policy."""

    source = f"{_POLICY}/energy_performance_preference"
    absent = "the cpufreq driver here has no energy preference"

    def obstacle(self, machine: Machine, item: str, wanted: str) -> Optional[str]:
        if wanted.isdigit():  # the register's own value, which the list does not name
            return None
        return _not_offered(machine, self.path(item, "energy_performance_available_preferences"), wanted)

    def write(self, machine: Machine, item: str, value: str) -> None:
        try:
            super().write(machine, item, value)
        except OSError as error:
            # intel_pstate.c and amd-pstate.c alike: the governor's own choice would override it.
            if error.errno != errno.EBUSY:
                raise
            governor = machine.files.text(self.path(item, "scaling_governor"))
            raise AbsentError(f"the driver refuses (EBUSY): it keeps its own preference while the governor is {governor}") from None


class CpuResumeLatency(FileKnob):
    """How long, in microseconds, each CPU may take to wake from an idle state (PM QoS, drivers/base/power/sysfs.c)."""

    source = "/sys/devices/system/cpu/cpu[0-9]*/power/pm_qos_resume_latency_us"
    absent = "this kernel was built without CONFIG_PM"

    def remark(self, values: Dict[str, str]) -> str:
        meanings = {"0": "0 means no limit", "n/a": "n/a means no latency at all: the CPU only polls"}
        return "; ".join(meaning for value, meaning in meanings.items() if value in values.values())


class TransparentHugepage(FileKnob):
    """Which memory gets huge pages without being asked for: the word in brackets."""

    source = "/sys/kernel/mm/transparent_hugepage/enabled"
    absent = "this kernel was built without CONFIG_TRANSPARENT_HUGEPAGE"

    def value(self, text: str) -> str:
        chosen = re.search(r"\[(\S+)\]", text)
        return chosen.group(1) if chosen else text

    def obstacle(self, machine: Machine, item: str, wanted: str) -> Optional[str]:
        return _not_offered(machine, self.source, wanted)


class ModuleParameter(FileKnob):
    """A parameter that a kernel module takes when it is loaded, called ``module.parameter``. Checked and told, never set."""

    def __init__(self, setting: KnobSetting) -> None:
        super().__init__(setting)
        module, _, self._parameter = setting.name.partition(".")
        if not re.match(r"\w[\w-]*\.\w+\Z", setting.name):
            raise UnsuitableError(f"{setting.name!r} is no module.parameter")
        self._module = module.replace("-", "_")
        self.source = f"/sys/module/{self._module}/parameters/{self._parameter}"
        self.told = (
            f"a module takes it only when it is loaded: type the line, run `update-initramfs -u` if the module is in the initramfs, then "
            f"reboot (or `rmmod {self._module}` and `modprobe {self._module}` while nothing uses it, here and in every container)"
        )

    def read(self, machine: Machine) -> Readings:
        if not machine.files.exists(f"/sys/module/{self._module}"):
            raise AbsentError(f"the module {self._module} is not loaded")
        self.absent = f"the module {self._module} has no such parameter, or hides it"
        return super().read(machine)

    def equal(self, found: str, wanted: str) -> bool:
        yes, no = ("y", "1", "on"), ("n", "0", "off")  # kstrtobool of lib/kstrtox.c; a bool is shown as Y or N
        if found in ("Y", "N"):
            return wanted.lower() in (yes if found == "Y" else no)
        return super().equal(found, wanted)

    def commands(self, wanted: Dict[str, str]) -> List[str]:
        line = f"options {self._module} {self._parameter}={wanted['']}"
        return [f"echo {shell_word(line)} | tee /etc/modprobe.d/{self._module}-{self._parameter}.conf"]


def _not_offered(machine: Machine, path: str, wanted: str) -> Optional[str]:
    """Why a value can't be written, where the kernel names in a file beside it those that can."""
    offered = (machine.files.text(path) or "").replace("[", "").replace("]", "").split()
    return f"{path} offers {', '.join(offered)}, not {wanted}" if offered and wanted not in offered else None
