"""What cuInit's code and nvidia-smi's answer mean together, and the cure: pure functions from what was read to verdicts.

The rows were measured by faults injected in /dev on driver 580.159.04, as root without CAP_MKNOD, which is what a container's root is;
the codes are those of CUDA's driver API (CUresult). nvidia-smi's exit status 0 does not mean that it listed a GPU.
"""

from typing import Callable, Dict, List, NamedTuple, Optional

from orchestrator.agent import cuda
from orchestrator.agent.codec import field, record
from orchestrator.agent.cuda import CudaAnswer
from orchestrator.agent.doctor_nodes import CONTROL, UNIFIED_MEMORY, NodeFault
from orchestrator.agent.wire import Outcome, Verdict

SMI_SOURCE = "nvidia-smi -L"

_SMI_NO_GPU = (0, 6)
"""``No devices found.`` (-L), ``No devices were found`` (queries)."""
_SMI_UNREACHABLE = (9, 17)
"""``couldn't communicate with the NVIDIA driver``, ``GPU access blocked by the operating system`` (an empty file for nvidiactl)."""
_SMI_DENIED = 4
"""``Insufficient Permissions``."""
_SMI_MISMATCH = 18
"""``Driver/library version mismatch``."""


@record(frozen=True)
class SmiAnswer:
    """What ``nvidia-smi -L`` said. `status` None: there is none, or it did not end; `problem` says which."""

    status: Optional[int]
    listed: int = 0
    said: List[str] = field(default_factory=list)
    problem: Optional[str] = None

    @property
    def works(self) -> bool:
        return self.status == 0 and self.listed > 0

    @property
    def hangs(self) -> bool:
        return self.status is None and "did not end" in (self.problem or "")

    def __str__(self) -> str:
        if self.works:
            return f"nvidia-smi lists {self.listed} GPU(s)"
        if self.status is None:
            return f"nvidia-smi: {self.problem}"
        return f"nvidia-smi ends with status {self.status}: {self.said[0] if self.said else 'nothing said'}"


@record(frozen=True)
class Surroundings:
    """What else was read. `served_here`: a server starts in this place, so that a fault stops it. `stand_in`: no NVIDIA device at all.

    `library` is the path of libcuda, `hmm` the value of uvm_disable_hmm, `visible` CUDA_VISIBLE_DEVICES of the service (None: unset).
    """

    in_container: bool = False
    served_here: bool = True
    stand_in: bool = False
    expected: Optional[int] = None
    faults: List[NodeFault] = field(default_factory=list)
    module: Optional[str] = None
    loaded: bool = True
    library: Optional[str] = None
    library_version: Optional[str] = None
    hmm: Optional[str] = None
    visible: Optional[str] = None
    python: str = "python3"

    @property
    def worst(self) -> str:
        """What a failure is worth: where there is no NVIDIA device, whatever answers is no driver, and proves nothing."""
        return Outcome.UNKNOWN if self.stand_in else Outcome.REFUSE

    def on_host(self, command: str) -> str:
        return f"on the host: {command}" if self.in_container else command

    def fault(self, *paths: str) -> Optional[NodeFault]:
        """The first fault of one of these nodes; without paths: of a GPU's own node."""
        others = (CONTROL, UNIFIED_MEMORY)
        return next((found for found in self.faults if (found.path in paths if paths else found.path not in others)), None)


class Row(NamedTuple):
    """What is wrong, and what to type."""

    cause: str
    step: str


def judge(answer: CudaAnswer, smi: SmiAnswer, around: Surroundings) -> Verdict:
    """The verdict on CUDA in this place."""
    source = f"cuInit in {around.python}, {SMI_SOURCE}"
    if answer.status == 0:
        return _judge_count(answer.count, smi, around, source)
    outcome = around.worst
    if answer.missing is not None:
        outcome = outcome if around.served_here else Outcome.UNKNOWN
        step = "apt install python3 (libpython3-stdlib has it; a Python of your own: build it with libffi-dev there)"
        return Verdict("cuda", outcome, f"CUDA can't be asked: {around.python} has no module {answer.missing}", [str(smi)], step, source)
    if answer.library is not None and not around.served_here:
        detail = "there is no libcuda here to ask, and no server that needs one"
        return Verdict("cuda", Outcome.UNKNOWN, detail, [answer.library, str(smi)], "fab doctor asks CUDA in the container", source)
    if (answer.problem or "").startswith("can't start"):
        step = "set `python:` of the service to an interpreter that there is"
        return Verdict("cuda", Outcome.UNKNOWN, f"not asked: {answer.problem}", [str(smi)], step, source)
    row = _row(answer, smi, around)
    faults = [line for line in (f"{fault.path}: {fault.detail}" for fault in around.faults) if line != row.cause]
    said = f"cuInit gives {answer.status}" if answer.status is not None else "CUDA can't be asked"
    return Verdict("cuda", outcome, f"{said}: {row.cause}", [str(smi), *faults], row.step, source)


