"""Whether every GPU is there, answers, and is in a state to be used."""

import os
import re
from dataclasses import replace
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from orchestrator.agent import smi_state
from orchestrator.agent.doctor_context import Context
from orchestrator.agent.doctor_driver import kernel_knows_nvidia
from orchestrator.agent.pci import DEVICES, config_path, is_gone
from orchestrator.agent.smi_state import SOURCE, GpuState, StateReading, ask_states
from orchestrator.agent.wire import Outcome, Verdict

_RESET = "when nothing uses it: {command}; if that fails, reboot the host"
_NEEDS_ACTION = {
    "reset": "nvidia-smi -r -i {address}",
    "reboot": "reboot",
    "drain p2p": "stop what uses the GPUs, then nvidia-smi -r -i {address}",
    "drain and reset": "stop what uses the GPU, then nvidia-smi -r -i {address}",
}
"""What ``gpu_recovery_action`` may ask for (nvmlDeviceGpuRecoveryAction_t), and how it is done."""
_UNUSABLE = ("reset", "reboot")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)


def check_gpus(context: Context) -> List[Verdict]:
    """Count, presence on the bus and state of all GPUs, from one question to nvidia-smi."""
    reading = ask_states(context.commands.run)
    found = [*_expected(context, reading), *_on_the_bus(context, reading)]
    if not reading.gpus:
        return [*found, *_none_answers(context, reading, told=bool(found))]
    unusual = state_verdicts(context, reading.gpus)
    return [*found, *unusual, *_summary(reading, unusual)]


def _expected(context: Context, reading: StateReading) -> List[Verdict]:
    from orchestrator.agent.gpu import GpuReading
    from orchestrator.agent.requirements import check_expected

    verdict = check_expected(
        context.request.expected_gpus, GpuReading(smi_state.as_wire(reading.gpus), reading.problem, list(reading.said))
    )
    if verdict is None:
        return []
    evidence = list(verdict.evidence)
    if verdict.outcome != Outcome.PASS:
        evidence.append(f"the kernel sees {len(context.gpus)} on PCI: {', '.join(context.gpus) or 'none'}")
    return [replace(verdict, evidence=evidence, source=SOURCE)]


def _none_answers(context: Context, reading: StateReading, told: bool) -> List[Verdict]:
    if told or not kernel_knows_nvidia(context):  # the checks of the driver have told that
        return []
    if reading.problem is not None and context.gpus:
        detail = f"the state of {len(context.gpus)} GPU(s) can't be told: {reading.problem}"
        return [Verdict("gpus", Outcome.UNKNOWN, detail, list(reading.said), "nvidia-smi", SOURCE)]
    step = context.on_host("lspci -d 10de:; if it shows none: power, seating, firmware's PCIe settings")
    said = list(reading.said) or ([reading.problem] if reading.problem else [])
    return [Verdict("gpus", Outcome.WARN, "no NVIDIA GPU is to be seen", said, step, f"{DEVICES}; {SOURCE}")]


def _on_the_bus(context: Context, reading: StateReading) -> List[Verdict]:
    """GPUs that the kernel knows and that don't answer, by address."""
    gone, silent, unbound = [], [], []
    answering = {gpu.address for gpu in reading.gpus}
    if answering and context.gpus and answering.isdisjoint(context.gpus):
        return [_elsewhere(context, reading)]
    for address in context.gpus:
        if is_gone(context.files, address):
            gone.append(address)
        elif address in answering or (reading.problem is not None and not reading.gpus):
            continue
        elif not context.in_container and _driver(context, address) != "nvidia":
            unbound.append(f"{address}: driver {_driver(context, address) or 'none'}")
        elif not context.in_container or _is_given(context, address):
            silent.append(address)
    return [*_gone(context, gone), *_silent(context, silent, reading), *_unbound(unbound)]


def _elsewhere(context: Context, reading: StateReading) -> Verdict:
    """A stand-in for nvidia-smi, as the lab has one, on a machine that has GPUs of its own: it says nothing of these."""
    detail = f"nvidia-smi lists {len(reading.gpus)} GPU(s), and none of the {len(context.gpus)} that the kernel has on PCI is among them"
    return Verdict("gpu_on_bus", Outcome.UNKNOWN, detail, list(context.gpus), "command -v nvidia-smi   # is it the driver's?", SOURCE)


