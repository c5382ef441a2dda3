"""Knobs in the configuration space of PCI functions. The kernel may wait long for a device that is dead, so each access is bounded."""

from typing import Any, Dict, List, Optional

from orchestrator.agent import pci
from orchestrator.agent.bounded_call import Answer, call_each_bounded
from orchestrator.agent.kernel_files import KernelFiles, Reading
from orchestrator.agent.knobs import AbsentError, Knob, Machine, Readings, RefusedError

SECONDS = 4.0
"""A read takes microseconds; a device that is gone costs up to 50 ms a word until the root port gives up."""


class MaxReadRequest(Knob):
    """MaxReadReq in bytes of each NVIDIA GPU's function 0: bits 14:12 of Device Control, never MaxPayload, never bit 15."""

    source = f"{pci.DEVICES}/*/config"

    def read(self, machine: Machine) -> Readings:
        addresses = pci.gpu_functions(machine.files)
        if not addresses:
            raise AbsentError("there is no NVIDIA GPU on the PCI bus")
        asked = [address for address in addresses if address not in machine.stuck]
        answers = call_each_bounded([_reader(machine.files, address) for address in asked], SECONDS)
        readings = {address: _reading(address, answer, machine) for address, answer in zip(asked, answers)}  # noqa: B905 - Python 3.9
        return {address: readings.get(address) or Reading(None, _path(address), machine.stuck[address]) for address in addresses}

    def unsuitable(self, wanted: str) -> Optional[str]:
        sizes = [str(size) for size in pci.MAX_READ_REQUESTS]
        return None if wanted in sizes else f"MaxReadReq is one of {', '.join(sizes)} bytes, not {wanted}"

    def write_all(self, machine: Machine, wanted: Dict[str, str]) -> Dict[str, Exception]:
        answers = call_each_bounded([_setter(machine.files, item, int(value)) for item, value in wanted.items()], SECONDS)
        problems: Dict[str, Exception] = {}
        for item, answer in zip(wanted, answers):  # noqa: B905 - Python 3.9
            problem = _stuck(item, answer, machine) if answer.stuck else answer.problem or answer.value
            if answer.error_number:
                problems[item] = OSError(answer.error_number, answer.problem, _path(item))
            elif problem:
                problems[item] = RefusedError(problem)
        return problems

    def commands(self, wanted: Dict[str, str]) -> List[str]:
        return [_command(address, f"CAP_EXP+8.w={pci.with_read_request(0, int(size)):04x}:7000") for address, size in wanted.items()]


def _command(address: str, register: str) -> str:
    """For one function; without an address, where nobody can say which there are, for each GPU that the machine has."""
    if address:
        return f"setpci -s {address} {register}"
    return f"for gpu in $(lspci -Dn -d 10de: | awk '$2 ~ /^03/ {{print $1}}'); do setpci -s $gpu {register}; done"


def _reader(files: KernelFiles, address: str) -> Any:
    return lambda: pci.read_config(files, address, pci.FIRST_EXTENDED).content


def _setter(files: KernelFiles, address: str, size: int) -> Any:
    return lambda: _set(files, address, size)


def _set(files: KernelFiles, address: str, size: int) -> str:
    """What is wrong, as the exception can't leave the child."""
    try:
        pci.set_max_read_request(files, address, size)
    except pci.ConfigError as error:
        return str(error)
    return ""


def _reading(address: str, answer: Answer, machine: Machine) -> Reading:
    if answer.stuck:
        return Reading(None, _path(address), _stuck(address, answer, machine))
    if answer.problem is not None:
        return Reading(None, _path(address), answer.problem, answer.error_number)
    try:
        return Reading(str(pci.max_read_request(pci.ConfigSpace(answer.value))), _path(address))
    except pci.ConfigError as error:
        return Reading(None, _path(address), str(error))


def _stuck(address: str, answer: Answer, machine: Machine) -> str:
    machine.stuck[address] = f"its configuration space gave {answer.problem}; the process that asked was left behind"
    return machine.stuck[address]


def _path(address: str) -> str:
    return pci.config_path(address)