def judge_smi(smi: SmiAnswer, around: Surroundings, cuda_works: bool) -> Verdict:
    """The verdict on nvidia-smi alone: what it says is only a part of the truth, so it refuses only where nothing else was asked."""
    if smi.works:
        return Verdict("nvidia_smi", Outcome.PASS, str(smi), source=SMI_SOURCE)
    if smi.hangs:
        return Verdict("nvidia_smi", Outcome.REFUSE, str(smi), smi.said, _dmesg(around), SMI_SOURCE)
    if smi.status is None:
        step = "install the driver's userspace here (nvidia-smi comes with it)"
        return Verdict(
            "nvidia_smi", Outcome.WARN, f"there is no nvidia-smi here ({smi.problem}): GPUs can't be watched", [], step, SMI_SOURCE
        )
    row = _without_gpu(smi, around)
    outcome = Outcome.WARN if cuda_works or not around.served_here else Outcome.REFUSE
    return Verdict("nvidia_smi", outcome, f"{smi}: {row.cause}", smi.said, row.step, SMI_SOURCE)


def _judge_count(count: int, smi: SmiAnswer, around: Surroundings, source: str) -> Verdict:
    detail, evidence = f"CUDA initialises and sees {count} GPU(s)", [str(smi)]
    chosen = f"CUDA_VISIBLE_DEVICES is {around.visible!r} in the service's environment"
    if count == 0:
        step = "take CUDA_VISIBLE_DEVICES out of the service's environment, or correct it"
        return Verdict("cuda", around.worst, "CUDA initialises and finds no GPU", [chosen, str(smi)], step, source)
    if around.visible is not None:
        return Verdict("cuda", Outcome.PASS, f"{detail}; {chosen}", evidence, source=source)
    if around.expected is not None and count < around.expected:
        step = f"{around.on_host('nvidia-smi -L; dmesg -T | grep Xid')}; a GPU that has left the bus comes back with a reboot"
        return Verdict("cuda", around.worst, f"{detail}; {around.expected} are expected", evidence, step, source)
    if around.expected is not None and count > around.expected:
        step = "correct `gpus:` in the inventory, or give this place fewer"
        return Verdict("cuda", Outcome.WARN, f"{detail}; only {around.expected} are expected", evidence, step, source)
    if smi.works and count != smi.listed:
        return Verdict(
            "cuda", Outcome.WARN, f"{detail}, nvidia-smi {smi.listed}", evidence, "nvidia-smi -L; nvidia-smi -q -d COMPUTE", source
        )
    return Verdict("cuda", Outcome.PASS, detail, evidence, source=source)


def _row(answer: CudaAnswer, smi: SmiAnswer, around: Surroundings) -> Row:
    if answer.hangs:
        return Row(f"it hangs ({answer.problem}): the GPU's own processor (GSP) or an Xid error, most often", _dmesg(around))
    if answer.library is not None:
        step = f"install the driver's userspace here, version {around.module or 'of the kernel module'}: ldconfig -p | grep libcuda"
        return Row(f"libcuda can't be loaded: {answer.library}", step)
    if answer.status is None:
        return Row(f"the service's Python gives no answer: {answer.problem}", f"{around.python} -c 'import ctypes'")
    make = _ROWS.get(answer.status)
    return make(smi, around) if make is not None else Row("a code without a row here", cuda.UNKNOWN_HINT)


def _dmesg(around: Surroundings) -> str:
    return around.on_host("dmesg -T | grep -e Xid -e NVRM -e GSP; a GPU that does not answer needs a reset (nvidia-smi -r) or a reboot")


def _no_device(smi: SmiAnswer, around: Surroundings) -> Row:
    """100: the GPUs' nodes and nvidiactl, or what the environment hides."""
    if not smi.works and smi.status is not None:
        return _without_gpu(smi, around)
    fault = around.fault(CONTROL) or around.fault()
    if fault is not None:
        return Row(f"{fault.path}: {fault.detail}", fault.cure)
    if around.visible is not None:
        step = "take it out of the service's environment, or name GPUs that there are (nvidia-smi -L)"
        return Row(f"CUDA_VISIBLE_DEVICES is {around.visible!r} in the service's environment, which hides every GPU", step)
    if smi.works:
        step = "look for CUDA_VISIBLE_DEVICES in what starts the server (unit, /etc/environment, profile); nvidia-smi -q -d COMPUTE"
        return Row(f"though {smi} and the device nodes are good", step)
    return Row("no GPU can be opened, and nvidia-smi can't be asked", around.on_host("nvidia-smi -L; ls -l /dev/nvidia*"))


def _without_gpu(smi: SmiAnswer, around: Surroundings) -> Row:
    """nvidia-smi answers without a GPU: its exit status tells which part is missing, the nodes tell why."""
    if smi.status == _SMI_MISMATCH or any("version mismatch" in line for line in smi.said):
        return _mismatch(smi, around)
    if not around.loaded:
        return Row("the kernel module is not loaded", around.on_host("modprobe nvidia; dkms status; dmesg | grep NVRM"))
    control, gpu = around.fault(CONTROL), around.fault()
    if smi.status in _SMI_NO_GPU:
        return _of_fault(gpu or control, "no /dev/nvidiaN can be opened", "nvidia-smi -L; ls -l /dev/nvidia*", around)
    if smi.status == _SMI_DENIED:
        return _of_fault(control, f"{CONTROL} may not be opened", "allow it in the container's device rules", around)
    if smi.status in _SMI_UNREACHABLE:
        return _of_fault(control, f"{CONTROL} does not reach the driver", "nvidia-modprobe -c0 -u", around)
    return _of_fault(control or gpu, str(smi), "nvidia-smi; dmesg -T | grep -e Xid -e NVRM", around)


