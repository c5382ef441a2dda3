"""The driver as it is installed: kernel module, versions against what is expected and what worked last, libcuda, nvcc, glibc."""

import fnmatch
import os
import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.driver import DRIVER, KERNEL, KERNEL_RELEASE, VERSION, is_loaded, module_version
from orchestrator.agent.kernel_files import KernelFiles, Reading
from orchestrator.agent.wire import Outcome, Verdict

HMM_PARAMETER = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
LIBRARY = "libcuda.so.1"

_LDCONFIG = ("/sbin/ldconfig", "-p")
_COMMAND_SECONDS = 10.0
SMI_SECONDS = 20.0
"""nvidia-smi on eight GPUs without persistence mode takes several seconds to wake them."""
SMI_LIST = ("nvidia-smi", "-L")
_SMI_CAPABILITY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")

_NVCC_FOR_SM_12 = (12, 9)
"""Older ones can't compile for sm_120 at run time (vllm #50705, #40082; NVIDIA/cutlass #3096)."""
_GLIBC_BREAKS_JIT = (2, 41)
"""From here on SGLang's run-time compilation was seen to break on SM120 (sglang #39807)."""
_NVCC_PROGRAM = "import os, sys; os.execv(sys.argv[1], [sys.argv[1], '--version'])"


class Library(NamedTuple):
    """The libcuda that a program here would load. `version` None: its name does not tell."""

    path: str
    version: Optional[str]
    found_by: str

    @property
    def is_compat(self) -> bool:
        """cuda-compat, whose version differs from the module's by intention."""
        return "/compat" in self.path

    @property
    def is_stub(self) -> bool:
        """What programs are linked against where there is no driver; it answers 34 to cuInit."""
        return "/stubs/" in self.path


def check_driver(context: Context) -> List[Verdict]:
    """Everything about the driver that needs no GPU to answer."""
    if not kernel_knows_nvidia(context):
        return [*_without_device(context), *(verdict for verdict in _versions(context) if verdict.outcome != Outcome.PASS)]
    if not is_loaded(context.files):
        return [*_versions(context), *_not_loaded(context)]
    return [_loaded(context), *_versions(context), *_library(context), *_unified_memory(context), *_toolchain(context)]


def kernel_knows_nvidia(context: Context) -> bool:
    """Whether the kernel shows anything of NVIDIA: a GPU on the PCI bus, the module, a device node."""
    return bool(context.gpus) or is_loaded(context.files) or bool(context.nodes)


def _without_device(context: Context) -> List[Verdict]:
    """The kernel knows no NVIDIA device: as it should be, or GPUs have gone, or a stand-in answers for them."""
    source = "/sys/bus/pci/devices, /proc/driver/nvidia/version, /dev, nvidia-smi -L"
    expected = context.request.expected_gpus
    smi = context.commands.run(SMI_LIST, SMI_SECONDS)
    listed = listed_gpus(smi.text) if smi.good else 0
    if listed:
        detail = f"nvidia-smi lists {listed} GPU(s), and the kernel knows no NVIDIA device: a stand-in answers, or /sys and /dev are hidden"
        return [Verdict("driver", Outcome.UNKNOWN, detail, next_step="lspci -d 10de: ; type -a nvidia-smi", source=source)]
    if expected:
        detail = f"{expected} GPU(s) are expected, and the kernel knows no NVIDIA device: none on the PCI bus, no module, no device node"
        step = context.on_host("lspci -d 10de: ; nothing there: power, seating, firmware settings, or passed through to a virtual machine")
        return [Verdict("driver", Outcome.REFUSE, detail, next_step=step, source=source)]
    if smi.status is not None or "No such file" not in smi.errors:
        detail = "nvidia-smi is installed, and the kernel knows no NVIDIA device"
        said = [line for line in (smi.text + "\n" + smi.errors).splitlines() if line.strip()][:2]
        return [Verdict("driver", Outcome.WARN, detail, said, context.on_host("lspci -d 10de:"), source)]
    if expected is None and context.request.service is not None:
        detail = f"the kernel knows no NVIDIA device here, and {context.request.service} is to be served here"
        step = f"{context.on_host('lspci -d 10de:')}; set `gpus:` of the host in hosts.yml: 0 if the service needs none"
        return [Verdict("driver", Outcome.WARN, detail, next_step=step, source=source)]
    return [Verdict("driver", Outcome.PASS, "no NVIDIA GPU here, and none is expected", source=source)]