def _gone(context: Context, addresses: Sequence[str]) -> List[Verdict]:
    if not addresses:
        return []
    detail = f"fallen off the bus: {', '.join(addresses)} (its configuration space reads as all ones)"
    step = context.on_host("dmesg | grep -E 'NVRM|AER'; reboot; if it comes again: power cables, riser, temperature")
    return [Verdict("gpu_on_bus", Outcome.REFUSE, detail, [], step, config_path("*" if len(addresses) > 1 else addresses[0]))]


def _silent(context: Context, addresses: Sequence[str], reading: StateReading) -> List[Verdict]:
    if not addresses:
        return []
    detail = f"on PCI with the nvidia driver, but nvidia-smi does not list it: {', '.join(addresses)}"
    step = context.on_host("dmesg | grep NVRM; nvidia-smi -r -i ADDRESS when nothing uses it; else reboot")
    return [Verdict("gpu_on_bus", Outcome.REFUSE, detail, list(reading.said), step.replace("ADDRESS", addresses[0]), SOURCE)]


def _unbound(found: Sequence[str]) -> List[Verdict]:
    if not found:
        return []
    detail = f"{len(found)} GPU(s) are not the nvidia driver's, so no server can use them"
    step = "if that is no passthrough to a virtual machine: dmesg | grep NVRM; modprobe nvidia"
    return [Verdict("gpu_driver", Outcome.WARN, detail, list(found), step, f"{DEVICES}/*/driver")]


def _driver(context: Context, address: str) -> str:
    try:
        return os.path.basename(os.readlink(context.files.path(f"{DEVICES}/{address}/driver")))
    except OSError:
        return ""


def _is_given(context: Context, address: str) -> bool:
    """Whether this container has the device node of a GPU; the kernel shows it those of the whole host."""
    match = _MINOR.search(context.files.text(f"/proc/driver/nvidia/gpus/{address}/information") or "")
    return match is not None and f"/dev/nvidia{match[1]}" in context.nodes


def state_verdicts(context: Context, states: Sequence[GpuState]) -> List[Verdict]:
    """All that is not as it should be; nothing for GPUs that are well."""
    checks: Tuple[Callable[[Context, Sequence[GpuState]], Optional[Verdict]], ...] = (
        _recovery,
        _remapped_rows,
        _uncorrected,
        _mig,
        _compute_mode,
        _fabric,
    )
    return [verdict for verdict in (check(context, states) for check in checks) if verdict is not None]


def _recovery(context: Context, states: Sequence[GpuState]) -> Optional[Verdict]:
    asked = {state.label: _action(state) for state in states if _action(state) != "none"}
    if not asked:
        return None
    unusable = any(action in _UNUSABLE for action in asked.values())
    first = next(state for state in states if _action(state) != "none")
    command = _NEEDS_ACTION.get(_action(first), "nvidia-smi -q | grep -A1 'Recovery Action'").format(address=first.address)
    detail = f"the driver asks for recovery of {len(asked)} GPU(s)" + (", unusable until then" if unusable else "")
    evidence = [f"{label}: {action}" for label, action in asked.items()]
    step = context.on_host(_RESET.format(command=command) if command.startswith("nvidia-smi -r") else command)
    return Verdict("gpu_recovery", Outcome.REFUSE if unusable else Outcome.WARN, detail, evidence, step, f"{SOURCE}=gpu_recovery_action")


def _action(state: GpuState) -> str:
    return "reset" if state.requires_reset else state.values.get(smi_state.RECOVERY_ACTION, "None").lower()


def _remapped_rows(context: Context, states: Sequence[GpuState]) -> Optional[Verdict]:
    failed = [state.label for state in states if _says_yes(state, smi_state.REMAP_FAILURE)]
    pending = [state for state in states if _says_yes(state, smi_state.REMAP_PENDING)]
    if failed:
        detail = f"row remapping has failed on {', '.join(failed)}: its memory is worn out"
        step = "have the card replaced; until then leave it out with CUDA_VISIBLE_DEVICES; nvidia-smi -q -d ROW_REMAPPER"
        return Verdict("gpu_memory", Outcome.WARN, detail, [], step, f"{SOURCE}={smi_state.REMAP_FAILURE}")
    if pending:
        detail = f"a faulty memory row waits to be remapped on {', '.join(state.label for state in pending)}"
        step = context.on_host(_RESET.format(command=f"nvidia-smi -r -i {pending[0].address}"))
        return Verdict("gpu_memory", Outcome.WARN, detail, [], step, f"{SOURCE}={smi_state.REMAP_PENDING}")
    return None


