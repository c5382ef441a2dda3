"""Knobs of NVIDIA's driver, read and set by nvidia-smi. A hung driver hangs nvidia-smi too, so it is bounded, and not asked twice then.

An unknown field fails a whole query (status 2), so no query holds a field that it can do without.
"""

import re
from typing import Any, Dict, List, Optional

from orchestrator.agent.host_folder import KeptError
from orchestrator.agent.kernel_files import Reading
from orchestrator.agent.knobs import (
    DRIVER_VERSION,
    AbsentError,
    Knob,
    Machine,
    Readings,
    RefusedError,
    UnreadableError,
    same_words,
    shell_word,
)

SECONDS = 20.0
"""Without persistence mode nvidia-smi wakes every GPU first: several seconds for eight."""

UNLOCKED = "default"
"""The value of clocks that are not locked."""
UNKNOWN = "unknown"

_SAID_LETTERS = 200


class SmiKnob(Knob):
    """One field of ``nvidia-smi --query-gpu`` for each GPU. Items are PCI addresses, as the kernel writes them."""

    field = ""

    def __init__(self, setting: Any) -> None:
        super().__init__(setting)
        self.source = f"nvidia-smi --query-gpu=pci.bus_id,{self.field}"

    def read(self, machine: Machine) -> Readings:
        rows = query(machine, self.field)
        readings = {address: self._reading(value) for address, value in rows.items()}
        if all((reading.problem or "").startswith(_NOT_SUPPORTED) for reading in readings.values()):
            raise AbsentError(f"no GPU here lets {self.field} be read or set")
        return readings

    def write_all(self, machine: Machine, wanted: Dict[str, str]) -> Dict[str, Exception]:
        problems: Dict[str, Exception] = {}
        for value, items in _by_value(wanted).items():  # one call for all: without persistence mode each takes seconds
            try:
                self.write(machine, ",".join(items), value)
            except RefusedError as error:
                problems.update(dict.fromkeys(items, error))
        return problems

    def write(self, machine: Machine, item: str, value: str) -> None:
        output = machine.run(["nvidia-smi", "-i", item, *self.options(value)], SECONDS)
        if not output.good:
            raise RefusedError(f"nvidia-smi: {_said(output)}")

    def options(self, value: str) -> List[str]:
        """What nvidia-smi is told to set a value."""
        raise NotImplementedError

    def commands(self, wanted: Dict[str, str]) -> List[str]:
        groups = _by_value(wanted).items()
        return [" ".join(["nvidia-smi", *_selecting(items), *map(shell_word, self.options(value))]) for value, items in groups]

    def _reading(self, value: str) -> Reading:
        if value.strip("[]").lower() in ("n/a", "not supported"):
            return Reading(None, self.source, f"{_NOT_SUPPORTED} ({value})")
        if value.startswith("["):  # [Unknown Error], [GPU requires reset], [Insufficient Permissions]
            return Reading(None, self.source, value)
        return Reading(value, self.source)


_NOT_SUPPORTED = "this GPU does not support it"


class PersistenceMode(SmiKnob):
    """Whether the driver keeps a GPU awake, and its settings, while nobody uses it: Enabled or Disabled."""

    field = "persistence_mode"

    def equal(self, found: str, wanted: str) -> bool:
        return found.lower() == wanted.lower()

    def unsuitable(self, wanted: str) -> Optional[str]:
        return None if wanted.lower() in ("enabled", "disabled") else f"persistence mode is Enabled or Disabled, not {wanted}"

    def options(self, value: str) -> List[str]:
        return ["-pm", "1" if value.lower() == "enabled" else "0"]


class PowerLimit(SmiKnob):
    """The software power limit of each GPU, in watts."""

    field = "power.limit"
    _limits: Optional[Dict[str, str]] = None

    def unsuitable(self, wanted: str) -> Optional[str]:
        return None if re.match(r"[0-9]+(\.[0-9]+)?\Z", wanted) else f"a power limit is a number of watts, not {wanted}"

    def obstacle(self, machine: Machine, item: str, wanted: str) -> Optional[str]:
        if self._limits is None:
            try:
                self._limits = query(machine, "power.min_limit,power.max_limit")
            except (AbsentError, UnreadableError):
                self._limits = {}
        try:
            least, most = (float(limit) for limit in self._limits.get(item, "").split(","))
        except ValueError:
            return None
        return None if least <= float(wanted) <= most else f"{item} takes {least:g} to {most:g} W, not {wanted} W"

    def options(self, value: str) -> List[str]:
        return ["-pl", value]