def listed_gpus(text: str) -> int:
    """How many GPUs ``nvidia-smi -L`` lists; its exit status 0 alone does not mean that there is one."""
    return sum(1 for line in text.splitlines() if re.match(r"GPU \d+:", line))


def _loaded(context: Context) -> Verdict:
    version = module_version(context.files)
    if version.value is None:
        detail = "the NVIDIA kernel module is loaded, and its version can't be read"
        return Verdict("driver", Outcome.UNKNOWN, detail, next_step="cat /proc/driver/nvidia/version", source=version.source)
    return Verdict("driver", Outcome.PASS, f"the NVIDIA kernel module {version.value} is loaded", source=version.source)


def _not_loaded(context: Context) -> List[Verdict]:
    expected = context.request.expected_gpus
    if expected == 0:
        return []
    others = _bound_drivers(context)
    kernel = context.files.text(KERNEL_RELEASE) or "$(uname -r)"
    step = context.on_host(f"modprobe nvidia; if it fails: dkms status (is the driver built for {kernel}?), dmesg | grep NVRM")
    detail = "the NVIDIA kernel module is not loaded"
    outcome = Outcome.REFUSE
    if context.gpus and len(others) == len(context.gpus):
        names = ", ".join(sorted(set(others.values())))
        detail += f": the GPUs are bound to {names}"
        if set(others.values()) == {"vfio-pci"} and not expected:
            outcome, step = Outcome.WARN, "nothing if they are meant for virtual machines; otherwise unbind them from vfio-pci"
    evidence = [f"{address}: bound to {driver}" for address, driver in sorted(others.items())]
    source = "/proc/driver/nvidia/version, /sys/bus/pci/devices/*/driver"
    return [Verdict("driver", outcome, detail, evidence, step, source)]


def _bound_drivers(context: Context) -> Dict[str, str]:
    """GPU -> the driver other than NVIDIA's that holds it (``vfio-pci``, ``nouveau``)."""
    found = {}
    for address in context.gpus:
        link = f"/sys/bus/pci/devices/{address}/driver"
        if context.files.exists(link):
            found[address] = os.path.basename(os.path.realpath(context.files.path(link)))
    return {address: name for address, name in found.items() if name != "nvidia"}


def _versions(context: Context) -> List[Verdict]:
    """Kernel and driver against the profile's patterns and against the last verified launch."""
    module = module_version(context.files)
    kernel = context.files.read(KERNEL_RELEASE)
    last, launch_id = last_good(context)
    asked = (("kernel", kernel, context.request.kernel, last.get(KERNEL)), ("driver", module, context.request.driver, last.get(DRIVER)))
    found = [_version(name, reading, pattern, before, launch_id) for name, reading, pattern, before in asked if reading.value is not None]
    return [verdict for verdict in found if verdict is not None]


def _version(name: str, now: Reading, pattern: Optional[str], before: Optional[str], launch_id: str) -> Optional[Verdict]:
    value = str(now.value)
    check = f"{name}_version"
    evidence = [] if before is None else [f"at the last verified launch, {launch_id}: {before}"]
    if pattern is not None and not fnmatch.fnmatchcase(value, pattern):
        step = f"boot or install the expected {name}, or correct `expect: {name}:` in the tuning profile"
        return Verdict(check, Outcome.WARN, f"the {name} is {value}; the tuning profile expects {pattern}", evidence, step, now.source)
    if before is not None and before != value:
        step = f"nothing if the change was meant: take new baseline timings; otherwise go back to {name} {before}"
        return Verdict(
            check, Outcome.WARN, f"the {name} is {value}; it was {before} when a launch was last verified", evidence, step, now.source
        )
    if pattern is None and before is None:
        return None
    fits = [*([f"as expected ({pattern})"] if pattern else []), *(["as at the last verified launch"] if before else [])]
    return Verdict(check, Outcome.PASS, f"the {name} is {value}, {', '.join(fits)}", evidence, source=now.source)


def last_good(context: Context) -> Tuple[Dict[str, str], str]:
    """Kernel and driver kept with the service's last verified launch, and its id; empty where nothing was kept."""
    from orchestrator.agent.state_folder import StateFolder

    if context.request.service is None:
        return {}, ""
    folder = StateFolder(context.request.state_root, context.request.service)
    launch_id = folder.verified_launch_id() or ""
    kept = folder.verified_facts(launch_id) if launch_id else None
    rows = kept.get("facts") if isinstance(kept, dict) else None
    named = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    values = {row["name"]: row.get("value") for row in named if row.get("name") in (KERNEL, DRIVER)}
    return {name: value for name, value in values.items() if isinstance(value, str)}, launch_id


