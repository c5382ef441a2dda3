"""The verb ``doctor``: everything that can be said about a place, from groups of checks that run at the same time.

A group is a function from a :class:`doctor_context.Context` to verdicts; it is imported only when it runs. What goes wrong in one of
them, or hangs, is a verdict, and the others are still told.
"""

import importlib
import os
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from orchestrator.agent import wire, wire_host
from orchestrator.agent.clock import BOOTED_SOURCE, Deadline, boot_moment, wait_until
from orchestrator.agent.command import Stuck, still_stuck
from orchestrator.agent.doctor_context import SECONDS, Context, at_once, make_context
from orchestrator.agent.driver import KERNEL_RELEASE, module_version
from orchestrator.agent.wire import Outcome, Verdict

_END_SECONDS = 5.0
"""For ending what hangs: beyond the bound of the checks themselves, and before a child counts as one that can't be killed."""
_KNOBS = "knobs"


class Group(NamedTuple):
    """Checks that belong together: `module`.`function` of the agent, ``(Context) -> List[Verdict]``."""

    name: str
    module: str
    function: str


GROUPS = (
    Group("driver", "doctor_driver", "check_driver"),
    Group("device_nodes", "doctor_nodes", "check_nodes"),
    Group("cuda", "doctor_cuda", "check_cuda"),
    Group("gpus", "doctor_gpus", "check_gpus"),
    Group("stuck_processes", "doctor_stuck", "check_stuck"),
    Group("xid", "doctor_xid", "check_xids"),
    Group("links", "doctor_link", "check_links"),
    Group("gpu_users", "doctor_users", "check_users"),
    Group("pci", "doctor_pci", "check_pci"),
    Group("nccl", "doctor_nccl", "check_nccl"),
    Group("place", "doctor_place", "check_place"),
    Group("at_boot", "doctor_at_boot", "check_at_boot"),
)
"""In the order in which they are told."""


def doctor(request: wire_host.DoctorRequest, emit: Callable[[str, Any], None]) -> wire_host.DoctorReport:
    """Diagnose this place. Reads only; ends within :data:`doctor_context.SECONDS` and a few more, whatever hangs."""
    from orchestrator.agent.main import container_kind

    return examine(make_context(request, container=container_kind()), GROUPS)


def examine(context: Context, groups: Sequence[Group]) -> wire_host.DoctorReport:
    """Run all groups and collect what they found."""
    asked: Dict[str, Callable[[], Any]] = {group.name: partial(_run, group, context) for group in groups}
    if context.request.settings:
        asked[_KNOBS] = partial(_compare_knobs, context)
    answers = at_once(asked, Deadline(SECONDS + _END_SECONDS))
    verdicts: List[Verdict] = []
    for name in asked:
        answer = answers.get(name)
        if not isinstance(answer, list):
            verdicts.append(_unfinished(name, answer, context))
        elif name != _KNOBS:
            verdicts += answer
    knobs = answers.get(_KNOBS)
    verdicts += unkillable(context.commands.stuck, _END_SECONDS)
    return wire_host.DoctorReport(verdicts, facts(context), knobs if isinstance(knobs, list) else [])


def _run(group: Group, context: Context) -> List[Verdict]:
    module = importlib.import_module("orchestrator.agent." + group.module)
    found: List[Verdict] = getattr(module, group.function)(context)
    return found


def _compare_knobs(context: Context) -> List[wire_host.KnobResult]:
    """The profile's knobs, read by the code that would set them."""
    from orchestrator.agent.tuning import tune

    request = context.request
    wanted = wire_host.TuneRequest("", request.settings, state_root=request.state_root, place=request.place)
    return list(tune(wanted, lambda _kind, _data: None).results)


def _unfinished(name: str, answer: Any, context: Context) -> Verdict:
    """A group that hung, or that failed where nobody foresaw it: the rest of the diagnosis stands."""
    source = f"agent, checks of {name}"
    if isinstance(answer, BaseException):
        detail = f"the checks of {name} could not be finished: {type(answer).__name__}: {answer}"
        return Verdict(name, Outcome.UNKNOWN, detail, _where(answer), "report this line; the other checks stand", source)
    detail = f"the checks of {name} did not end within {SECONDS + _END_SECONDS:g} s: a read or a command hangs in the kernel"
    return Verdict(name, Outcome.UNKNOWN, detail, next_step=context.on_host("dmesg -T | tail -50"), source=source)


def _where(error: BaseException) -> List[str]:
    """The line of code at which it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return [] if trace is None else [f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"]


def unkillable(found: Sequence[Stuck], seconds: float) -> List[Verdict]:
    """Children that SIGKILL did not end, given a few seconds more: a driver may take them to close a GPU."""
    if not found:
        return []
    wait_until(lambda: not any(map(still_stuck, found)), Deadline(seconds))
    left = [now for now in map(still_stuck, found) if now is not None]
    return [
        Verdict(
            "unkillable",
            Outcome.REFUSE,
            f"{stuck.command} hangs in the kernel and can't be killed: it was left behind",
            [str(stuck)],
            "reboot the host: nothing else ends it; before that, save dmesg (Xid, GSP, AER lines)",
            f"/proc/{stuck.pid}/stat, /proc/{stuck.pid}/wchan",
        )
        for stuck in left
    ]


def facts(context: Context) -> List[wire.Fact]:
    """What the operator's end compares between a host and its container, and keeps beside timings."""
    from orchestrator.agent.doctor_driver import library_version

    files, name = context.files, wire_host.FactName
    module, library = module_version(files), library_version(context)
    nodes = {
        node.path: {"major": node.device[0], "minor": node.device[1], "changed": node.changed}
        for node in context.nodes.values()
        if node.device is not None
    }
    return [
        wire.Fact(name.KERNEL, files.text(KERNEL_RELEASE), KERNEL_RELEASE),
        wire.Fact(name.BOOT_ID, files.text("/proc/sys/kernel/random/boot_id"), "/proc/sys/kernel/random/boot_id"),
        wire.Fact(name.BOOTED, boot_moment(), BOOTED_SOURCE),
        wire.Fact(name.CONTAINER, context.container, "/run/systemd/container, /proc/1/environ"),
        wire.Fact(name.STARTED, context.started, "/proc/1/stat"),
        wire.Fact(name.DRIVER_MODULE, module.value, module.source),
        wire.Fact(name.DRIVER_LIBRARY, library.value, library.source),
        wire.Fact(name.DEVICE_NODES, nodes, "/dev/nvidia*"),
        wire.Fact(name.GPUS, list(context.gpus), "/sys/bus/pci/devices"),
    ]
