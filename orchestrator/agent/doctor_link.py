"""The PCIe links of the GPUs: width, what the slot allows, and errors counted on the way up.

Speed is judged under load only: an idle GPU lowers it. What the slot's port can do at most is fixed, and is judged.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.kernel_log import read_kernel_log
from orchestrator.agent.pci import DEVICES, bridges_above, is_gone
from orchestrator.agent.wire import Outcome, Verdict

WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""Lanes that a link can have; a device that is gone reads as 63 (all ones in the register's six bits), a link that is down as 0."""

MANY_CORRECTED = 100
"""Of one function since boot. The hardware repeats what was damaged; a few come with the training of most links."""

_WIDTH_SOURCE = f"{DEVICES}/*/{{current,max}}_link_{{width,speed}}"
_COUNTERS = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
_TOTALS = ("TOTAL_ERR_COR", "TOTAL_ERR_NONFATAL", "TOTAL_ERR_FATAL")
_NAMES = ("corrected", "non-fatal", "fatal")
_SURPRISE = "SDES"
"""Surprise Down Error Status, as the counter is called (drivers/pci/pcie/aer.c)."""
_SHOWN_LINES = 6


class Link(NamedTuple):
    """One link as its lower end sees it; None where the kernel doesn't tell. Speeds in GT/s."""

    address: str
    width: Optional[int]
    max_width: Optional[int]
    speed: Optional[float]
    max_speed: Optional[float]
    slot_width: Optional[int] = None
    slot_speed: Optional[float] = None
    """What the port above can do at most, None where that is not a real port's (a virtual machine's)."""


def read_link(files: KernelFiles, address: str) -> Link:
    """The link of one function, with the limits of the port above it."""
    folder = f"{DEVICES}/{address}"
    width, speed = _lanes(files, folder, "current"), _speed(files, folder, "current")
    link = Link(address, width, _lanes(files, folder, "max"), speed, _speed(files, folder, "max"))
    above = bridges_above(files, address)[:1]
    if not above:
        return link
    slot_width, slot_speed = _lanes(files, f"{DEVICES}/{above[0]}", "max"), _speed(files, f"{DEVICES}/{above[0]}", "max")
    below_what_runs = (slot_width or 0) < (width or 0) or (slot_speed or 0.0) < (speed or 0.0)
    return link if below_what_runs else link._replace(slot_width=slot_width, slot_speed=slot_speed)


def check_links(context: Context) -> List[Verdict]:
    """Widths and slots of all GPUs that are on the bus (those that are not are told of elsewhere), and errors on the way to them."""
    found = [read_link(context.files, address) for address in context.gpus if not is_gone(context.files, address)]
    return [*(judge(found) if found else []), *errors(context)]


def judge(found: Sequence[Link]) -> List[Verdict]:
    """Pure: one line for what is broken, one for what is narrow, one for slow slots, or one for all being well."""
    untold = [link for link in found if link.width is None or link.max_width is None]
    down = [link for link in found if link.width is not None and link.width not in WIDTHS]
    narrow = [link for link in found if link.width in WIDTHS and link.max_width in WIDTHS and (link.width or 0) < (link.max_width or 0)]
    slow = [link for link in found if link.slot_speed is not None and link.max_speed is not None and link.slot_speed < link.max_speed]
    verdicts = [*_down(down), *_narrow(narrow), *_slow(slow)]
    if untold:
        detail = f"link width of {_named(untold)} is not told"
        step = f"lspci -vv -s {untold[0].address} | grep -E 'LnkCap|LnkSta', as root on the host"
        verdicts.append(Verdict("pcie_link", Outcome.UNKNOWN, detail, [], step, _WIDTH_SOURCE))
    return verdicts or [_well(found)]


def _down(down: Sequence[Link]) -> List[Verdict]:
    if not down:
        return []
    detail = f"the link of {_named(down)} is down"
    evidence = [f"{link.address}: width {link.width}" for link in down]
    step = "on the host: dmesg | grep -E 'AER|NVRM|pciehp'; reboot; if it comes again: seating, riser, power"
    return [Verdict("pcie_link", Outcome.REFUSE, detail, evidence, step, _WIDTH_SOURCE)]


def _narrow(narrow: Sequence[Link]) -> List[Verdict]:
    if not narrow:
        return []
    evidence = [_width_line(link) for link in narrow]
    by_slot = all(link.slot_width is not None and link.slot_width <= (link.width or 0) for link in narrow)
    detail = f"{len(narrow)} GPU(s) run on fewer lanes than they have: tensor parallel decode waits for the narrowest link"
    step = "reseat the card and its riser; look at the slot's bifurcation in the firmware's settings"
    if by_slot:
        step = "the slots have no more lanes: move the cards, or change the slots' bifurcation in the firmware's settings"
    return [Verdict("pcie_link", Outcome.WARN, detail, evidence, step, _WIDTH_SOURCE)]