def _says_yes(state: GpuState, name: str) -> bool:
    return state.values.get(name, "").lower() in ("yes", "1")


def _uncorrected(context: Context, states: Sequence[GpuState]) -> Optional[Verdict]:
    hit = [f"{state.label}: {state.count(smi_state.UNCORRECTED)}" for state in states if state.count(smi_state.UNCORRECTED)]
    if not hit:
        return None
    detail = f"uncorrected memory errors since the driver was loaded, on {len(hit)} GPU(s)"
    step = context.on_host("nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep 'NVRM: Xid'; stop the server and reset the GPU if they grow")
    return Verdict("gpu_ecc", Outcome.WARN, detail, hit, step, f"{SOURCE}={smi_state.UNCORRECTED}")


def _mig(context: Context, states: Sequence[GpuState]) -> Optional[Verdict]:
    on = [state for state in states if state.values.get(smi_state.MIG_MODE) == "Enabled"]
    if not on:
        return None
    detail = f"MIG is on for {', '.join(state.label for state in on)}: a server sees one slice of it at most, and none after a reboot"
    step = context.on_host(f"nvidia-smi -i {on[0].address} -mig 0, with nothing on the GPU; nvidia-smi mig -lgi shows its slices")
    return Verdict("gpu_mig", Outcome.WARN, detail, [], step, f"{SOURCE}={smi_state.MIG_MODE}")


def _compute_mode(context: Context, states: Sequence[GpuState]) -> Optional[Verdict]:
    other = {state.label: mode for state in states for mode in [state.values.get(smi_state.COMPUTE_MODE, "Default")] if mode != "Default"}
    if not other:
        return None
    prohibited = "Prohibited" in other.values()
    detail = "no program may use the GPU" if prohibited else "only one process may use the GPU: a second one gets error 46"
    evidence = [f"{label}: {mode}" for label, mode in other.items()]
    step = context.on_host("nvidia-smi -c DEFAULT")
    return Verdict(
        "gpu_compute_mode", Outcome.REFUSE if prohibited else Outcome.WARN, detail, evidence, step, f"{SOURCE}={smi_state.COMPUTE_MODE}"
    )


def _fabric(context: Context, states: Sequence[GpuState]) -> Optional[Verdict]:
    """NVSwitch machines only: elsewhere the fields are ``[N/A]``."""
    unready = {}
    for state in states:
        fabric, status = state.values.get(smi_state.FABRIC_STATE), state.values.get(smi_state.FABRIC_STATUS)
        if fabric is not None and (fabric, status or "Success") != ("Completed", "Success"):
            unready[state.label] = f"{fabric}, {status or 'no status'}"
    if not unready:
        return None
    detail = f"NVLink fabric is not ready on {len(unready)} GPU(s): CUDA answers 802"
    evidence = [f"{label}: {text}" for label, text in unready.items()]
    step = context.on_host("systemctl status nvidia-fabricmanager (same version as the driver); then wait until the state is Completed")
    outcome = Outcome.WARN if all(text.startswith("Not Started") for text in unready.values()) else Outcome.REFUSE
    return Verdict("gpu_fabric", outcome, detail, evidence, step, f"{SOURCE}=fabric.state,fabric.status")


def _summary(reading: StateReading, unusual: Sequence[Verdict]) -> List[Verdict]:
    names: Dict[str, int] = {}
    for gpu in reading.gpus:
        names[gpu.name] = names.get(gpu.name, 0) + 1
    listed = ", ".join(f"{count} x {name or 'unnamed'}" for name, count in names.items())
    if reading.problem is not None:
        step = "nvidia-smi; dmesg | grep NVRM on the host"
        return [Verdict("gpus", Outcome.WARN, f"{listed} answer, but {reading.problem}", list(reading.said), step, SOURCE)]
    if unusual:
        return []
    well = "no uncorrected errors, no rows to remap, no recovery asked for, MIG off, compute mode Default"
    untold = f" (this driver does not tell {', '.join(reading.unknown)})" if reading.unknown else ""
    return [Verdict("gpus", Outcome.PASS, f"{listed}: {well}{untold}", source=SOURCE)]
