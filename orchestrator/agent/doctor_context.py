"""What every check of a diagnosis is given: the question, the machine's files, and commands that are run once and bounded.

The device nodes are looked at before any command runs: nvidia-smi and libcuda make, repair or remove nodes where they may (measured on
driver 580.159.04: as root with CAP_MKNOD missing nodes come back by themselves, without it libcuda deleted a stale one).
"""

import os
import pwd
import stat
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.codec import field, record
from orchestrator.agent.command import Output, Stuck, run_bounded
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.pci import gpu_functions
from orchestrator.agent.procfs import parse_stat
from orchestrator.agent.service_python import Completed, ServicePython
from orchestrator.agent.wire_host import DoctorRequest, PlaceKind

T = TypeVar("T")

SECONDS = 75.0
"""For a whole diagnosis: an open, a cuInit and an nvidia-smi that hang, one after the other, and ending each."""

WHOLE_RANGE = ["0", "0", "4294967295"]
"""/proc/self/uid_map of the first user namespace (user_namespaces(7))."""


class DeviceNode(NamedTuple):
    """What lies at a path in /dev. `device` is None where it is no character device; `changed` is the inode's ctime, Unix time."""

    path: str
    mode: int
    device: Optional[Tuple[int, int]]
    size: int
    changed: float

    @property
    def empty_file(self) -> bool:
        return stat.S_ISREG(self.mode) and self.size == 0


class _Once:
    """One question, asked by whoever comes first; the others wait for the answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answer: Any = None


class Commands:
    """Runs programs for all checks at once: each only once, each bounded, and none that has hung before in another question.

    `stuck` lists the children that could not be killed.
    """

    def __init__(self, python: ServicePython, deadline: Deadline, run: Callable[[Sequence[str], float], Output] = run_bounded) -> None:
        self._python = python
        self._deadline = deadline
        self._run = run
        self._lock = threading.Lock()
        self._asked: Dict[Tuple[str, ...], _Once] = {}
        self._hung: Dict[str, str] = {}
        self.stuck: List[Stuck] = []

    @property
    def python_path(self) -> str:
        """The Python that :meth:`run_python` runs."""
        return self._python.path

    def run(self, argv: Sequence[str], seconds: float) -> Output:
        """What a program says as the agent's user. The same argument vector is answered from what was said before."""
        return self._once(("", *argv), lambda: self._run_new(list(argv), seconds))

    def run_python(self, arguments: Sequence[str], seconds: float) -> Completed:
        """What the service's Python says, as its user and in its environment; for a place without service: the agent's Python."""
        return self._once(("python", *arguments), lambda: self._run_python(list(arguments), seconds))

    def _once(self, key: Tuple[str, ...], ask: Callable[[], T]) -> T:
        with self._lock:
            once = self._asked.setdefault(key, _Once())
        with once.lock:
            if once.answer is None:
                once.answer = ask()
            answer: T = once.answer
            return answer

    def _run_new(self, argv: List[str], seconds: float) -> Output:
        name = os.path.basename(argv[0])
        if name in self._hung:
            return Output(None, "", f"{argv[0]} was not asked again: {self._hung[name]}")
        output = self._run(argv, min(seconds, self._deadline.left()))
        if output.status is None and "did not end" in output.errors:
            self._hung[name] = output.errors
        self._remember(output.stuck)
        return output

    def _run_python(self, arguments: List[str], seconds: float) -> Completed:
        done = self._python.run(arguments, min(seconds, self._deadline.left()))
        self._remember(done.stuck)
        return done

    def _remember(self, stuck: Optional[Stuck]) -> None:
        if stuck is not None:
            with self._lock:
                self.stuck.append(stuck)


@record(frozen=True)
class Context:
    """One diagnosis of one place. `container` is its kind (``lxc``), None on a bare host or where nobody says.

    `gpus` are the PCI addresses of the GPUs that the kernel sees, `nodes` what lay below /dev/nvidia* at the start.
    """

    request: DoctorRequest
    files: KernelFiles
    container: Optional[str]
    gpus: List[str]
    nodes: Mapping[str, DeviceNode]
    commands: Commands
    deadline: Deadline = field(default_factory=lambda: Deadline(SECONDS))

    @property
    def unprivileged(self) -> bool:
        """Whether this is a user namespace of its own, in which root is not the host's."""
        mapped = self.files.text("/proc/self/uid_map")
        return mapped is not None and mapped.split() != WHOLE_RANGE

    @property
    def in_container(self) -> bool:
        """Whether what belongs to the host has to be done elsewhere."""
        return self.container is not None or self.unprivileged or self.request.place == PlaceKind.CONTAINER

    @property
    def user(self) -> str:
        """Whom a server would run as here."""
        return self.request.user or _own_name()

    @property
    def started(self) -> Optional[float]:
        """Unix time at which the place's PID 1 started; not from /proc/uptime or /proc/stat, where lxcfs shows something else."""
        try:
            ticks = parse_stat(self.files.text("/proc/1/stat") or "").start_time
        except (ValueError, IndexError):
            return None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")

    def on_host(self, command: str) -> str:
        """What to type, with the place where that is not the one that is looked at."""
        return f"on the host: {command}" if self.in_container else command


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def make_context(request: DoctorRequest, files: Optional[KernelFiles] = None, container: Optional[str] = None) -> Context:
    """Look at what costs nothing, before anything is run."""
    files = files or KernelFiles()
    deadline = Deadline(SECONDS)
    path = request.python if request.service is not None else sys.executable or request.python
    commands = Commands(ServicePython(path, request.environment, request.user), deadline)
    return Context(request, files, container, gpu_functions(files), device_nodes(files), commands, deadline)


def device_nodes(files: KernelFiles) -> Dict[str, DeviceNode]:
    """All that lies at /dev/nvidia* and in /dev/nvidia-caps, whatever it is."""
    nodes = {}
    for path in files.glob("/dev/nvidia*") + files.glob("/dev/nvidia-caps/*"):
        try:
            found = os.stat(files.path(path))
        except OSError:
            continue  # a dangling link, or gone just now
        device = (os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None
        nodes[path] = DeviceNode(path, found.st_mode, device, found.st_size, found.st_ctime)
    return nodes


def at_once(functions: Mapping[str, Callable[[], Any]], deadline: Deadline) -> Dict[str, Any]:
    """Call all functions in threads of their own; by name, what each returned or raised. Those that hang are absent."""
    answers: Dict[str, Any] = {}

    def call(name: str, function: Callable[[], Any]) -> None:
        try:
            answers[name] = function()
        except Exception as error:  # noqa: BLE001 - whoever asked decides what it means
            answers[name] = error

    threads = [threading.Thread(target=call, args=item, name=f"doctor-{item[0]}", daemon=True) for item in functions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        wait_until(lambda: not thread.is_alive(), deadline)  # noqa: B023 - waited for here
    return dict(answers)
