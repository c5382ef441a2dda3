"""What the kernel has logged about the GPUs in this boot: Xid messages of the driver."""

from typing import Dict, List, Optional, Sequence, Set

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.kernel_log import KernelLog, read_kernel_log
from orchestrator.agent.smi_state import ask_states
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.xid import OFF_THE_BUS, Xid, find_xids, meaning

_ASK_HOST = "on the host: dmesg -T | grep -E 'NVRM: Xid|fallen off|AER:'"


def check_xids(context: Context) -> List[Verdict]:
    """The newest Xid of each GPU, as far as the log reaches back; most containers have no part in the host's log."""
    if not context.gpus:
        return []
    log = read_kernel_log(context.files)
    if not log.records and context.in_container:
        return [Verdict("xid", Outcome.UNKNOWN, "the driver's messages (Xid) are in the host's log only", [], _ASK_HOST, log.source)]
    if not log.records:
        detail = f"the kernel's log can't be read ({log.problem or 'it is empty'}): nobody can say whether the driver reported errors (Xid)"
        return [Verdict("xid", Outcome.UNKNOWN, detail, [], "as root: dmesg -T | grep 'NVRM: Xid'", log.source)]
    reading = ask_states(context.commands.run)
    answering = {gpu.address for gpu in reading.gpus}
    return [judge(find_xids(log.records), answering, log, _uptime(context))]


def judge(found: Sequence[Xid], answering: Set[str], log: KernelLog, uptime: Optional[float]) -> Verdict:
    """One verdict on all GPUs. `answering` are those that nvidia-smi lists now: one that fell off the bus and is back is no longer red."""
    reach = f" (the log begins {_hours(log.begins)} after boot; before that: journalctl -k -b | grep Xid)" if log.begins else ""
    if not found:
        return Verdict("xid", Outcome.PASS, f"no Xid in this boot{reach}", source=log.source)
    gpus: Dict[str, List[Xid]] = {}
    for xid in found:
        gpus.setdefault(xid.address, []).append(xid)
    lost = sorted(address for address, mine in gpus.items() if _fell(mine) and address not in answering)
    evidence = [_line(mine, uptime) for mine in gpus.values()]
    worst = _worst([mine[-1] for mine in gpus.values()], lost)
    what = meaning(worst.code)
    detail = f"the driver reported errors on {len(gpus)} GPU(s) in this boot; {worst.address}: Xid {worst.code}, {what.text}{reach}"
    if lost:
        detail = f"fallen off the bus and not back: {', '.join(lost)} (Xid {OFF_THE_BUS}){reach}"
    return Verdict("xid", Outcome.REFUSE if lost else Outcome.WARN, detail, evidence, what.cure.format(address=worst.address), log.source)


def _fell(mine: Sequence[Xid]) -> bool:
    return any(xid.code == OFF_THE_BUS for xid in mine)


def _worst(newest: Sequence[Xid], lost: Sequence[str]) -> Xid:
    """The one to tell what to do about: a lost GPU, then a fault of a GPU, then one of a program; the newest among equals."""
    for xid in newest:
        if xid.address in lost:
            return Xid(xid.address, OFF_THE_BUS, xid.seconds, xid.text)
    return max(newest, key=lambda xid: (not meaning(xid.code).own_doing, xid.seconds))


def _line(mine: Sequence[Xid], uptime: Optional[float]) -> str:
    newest = mine[-1]
    ago = f"{_hours(max(0.0, uptime - newest.seconds))} ago" if uptime is not None else f"{newest.seconds:.0f} s after boot"
    codes = sorted({xid.code for xid in mine} - {newest.code})
    before = f", before it {', '.join(map(str, codes))}" if codes else ""
    return f"{newest.text[:200]} ({ago}; {len(mine)} in this boot{before})"


def _uptime(context: Context) -> Optional[float]:
    words = (context.files.text("/proc/uptime") or "").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return None


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