def _width_line(link: Link) -> str:
    slot = f", the slot has x{link.slot_width}" if link.slot_width is not None else ""
    return f"{link.address}: x{link.width} of x{link.max_width}{slot}"


def _slow(slow: Sequence[Link]) -> List[Verdict]:
    if not slow:
        return []
    evidence = [f"{link.address}: the slot does {link.slot_speed:g} GT/s, the GPU {link.max_speed:g}" for link in slow]
    detail = f"the slots of {len(slow)} GPU(s) are slower than the GPUs"
    step = "look for the slot's speed in the firmware's settings (Auto or the highest); else it is the board's limit"
    return [Verdict("pcie_slot", Outcome.WARN, detail, evidence, step, _WIDTH_SOURCE)]


def _well(found: Sequence[Link]) -> Verdict:
    widths = ", ".join(sorted({f"x{link.width}" for link in found}))
    speeds = sorted({link.speed for link in found if link.speed is not None})
    now = f"; now {', '.join(f'{speed:g}' for speed in speeds)} GT/s, to be judged under load only" if speeds else ""
    return Verdict("pcie_link", Outcome.PASS, f"{len(found)} GPU(s) run on all their lanes ({widths}){now}", source=_WIDTH_SOURCE)


def errors(context: Context) -> List[Verdict]:
    """PCIe errors that were counted since boot by the GPUs and the ports above them; the newest messages where the log can be read."""
    addresses = list(dict.fromkeys(item for gpu in context.gpus for item in (gpu, *bridges_above(context.files, gpu))))
    counts = {address: _read_counters(context.files, address) for address in addresses}
    told = {address: counted for address, counted in counts.items() if counted}
    if not told:
        return []
    hit = {address: counted for address, counted in told.items() if _counts(counted)}
    source = f"{DEVICES}/*/aer_dev_*"
    if not hit:
        few = sum(counted.get(_NAMES[0], 0) for counted in told.values())
        what = f"{few} corrected PCIe errors, and no other, were" if few else "no PCIe error was"
        return [Verdict("pcie_errors", Outcome.PASS, f"{what} counted on the GPUs and the ports above them", source=source)]
    evidence = [
        f"{address}: {', '.join(f'{counted[name]} {name}' for name in _NAMES if counted.get(name))}" for address, counted in hit.items()
    ]
    surprise = any(counted.get(_SURPRISE) for counted in hit.values())
    lines = [] if context.in_container else _log_lines(context, set(hit))
    detail = f"PCIe errors were counted since boot on {len(hit)} of {len(told)} functions"
    step = f"reseat the card and its riser, then watch whether it grows: grep . {DEVICES}/{next(iter(hit))}/aer_dev_*"
    if surprise:
        detail += ", links that went down by surprise among them"
        step = "boot the host with: pcie_aspm=off pcie_port_pm=off; if it comes again: riser, power"
    return [Verdict("pcie_errors", Outcome.WARN, detail, [*evidence[:_SHOWN_LINES], *lines], step, source)]


def _counts(counted: Dict[str, int]) -> bool:
    return counted.get(_NAMES[0], 0) >= MANY_CORRECTED or any(counted.get(name) for name in _NAMES[1:])


def parse_counters(text: str) -> Dict[str, int]:
    """The lines ``NAME COUNT`` of an aer_dev_* file; what is no such line is left out."""
    found = {}
    for line in text.splitlines():
        name, _, count = line.strip().rpartition(" ")
        if name and count.isascii() and count.isdigit():
            found[name] = int(count)
    return found


def _read_counters(files: KernelFiles, address: str) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for file, total, name in zip(_COUNTERS, _TOTALS, _NAMES):  # noqa: B905 - strict= came with Python 3.10
        counters = parse_counters(files.text(f"{DEVICES}/{address}/{file}") or "")
        if total in counters:
            found[name] = counters[total]
        found[_SURPRISE] = found.get(_SURPRISE, 0) + counters.get(_SURPRISE, 0)
    return found if any(name in found for name in _NAMES) else {}


def _log_lines(context: Context, addresses: Set[str]) -> List[str]:
    records = read_kernel_log(context.files).records
    mine = [record for record in records if "AER" in record.text or "PCIe Bus Error" in record.text]
    return [
        f"{record.text[:200]} ({record.seconds:.0f} s after boot)" for record in mine if any(item in record.text for item in addresses)
    ][-2:]


def _named(found: Sequence[Link]) -> str:
    return ", ".join(link.address for link in found)


def _lanes(files: KernelFiles, folder: str, which: str) -> Optional[int]:
    text = files.text(f"{folder}/{which}_link_width") or ""
    return int(text) if text.isascii() and text.isdigit() else None


def _speed(files: KernelFiles, folder: str, which: str) -> Optional[float]:
    """``32.0 GT/s PCIe``; ``Unknown`` where the link is down."""
    number, _, unit = (files.text(f"{folder}/{which}_link_speed") or "").partition(" ")
    try:
        return float(number) if unit.startswith("GT/s") else None
    except ValueError:
        return None
