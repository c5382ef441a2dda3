"""What a timing depends on, as far as a place shows it: versions, kernels, arguments, knobs, processors, caches. Reads only."""

import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from orchestrator.agent import sglang, wire
from orchestrator.agent.capacity import read_head
from orchestrator.agent.command_lines import is_scheduler
from orchestrator.agent.differences import counts, steers
from orchestrator.agent.driver import module_version
from orchestrator.agent.host_folder import HostFolder
from orchestrator.agent.installation import find_interpreter, site_folders
from orchestrator.agent.kernel_caches import why_cold
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import look_at, standpoint
from orchestrator.agent.knobs import Machine
from orchestrator.agent.launch_files import find_account
from orchestrator.agent.phases import PhaseTracker, parse_line
from orchestrator.agent.processes import Server
from orchestrator.agent.procfs import read_environment
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import Scrubber
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.survey import describe, started
from orchestrator.agent.wire_host import KnobResult, KnobSetting
from orchestrator.agent.wire_measure import Covariates

_KERNELS = (
    "moe_runner_backend",
    "moe_a2a_backend",
    "fp4_gemm_runner_backend",
    "fp8_gemm_runner_backend",
    "attention_backend",
    "quantization",
)
"""SGLang's names of the arguments that choose kernels."""

_PACKAGES = re.compile(
    r"((?:torch|triton|flashinfer(?:_python|_cubin|_jit_cache)?|sgl_kernel|sglang_kernel|deep_gemm|nvidia_cutlass_dsl|nvidia_nccl_cu\d+"
    r"|nvidia_cudnn_cu\d+|transformers|cuda_python|sglang))-([^-]+)\.dist-info$",
    re.IGNORECASE,
)
_CUDA = re.compile(r"^cuda(?:: [^=]*)? = '([^']+)'", re.MULTILINE)
_MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT_MPS_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - MPS's own default


def covariates(
    server: Server,
    folder: StateFolder,
    info: Dict[str, Any],
    facts: sglang.ServerFacts,
    log: Optional[Path],
    knobs: Sequence[KnobSetting],
    scrubber: Scrubber,
) -> Covariates:
    """All but what is only known when the timing is over.

    Args:
        server: as found.
        folder: the service's.
        info: the whole answer of /server_info.
        facts: the same, read.
        log: the launch's log where there is one.
        knobs: which are read in this place.
        scrubber: takes secret values out of arguments and variables.
    """
    described = describe(server, folder)
    record = folder.read_launch(server.launch_id) if server.launch_id is not None else None
    environment = dict(record.environment) if record is not None else read_environment(server.main.pid) or {}
    packages = installed(record.python if record is not None else server.main.arguments[0], environment)
    files = KernelFiles()
    where = standpoint(files)
    begun = started(server.main.id)
    return Covariates(
        sglang=facts.version,
        packages=packages.versions,
        cuda=packages.cuda,
        driver=module_version(files).value,
        kernel=os.uname().release,
        host_name=os.uname().nodename,
        container=where.container,
        backend=record.backend if record is not None else None,
        requested_kernels={name: value for name, value in sglang.requested(described.arguments).items() if name in _KERNELS},
        resolved_kernels=resolved(log),
        echoed_kernels={name: value for name in _KERNELS for value in [facts.text(name)] if value is not None},
        arguments=scrubber.data(list(described.arguments)),
        variables=scrubber.data({name: value for name, value in sorted(environment.items()) if counts(name) and steers(name)}),
        knobs=_knobs(knobs, files, folder),
        cpuset=_allowed(server, "Cpus_allowed_list"),
        memory_nodes=_allowed(server, "Mems_allowed_list"),
        launch_id=server.launch_id,
        main_pid=server.main.pid,
        started=begun,
        age=time.time() - begun,
        cold_caches=_cold(record),
        max_total_num_tokens=facts.max_total_num_tokens,
        decode_log_interval=_whole(info.get("decode_log_interval")),
        facts=[_mps(environment)],
    )


def resolved(log: Optional[Path]) -> Dict[str, str]:
    """The kernels that the head of a log tells in words of its own."""
    if log is None:
        return {}
    tracker = PhaseTracker()
    for line in read_head(log):
        tracker.feed(parse_line(line), 0.0)
    return {name: value for name, value in tracker.figures.items() if name != "max_total_num_tokens"}


class Installed:
    """Versions by distribution, and the CUDA that torch was built for."""

    def __init__(self) -> None:
        self.versions: Dict[str, str] = {}
        self.cuda: Optional[str] = None


def installed(python: str, environment: Mapping[str, str]) -> Installed:
    """What the folders of PYTHONPATH and of a virtual environment hold, the first of a name as Python finds it.

    Of an interpreter without a virtual environment nothing but PYTHONPATH is known without running it.
    """
    found = Installed()
    interpreter = find_interpreter(ServicePython(python, dict(environment), None))
    named = [folder for folder in environment.get("PYTHONPATH", "").split(":") if folder]
    for folder in [*named, *(site_folders(interpreter) if interpreter is not None else ())]:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for match in map(_PACKAGES.match, names):
            if match is not None:
                found.versions.setdefault(match.group(1).lower(), match.group(2))
        found.cuda = found.cuda or _torch_cuda(Path(folder) / "torch/version.py")
    return found


def _torch_cuda(path: Path) -> Optional[str]:
    try:
        match = _CUDA.search(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match.group(1) if match is not None else None


def _knobs(settings: Sequence[KnobSetting], files: KernelFiles, folder: StateFolder) -> List[KnobResult]:
    machine = Machine(files, HostFolder(str(folder.path.parent)))
    return look_at(settings, machine, standpoint(files))


def _allowed(server: Server, name: str) -> Optional[str]:
    """A line of /proc/PID/status of the first scheduler: it launches the kernels."""
    schedulers = [member for member in server.members if is_scheduler(member)]
    pid = (schedulers or [server.main])[0].pid
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{name}:\s*(\S+)", status, re.MULTILINE)
    return found.group(1) if found is not None else None


def _cold(record: Optional[wire.Launch]) -> Optional[List[str]]:
    if record is None:
        return None
    try:
        account = find_account(record.user)
    except AgentRefusal:
        return None
    return why_cold(record, account.home, account.name)


def _mps(environment: Dict[str, str]) -> wire.Fact:
    """Whether the server talks to its GPUs through CUDA's multi-process service, which has its daemon's pipe in a folder."""
    folder = environment.get(_MPS_PIPE, _DEFAULT_MPS_PIPE)
    return wire.Fact("mps", os.path.exists(os.path.join(folder, "control")), f"{folder}/control")


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
