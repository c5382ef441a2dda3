"""Running something with the service's own Python: as its user, in its environment, bounded in time and output."""

import contextlib
import importlib.util
import os
import signal
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.codec import field, record
from orchestrator.agent.command import Stuck, leave_behind
from orchestrator.agent.launch_files import SYSTEM_PATH, Account, find_account
from orchestrator.agent.refusal import AgentRefusal

if TYPE_CHECKING:  # as in :mod:`command`
    import subprocess

OUTPUT_LIMIT = 8 * 1024 * 1024
"""Bytes of stdout or stderr after which a program is stopped."""


@record(frozen=True)
class Completed:
    """How a program ended. `status` is None when it did not end by itself; `problem` then says why.

    `stuck` is the process itself where it could not even be killed.
    """

    status: Optional[int]
    output: str = ""
    errors: str = ""
    problem: Optional[str] = None
    stuck: Optional[Stuck] = None

    def last_errors(self, lines: int = 5) -> List[str]:
        """The last lines of stderr that say something."""
        return [line for line in self.errors.splitlines() if line.strip()][-lines:]


@record(frozen=True)
class ServicePython:
    """The interpreter of a service, and under what conditions the server itself would run in it.

    `user` None means the agent's own user. Root switches to the service's user, so that what a service user may write (its
    virtual environment) never runs with more rights than the server has.
    """

    path: str
    environment: Dict[str, str] = field(default_factory=dict)
    user: Optional[str] = None
    directory: Optional[str] = None

    def without_gpu(self) -> "ServicePython":
        """The same with no GPU visible.

        A program that sees one takes some hundred MiB of its memory as soon as it asks CUDA for anything, and the running server may
        have left none.
        """
        from dataclasses import replace

        return replace(self, environment={**self.environment, "CUDA_VISIBLE_DEVICES": ""})

    def full_environment(self, account: Account) -> Dict[str, str]:
        """The service's environment over the few variables that its server would have anyway."""
        path = f"{os.path.dirname(self.path)}:{SYSTEM_PATH}" if self.path.startswith("/") else SYSTEM_PATH
        base = {"PATH": path, "HOME": account.home, "USER": account.name, "LOGNAME": account.name, "LANG": "C.UTF-8"}
        return {**base, **self.environment}

    def run(self, arguments: List[str], seconds: float, stdin: str = "", stop: Callable[[], bool] = lambda: False) -> Completed:
        """Run ``[path, *arguments]`` for at most `seconds`, then kill its process group; also once `stop`, asked often, says so.

        A process that survives SIGKILL (state D: a driver that hangs) is abandoned and named in `problem`. Never raises.
        """
        import subprocess

        try:
            account = find_account(self.user)
            return _run([self.path, *arguments], self.full_environment(account), account, self.directory or "/", seconds, stdin, stop)
        except AgentRefusal as refusal:
            return Completed(None, problem=str(refusal))
        except (OSError, subprocess.SubprocessError) as error:
            return Completed(None, problem=f"can't start {self.path}: {error}")


def program_source(module: str) -> str:
    """The source of one of our modules that runs in the service's Python, from a folder or from the agent's zip."""
    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec is not None and spec.loader is not None else None  # type: ignore[attr-defined]
    if not isinstance(source, str):
        raise RuntimeError(f"the agent was shipped without the source of {module}")
    return source


def _run(
    argv: List[str],
    environment: Dict[str, str],
    account: Account,
    directory: str,
    seconds: float,
    stdin: str,
    stop: Callable[[], bool],
) -> Completed:
    # Files in memory instead of pipes: nothing blocks on either side, and a grandchild that keeps them open holds nobody up.
    question, output, errors = (os.memfd_create(name) for name in ("stdin", "stdout", "stderr"))
    try:
        os.write(question, stdin.encode("utf-8"))
        os.lseek(question, 0, os.SEEK_SET)
        process = _start(argv, environment, account, directory, (question, output, errors))
        wait_until(lambda: process.poll() is not None or _is_flooded(output, errors) or stop(), Deadline(seconds), interval=0.02)
        if process.poll() is not None:
            return Completed(process.returncode, _read(output), _read(errors))
        flooded = f"wrote more than {OUTPUT_LIMIT >> 20} MiB" if _is_flooded(output, errors) else ""
        why = flooded or ("was no longer wanted" if stop() else f"did not answer within {seconds:g} s")
        problem, stuck = _kill(process, argv[0], why)
        return Completed(None, _read(output), _read(errors), problem, stuck)
    finally:
        for descriptor in (question, output, errors):
            os.close(descriptor)


def _start(
    argv: List[str],
    environment: Dict[str, str],
    account: Account,
    directory: str,
    streams: Tuple[int, int, int],
) -> "subprocess.Popen[bytes]":
    import subprocess

    stdin, stdout, stderr = streams
    options: Dict[str, Any] = {}
    if account.switch:
        groups = os.getgrouplist(account.name, account.group_id)
        options = {"user": account.user_id, "group": account.group_id, "extra_groups": groups}
    return subprocess.Popen(
        argv, env=environment, cwd=directory, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, **options
    )


def _kill(process: "subprocess.Popen[bytes]", command: str, why: str) -> Tuple[str, Optional[Stuck]]:
    """Kill the process group of a child that is not reaped yet (so its number is still its own); say what was done."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if wait_until(lambda: process.poll() is not None, Deadline(2.0)):
        return f"{why} and was killed", None
    return f"{why} and can't be killed: process {process.pid} hangs in the kernel", leave_behind(process, command)


def _is_flooded(*descriptors: int) -> bool:
    return any(os.fstat(descriptor).st_size > OUTPUT_LIMIT for descriptor in descriptors)


def _read(descriptor: int) -> str:
    """At most :data:`OUTPUT_LIMIT` bytes, the last ones: for errors the end is what matters."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, OUTPUT_LIMIT, max(0, size - OUTPUT_LIMIT)).decode("utf-8", "replace")
