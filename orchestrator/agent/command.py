"""Other programs, run with a bound that holds: a child that a hung driver keeps in state D is left behind, not waited for."""

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence

from orchestrator.agent.clock import Deadline
from orchestrator.agent.procfs import parse_stat, start_time

if TYPE_CHECKING:  # importing it takes as long as many an answer that runs nothing
    import subprocess

_REAP_SECONDS = 0.5
_abandoned: "List[subprocess.Popen[bytes]]" = []
"""Children that could not be ended, kept so that Python doesn't try to reap them."""


class Stuck(NamedTuple):
    """A child that SIGKILL did not end. `state` is the kernel's letter: ``D`` waits where no signal reaches it, ``R`` spins there.

    `waits_in` is the kernel's function (/proc/PID/wchan), empty where the kernel does not tell.
    """

    pid: int
    start_time: int
    command: str
    state: str
    waits_in: str = ""

    def __str__(self) -> str:
        where = f" in {self.waits_in}" if self.waits_in else ""
        return f"process {self.pid} ({self.command}), state {self.state}{where}"


class Output(NamedTuple):
    """What a program said. `status` is None when there is no such program or it did not end in time; `errors` then says which.

    `stuck` is the child itself where it could not even be killed.
    """

    status: Optional[int]
    text: str
    errors: str
    stuck: Optional[Stuck] = None

    @property
    def good(self) -> bool:
        return self.status == 0


def run_bounded(
    argv: Sequence[str],
    seconds: float,
    given: bytes = b"",
    environment: Optional[Dict[str, str]] = None,
    directory: Optional[str] = None,
) -> Output:
    """Run a program and return within `seconds` (and half a second for ending it), whatever it does.

    `subprocess.run(timeout=...)` does not do this: after the timeout it waits for the child without a bound.
    """
    if _is_missing(argv[0], environment):
        return Output(None, "", f"{argv[0]}: {os.strerror(errno.ENOENT)}")
    import subprocess

    try:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=directory
        )
    except OSError as error:
        return Output(None, "", f"{argv[0]}: {error.strerror}")
    deadline = Deadline(seconds)
    remaining: Optional[bytes] = given
    while True:
        try:
            text, errors = child.communicate(remaining, timeout=deadline.left())
            break
        except subprocess.TimeoutExpired:
            remaining = None
        if deadline.passed:  # else this place stood still meanwhile
            stuck = _abandon(child, argv[0])
            return Output(None, "", f"{argv[0]} did not end within {seconds:g} s" + (" and can't be killed" if stuck else ""), stuck)
    return Output(child.returncode, text.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def _is_missing(program: str, environment: Optional[Dict[str, str]]) -> bool:
    """Whether no folder of PATH has a file of this name: much cheaper to see than by trying."""
    return "/" not in program and not any(os.path.exists(os.path.join(folder, program)) for folder in os.get_exec_path(environment))


def find_stuck(pid: int, command: str) -> Optional[Stuck]:
    """What keeps a killed process from ending; None once it has ended. A thread of it may hang after its main thread has ended."""
    began = start_time(pid)
    states = _thread_states(pid)
    if began is None or not states:
        return None
    path = next((path for path, state in states.items() if state == "D"), next(iter(states)))
    return Stuck(pid, began, command, states[path], _waits_in(path))


def still_stuck(stuck: Stuck) -> Optional[Stuck]:
    """The same process as it is now; None once it has ended after all."""
    now = find_stuck(stuck.pid, stuck.command)
    return now if now is not None and now.start_time == stuck.start_time else None


def _thread_states(pid: int) -> Dict[str, str]:
    """The folders in /proc of a process's threads that have not ended, with their states."""
    states = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{thread}"
            with contextlib.suppress(OSError), open(f"{path}/stat", encoding="utf-8", errors="replace") as stream:
                states[path] = parse_stat(stream.read()).state
    return {path: state for path, state in states.items() if state not in "ZX"}


def _waits_in(path: str) -> str:
    """Read by root only; ``0`` is no answer."""
    try:
        with open(f"{path}/wchan", encoding="ascii", errors="replace") as stream:
            said = stream.read().strip()
            return "" if said == "0" else said
    except OSError:
        return ""


def _abandon(child: "subprocess.Popen[bytes]", command: str) -> Optional[Stuck]:
    import subprocess

    child.kill()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        child.wait(_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        return leave_behind(child, command)
    return None


def leave_behind(child: "subprocess.Popen[bytes]", command: str) -> Optional[Stuck]:
    """Give up a child that was killed and did not end; what keeps it, None where it has ended just now."""
    _abandoned.append(child)
    return find_stuck(child.pid, command)