def _of_fault(fault: Optional[NodeFault], otherwise: str, command: str, around: Surroundings) -> Row:
    """The node's own fault and cure where it shows one."""
    if fault is not None:
        return Row(f"{fault.path}: {fault.detail}", fault.cure)
    restart = ", then restart the container" if around.in_container else ""
    return Row(otherwise, around.on_host(command) + restart)


def _unified_memory(smi: SmiAnswer, around: Surroundings) -> Row:
    """999: nvidia-uvm, told apart by its node; nvidia-smi does not use it and is fine."""
    fault = around.fault(UNIFIED_MEMORY) or around.fault(CONTROL) or around.fault()
    if fault is not None:
        return Row(f"{fault.path}: {fault.detail}", fault.cure)
    cause = f"an unknown error, though {UNIFIED_MEMORY} has the kernel's number and opens; {smi}"
    return Row(cause, around.on_host("dmesg -T | grep -e NVRM -e uvm -e Xid"))


def _hmm(smi: SmiAnswer, around: Surroundings) -> Row:
    """3 from cuInit itself: open modules 570 on kernel 6.13 and others (open-gpu-kernel-modules #797, #901)."""
    line = "options nvidia_uvm uvm_disable_hmm=1"
    shown = f"uvm_disable_hmm is {around.hmm or 'not shown'}"
    if around.hmm in ("Y", "1"):
        return Row(f"unified memory did not come up, though {shown}", around.on_host("dmesg -T | grep -e uvm -e NVRM"))
    step = around.on_host(
        f"echo '{line}' > /etc/modprobe.d/nvidia-uvm.conf; with no CUDA program running: rmmod nvidia_uvm; modprobe nvidia_uvm"
    )
    return Row(f"unified memory did not come up (HMM); {shown}", step)


def _stub(smi: SmiAnswer, around: Surroundings) -> Row:
    step = "take the folder with stubs out of LD_LIBRARY_PATH in the service's environment: ldconfig -p | grep libcuda"
    return Row(f"the stub libcuda is found before the driver's ({around.library or 'path not known'})", step)


def _old_driver(smi: SmiAnswer, around: Surroundings) -> Row:
    step = "install a PyTorch for the driver's CUDA (nvidia-smi shows it), or a newer driver on the host and in the container"
    return Row(f"the driver ({around.module or 'version not known'}) is older than this CUDA", step)


def _unavailable(smi: SmiAnswer, around: Surroundings) -> Row:
    step = around.on_host("nvidia-smi -q -d COMPUTE; nvidia-smi -c DEFAULT; MIG instances are lost in a reboot: nvidia-smi mig -lgi")
    return Row("a GPU is in exclusive compute mode and taken, or its MIG instance is gone", step)


def _invalid_device(smi: SmiAnswer, around: Surroundings) -> Row:
    shown = (
        f"CUDA_VISIBLE_DEVICES is {around.visible!r}" if around.visible is not None else "CUDA_VISIBLE_DEVICES is not set by the service"
    )
    return Row(f"an invalid device; {shown}", "name GPUs that there are (nvidia-smi -L), or take CUDA_VISIBLE_DEVICES out")


def _fabric(smi: SmiAnswer, around: Surroundings) -> Row:
    version = around.module or "the driver's version"
    step = around.on_host(f"systemctl restart nvidia-fabricmanager, which must be of version {version}; nvidia-smi -q | grep -A3 Fabric")
    return Row("the system is not ready: GPUs behind NVSwitch wait for the fabric manager", step)


def _mismatch(smi: SmiAnswer, around: Surroundings) -> Row:
    shown = f"libcuda is {around.library_version or 'of unknown version'}, the kernel module {around.module or 'of unknown version'}"
    step = (
        f"install the driver's userspace {around.module or 'of the module'} here; or, if the host was upgraded and not rebooted, reboot it"
    )
    return Row(f"userspace and kernel module differ in version: {shown}", step)


def _compat(smi: SmiAnswer, around: Surroundings) -> Row:
    step = "take cuda-compat out of LD_LIBRARY_PATH in the service's environment, or remove the package"
    return Row(f"cuda-compat is used on a GPU that does not support it ({around.library or 'path not known'})", step)


_ROWS: Dict[int, Callable[[SmiAnswer, Surroundings], Row]] = {
    3: _hmm,
    34: _stub,
    36: _old_driver,
    46: _unavailable,
    100: _no_device,
    101: _invalid_device,
    802: _fabric,
    803: _mismatch,
    804: _compat,
    999: _unified_memory,
}
"""cuInit's codes other than 0. 35 is the runtime API's name for the driver API's 36."""