def find_library(context: Context) -> Optional[Library]:
    """The libcuda.so.1 that the loader finds first: LD_LIBRARY_PATH of the service, then ldconfig's cache (ld.so(8))."""
    for folder in context.request.environment.get("LD_LIBRARY_PATH", "").split(":"):
        path = os.path.join(folder, LIBRARY)
        if folder.startswith("/") and context.files.exists(path):
            return Library(path, _library_version(context.files, path), "LD_LIBRARY_PATH of the service")
    output = context.commands.run(_LDCONFIG, _COMMAND_SECONDS)
    paths = cached_libraries(output.text, os.uname().machine) if output.good else []
    own = (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib")
    for path in (*paths, *(os.path.join(folder, LIBRARY) for folder in own)):
        if context.files.exists(path):
            found_by = " ".join(_LDCONFIG) if path in paths else "the loader's own folders"
            return Library(path, _library_version(context.files, path), found_by)
    return None


def cached_libraries(text: str, machine: str) -> List[str]:
    """Paths of libcuda.so.1 in the output of ``ldconfig -p``, those of another architecture left out."""
    wanted = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(machine, machine)
    rows = (re.match(rf"\s*{re.escape(LIBRARY)} \(([^)]*)\) => (\S+)", line) for line in text.splitlines())
    return [row.group(2) for row in rows if row is not None and wanted in row.group(1)]


def _library_version(files: KernelFiles, path: str) -> Optional[str]:
    found = VERSION.search(os.path.basename(os.path.realpath(files.path(path))))
    return found.group(1) if found is not None else None


def library_version(context: Context) -> Reading:
    """The version of :func:`find_library`."""
    library = find_library(context)
    if library is None:
        return Reading(None, " ".join(_LDCONFIG), f"there is no {LIBRARY}")
    return Reading(library.version, library.path)


def _library(context: Context) -> List[Verdict]:
    """Whether userspace and kernel module are of one version; what runs now is not hurt by a difference, the next start is."""
    library, module = find_library(context), module_version(context.files)
    served = serves_here(context)
    hurts = Outcome.REFUSE if served else Outcome.WARN
    check, source = "driver_library", f"{library.path if library else ' '.join(_LDCONFIG)}, {module.source}"
    same = f"NVIDIA-Linux-{os.uname().machine}-{module.value}.run --no-kernel-modules"
    if library is None and not served:
        return [Verdict(check, Outcome.PASS, f"there is no {LIBRARY} here, and no server that needs one", source=source)]
    if library is None:
        return [Verdict(check, hurts, f"there is no {LIBRARY} here: CUDA can't start", next_step=f"install it here: {same}", source=source)]
    evidence = [f"{library.path}, found by {library.found_by}"]
    if library.is_stub:
        step = f"take {os.path.dirname(library.path)} out of LD_LIBRARY_PATH in the service's environment"
        return [Verdict(check, hurts, f"the stub {LIBRARY} is found before the driver's", evidence, step, source)]
    if library.version is None or module.value is None:
        step = f"ls -l {library.path}; cat /proc/driver/nvidia/version"
        return [Verdict(check, Outcome.UNKNOWN, f"the version of {LIBRARY} or of the module can't be told", evidence, step, source)]
    if library.version == module.value:
        return [Verdict(check, Outcome.PASS, f"libcuda and the kernel module are both {module.value}", evidence, source=source)]
    detail = f"libcuda is {library.version}, the kernel module {module.value}"
    if library.is_compat:
        step = f"nothing on data-centre GPUs; elsewhere take {os.path.dirname(library.path)} out of LD_LIBRARY_PATH"
        return [Verdict(check, Outcome.WARN, f"{detail}: cuda-compat, which only data-centre GPUs take", evidence, step, source)]
    step = f"install the module's version here: {same}; or, if the host was upgraded and not rebooted, reboot it"
    return [Verdict(check, hurts, f"{detail}: what runs goes on, the next start fails", evidence, step, source)]


def serves_here(context: Context) -> bool:
    """Whether a server is started in this place, so that what is wrong here stops it."""
    return context.in_container or context.request.service is not None


def _unified_memory(context: Context) -> List[Verdict]:
    files, check = context.files, "unified_memory"
    if not files.exists("/sys/module/nvidia_uvm"):
        step = context.on_host("modprobe nvidia-uvm; nvidia-modprobe -u -c0")
        detail = "the module nvidia_uvm is not loaded: CUDA needs it, and can load it only as root of the host"
        return [Verdict(check, Outcome.WARN, detail, next_step=step, source="/sys/module/nvidia_uvm")]
    value = files.text(HMM_PARAMETER)
    if value is None:
        return [Verdict(check, Outcome.PASS, "nvidia_uvm is loaded, and has no parameter uvm_disable_hmm", source=HMM_PARAMETER)]
    return [Verdict(check, Outcome.PASS, f"nvidia_uvm is loaded with uvm_disable_hmm={value}", source=HMM_PARAMETER)]


def _toolchain(context: Context) -> List[Verdict]:
    """What kernels are compiled with at a server's first requests, where a server runs."""
    if not serves_here(context) or context.request.service is None:
        return []
    output = context.commands.run(_SMI_CAPABILITY, SMI_SECONDS)
    capabilities = re.findall(r"^\d+\.\d+$", output.text, re.MULTILINE) if output.good else []
    path = find_nvcc(context)
    version = None if path is None else _nvcc_version(context, path)
    return [judge_nvcc(path, version, capabilities), *judge_glibc(glibc_version())]


def find_nvcc(context: Context) -> Optional[str]:
    """Where FlashInfer and PyTorch look for nvcc: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda."""
    from orchestrator.agent.launch_files import SYSTEM_PATH

    environment = context.request.environment
    homes = [environment[name] for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    search = [os.path.dirname(context.request.python), *environment.get("PATH", SYSTEM_PATH).split(":")]
    folders = [*(os.path.join(home, "bin") for home in homes), *search, "/usr/local/cuda/bin"]
    paths = (os.path.join(folder, "nvcc") for folder in folders if folder.startswith("/"))
    return next((path for path in paths if context.files.exists(path)), None)


def _nvcc_version(context: Context, path: str) -> Optional[str]:
    """As the server's user: what that user may write never runs with more rights than its server has."""
    done = context.commands.run_python(["-I", "-S", "-c", _NVCC_PROGRAM, context.files.path(path)], _COMMAND_SECONDS)
    found = re.search(r"release (\d+\.\d+)", done.output)
    return found.group(1) if found is not None else None


def judge_nvcc(path: Optional[str], version: Optional[str], capabilities: Sequence[str]) -> Verdict:
    """Whether kernels can be compiled here for these GPUs (compute capabilities such as ``12.0``)."""
    check = "nvcc"
    step = "install the CUDA toolkit of the version that PyTorch was built for, or set CUDA_HOME in the service's environment"
    if path is None:
        detail = "there is no nvcc: backends that compile kernels at run time (FlashInfer) can't"
        return Verdict(check, Outcome.WARN, detail, next_step=step, source="CUDA_HOME, PATH, /usr/local/cuda")
    if version is None:
        return Verdict(check, Outcome.UNKNOWN, f"{path} does not tell its version", next_step=f"{path} --version", source=path)
    new = [value for value in capabilities if value.startswith("12.")]
    if new and _numbers(version) < _NVCC_FOR_SM_12:
        detail = f"nvcc is {version}; for compute capability {new[0]} it takes {'.'.join(map(str, _NVCC_FOR_SM_12))} or newer"
        return Verdict(check, Outcome.WARN, detail, next_step=step, source=f"{path} --version")
    return Verdict(check, Outcome.PASS, f"nvcc is {version}", source=f"{path} --version")


def glibc_version() -> Optional[str]:
    """The C library's version; None where it is another than glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" and version else None


def judge_glibc(version: Optional[str]) -> List[Verdict]:
    """Whether CUDA's headers get on with this C library."""
    check, source = "glibc", "getconf GNU_LIBC_VERSION"
    if version is None:
        step = "getconf GNU_LIBC_VERSION; SGLang's wheels are made for glibc"
        return [Verdict(check, Outcome.UNKNOWN, "the C library does not tell a glibc version", next_step=step, source=source)]
    if _numbers(version) >= _GLIBC_BREAKS_JIT:
        detail = f"glibc is {version}: from 2.41 on, compiling CUDA kernels at run time was seen to break"
        step = "if a launch fails in nvcc: a newer CUDA toolkit, or a container with an older glibc (Debian 12, Ubuntu 24.04)"
        return [Verdict(check, Outcome.WARN, detail, next_step=step, source=source)]
    return [Verdict(check, Outcome.PASS, f"glibc is {version}", source=source)]


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