class Clocks(SmiKnob):
    """The lock on each GPU's graphics clock: ``MIN,MAX`` in MHz, or ``default`` for none.

    The driver has no way to ask for it (580), so what is shown is what this program set at this boot with this driver, else ``unknown``.
    """

    container_shows = False

    def __init__(self, setting: Any) -> None:
        super().__init__(setting)
        self.source = "what this program set at this boot (no driver shows a clock lock)"

    def read(self, machine: Machine) -> Readings:
        addresses = query(machine, "")
        try:
            kept = {address: machine.folder.setting(("gpu_clocks", "", address)) for address in addresses}
        except KeptError as error:
            raise UnreadableError(f"no driver shows a clock lock, and what this program set can't be read: {error}") from None
        now = _circumstances(machine)
        return {
            address: Reading(entry["value"] if isinstance(entry, dict) and {**entry, **now} == entry else UNKNOWN, self.source)
            for address, entry in kept.items()
        }

    def equal(self, found: str, wanted: str) -> bool:
        return same_words(found.replace(",", " "), wanted.replace(",", " "))

    def original(self, found: str) -> str:
        return UNLOCKED if found == UNKNOWN else found

    def unsuitable(self, wanted: str) -> Optional[str]:
        clocks = re.match(r"([0-9]+),([0-9]+)\Z", wanted.replace(" ", ""))
        if wanted == UNLOCKED or (clocks and int(clocks.group(1)) <= int(clocks.group(2))):
            return None
        return f"clocks are MIN,MAX in MHz or {UNLOCKED}, not {wanted}"

    def write_all(self, machine: Machine, wanted: Dict[str, str]) -> Dict[str, Exception]:
        # One by one: the status of each call is all that is ever learnt of it.
        return Knob.write_all(self, machine, wanted)

    def write(self, machine: Machine, item: str, value: str) -> None:
        super().write(machine, item, value)
        try:
            machine.folder.keep_setting(("gpu_clocks", "", item), {"value": value, **_circumstances(machine)})
        except KeptError as error:
            raise RefusedError(f"nvidia-smi took it, and it can't be noted, so nobody will know: {error}") from None

    def options(self, value: str) -> List[str]:
        return ["-rgc"] if value == UNLOCKED else ["-lgc", value.replace(" ", "")]

    def remark(self, values: Dict[str, str]) -> str:
        if UNKNOWN in values.values():
            return "no driver shows a clock lock, and this program set none since this boot"
        return "as this program set it, not read back: no driver shows a clock lock, and a GPU's reset or a reload of the driver ends it"


def query(machine: Machine, fields: str) -> Dict[str, str]:
    """What nvidia-smi says of `fields`, by the GPU's PCI address.

    Raises:
        AbsentError: there is no nvidia-smi, or its driver knows no such field.
        UnreadableError: it did not answer, or said that it can't.
    """
    names = ",".join(filter(None, ("pci.bus_id", fields)))
    output = machine.run(["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader,nounits"], SECONDS)
    if output.status is None and "nvidia-smi" not in machine.stuck:
        raise AbsentError(output.errors)
    if "is not a valid field to query" in output.text:
        raise AbsentError(f"nvidia-smi: {_said(output)}")
    rows = (line.partition(",") for line in output.text.splitlines())
    found = {kernel_address(address.strip()): value.strip() for address, _, value in rows if _BUS_ID.match(address.strip())}
    if not found:
        raise UnreadableError(f"nvidia-smi: {_said(output)}")
    return found


_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\Z")


def kernel_address(bus_id: str) -> str:
    """``00000000:C1:00.0``, as nvidia-smi writes it, as the kernel does: ``0000:c1:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"


def _selecting(items: List[str]) -> List[str]:
    return ["-i", ",".join(items)] if any(items) else []


def _by_value(wanted: Dict[str, str]) -> Dict[str, List[str]]:
    groups: Dict[str, List[str]] = {}
    for item, value in wanted.items():
        groups.setdefault(value, []).append(item)
    return groups


def _circumstances(machine: Machine) -> Dict[str, str]:
    """What a clock lock does not outlive."""
    return {"boot_id": machine.boot_id(), "driver": machine.files.text(DRIVER_VERSION) or ""}


def _said(output: Any) -> str:
    lines = [line.strip() for line in (output.errors + "\n" + output.text).splitlines() if line.strip()]
    return " / ".join(lines)[:_SAID_LETTERS] or f"no answer, status {output.status}"
