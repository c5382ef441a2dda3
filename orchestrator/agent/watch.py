"""Watching a load: its log, its processes and its signs of life each tick, and everything that ends it early."""

import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence

from orchestrator.agent import failures, wire
from orchestrator.agent.activity import ActivityMeter, read_stat
from orchestrator.agent.clock import steady
from orchestrator.agent.command_lines import is_scheduler
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.failures import Gone
from orchestrator.agent.jit_locks import foreign_locks
from orchestrator.agent.load_limits import Limit, LoadLimits
from orchestrator.agent.oom_kills import OomMeter
from orchestrator.agent.phases import LogFollower, LogLine, Phase, PhaseTracker
from orchestrator.agent.procfs import Process
from orchestrator.agent.steps import LaunchFailed

_MEMBERS_EVERY = 0.5
_DETAIL_EVERY = 0.2
_SILENT_EVERY = 10.0
"""Seconds after which a phase that has nothing new is told again: whoever watches must be able to see that it grows older."""
_TAIL_BYTES = 1 << 20

_START_PATIENCE = 10.0
"""For the first process to show up."""
_EXIT_PATIENCE = 1.0
"""For the exit status to be written once the main process has gone."""
_SCHEDULER_PATIENCE = 2.0
"""SGLang notices a dead scheduler after 1 s (and says why), and ends 5 s later; 0.5.9 never does."""
_FATAL_PATIENCE = 1.5

_FATAL_LINES = (
    "error while attempting to bind on address",
    "hit an exception: Traceback",
    "Received sigquit from a child",
    "warmup error:",
)
"""After these it never serves, but may live on: 150 s with a silent listener on its port, for ever in 0.5.9."""

_LONGEST_LINE = 120


class ExitStatus(Protocol):
    """How a main process ended, as its runner knows it (systemd's ``$EXIT_CODE`` and ``$EXIT_STATUS``)."""

    @property
    def code(self) -> Any: ...

    @property
    def status(self) -> Any: ...


class LoadWatch:
    """One load. :meth:`look` is called each tick and raises when the load has come to a bad end. Moments are the steady clock's.

    `cold` says why the caches of compiled kernels are cold (:func:`kernel_caches.why_cold`); `staging`: it is watched up to its gate.
    """

    def __init__(
        self,
        launch: wire.Launch,
        members: Callable[[], List[Process]],
        log: Optional[Path],
        policy: wire.Policy,
        report: Callable[[str, str], None],
        exit_status: Callable[[], Optional[ExitStatus]],
        cold: Sequence[str] = (),
        staging: bool = False,
    ) -> None:
        now = steady.now()
        self.started = now
        self._started_at, self._started_monotonic = time.time(), time.monotonic()
        self.tracker = PhaseTracker(now)
        self.members: List[Process] = []
        self.schedulers: Dict[int, Process] = {}
        """Every scheduler that was ever seen: none of them may go."""
        self.version: Optional[str] = None
        self.standing = ""
        """How far the proof is, for the message when time runs out."""
        self._launch = launch
        self._read_members = members
        self._log = log
        self._limits = LoadLimits(policy, cold, staging)
        self._report = report
        self._exit_status = exit_status
        self._follower = None if log is None else LogFollower(log)
        self._output = 0
        self._line = ""
        self._gaps = len(steady.gaps())
        self._told = (self.tracker.phase, self.tracker.detail, now)
        self._activity = ActivityMeter(now)
        self._oom_kills: Optional[OomMeter] = None
        self._members_read = now - _MEMBERS_EVERY
        self._main: Optional[Process] = None
        self._wrong_since: Dict[str, float] = {}

    def look(self, now: float) -> None:
        """See what there is to see.

        Raises:
            LaunchFailed: a process has died, or a deadline has passed.
        """
        self._follow_log(now)
        self._tell_gaps()
        if now - self._members_read >= _MEMBERS_EVERY:
            self.read_members(now)
        self._check_alive(now)
        self._check_deadlines(now)

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def read_members(self, now: float) -> None:
        """Scan for processes of the launch."""
        self._members_read = now
        self.members = self._read_members()
        for process in self.members:
            if is_scheduler(process):
                self.schedulers.setdefault(process.pid, process)
        if self._main is None:
            self._main = _main_process(self.members, self._launch)
        if self._main is not None and self._oom_kills is None:
            self._oom_kills = OomMeter(self._main.pid)
        if self._oom_kills is not None:
            self._oom_kills.sample()
        self._activity.sample([process.pid for process in self.members], now)

    def tail(self, lines: int) -> List[str]:
        """The last lines of the log."""
        return [line for line in self._tail() if line.strip()][-lines:]

    def schedulers_live(self) -> bool:
        """Whether every scheduler that was ever seen is still there."""
        return all(_lives(process) for process in self.schedulers.values())

    def _follow_log(self, now: float) -> None:
        if self._follower is None:
            return
        for line in self._follower.read():
            self.tracker.feed(line, now)
            self._note_line(line, now)
        self.tracker.feed_partial(self._follower.partial)
        self._activity.note_log(self._output + len(self._follower.partial), now)
        self._tell(now)

    def _note_line(self, line: LogLine, now: float) -> None:
        if any(text in line.text for text in _FATAL_LINES):
            self._wrong_since.setdefault("fatal line", now)
        # Access lines are mostly our own polling: a server that hangs in its warm-up still writes them.
        if not line.text.startswith("INFO: "):
            self._output += len(line.text) + 1
            self._line = line.text

    def _tell_gaps(self) -> None:
        for gap in steady.gaps(self._gaps):
            self._gaps += 1
            self._report(self.tracker.phase, f"this place stood still for {gap.seconds:.0f} s (frozen?); deadlines were paused")

    def _tell(self, now: float) -> None:
        phase, detail, moment = self._told
        new = (self.tracker.phase, self.tracker.detail)
        if now - moment < (_SILENT_EVERY if new == (phase, detail) else _DETAIL_EVERY) and new[0] == phase:
            return
        self._told = (*new, now)
        self._report(*new)

    def _check_alive(self, now: float) -> None:
        status = self._exit_status()
        if status is not None:
            raise self._died(f"{status.code} {status.status}")
        if self._main is None:
            if now - self.started > _START_PATIENCE:
                raise self._died(None)
            return
        checks = (
            ("main", not _lives(self._main), _EXIT_PATIENCE),
            ("scheduler", not self.schedulers_live(), _SCHEDULER_PATIENCE),
            ("fatal line", "fatal line" in self._wrong_since, _FATAL_PATIENCE),
        )
        for name, wrong, patience in checks:
            if wrong and now - self._wrong_since.setdefault(name, now) > patience:
                raise self._died(None)

    def _died(self, exit_status: Optional[str]) -> LaunchFailed:
        self._follow_log(steady.now())
        memory = self._oom_kills.read() if self._oom_kills is not None else None
        gone = Gone.NOTHING
        if self._main is None:
            gone = Gone.EVERYTHING
        elif exit_status is None and "scheduler" in self._wrong_since:
            gone = Gone.SCHEDULER
        return LaunchFailed(failures.classify(self._tail(), exit_status, self.tracker.phase, memory, self.version, gone))

    def _check_deadlines(self, now: float) -> None:
        phase = self.tracker.phase if self._phase_is_told() else None
        stall, total, whole = self._limits.stall(phase), self._limits.total(phase), self._limits.whole()
        if self._activity.idle(now) > stall.seconds:
            raise self._out_of_time(Category.STALLED, stall, now)
        if total is not None and now - self.tracker.entered > total.seconds:
            raise self._out_of_time(Category.TIMED_OUT, total, now)
        if now - self.started > whole.seconds:
            raise self._out_of_time(Category.TIMED_OUT, whole, now)

    def _phase_is_told(self) -> bool:
        """Without a log that tells (somebody's unit, ``--log-level warning``) a load stays in its first phase to the end.

        Schedulers get their title after their imports, and tell of the next phase then.
        """
        return self._log is not None and (self.tracker.phase != Phase.IMPORTS or not self.schedulers)

    def _out_of_time(self, category: str, limit: Limit, now: float) -> LaunchFailed:
        sign = self._activity.told(now)
        if self._line:
            sign += f'; last line of the log: "{self._line[:_LONGEST_LINE]}"'
        where = ", ".join(text for text in (self.tracker.detail, self.standing) if text)
        since = min(self._started_at, time.time() - (time.monotonic() - self._started_monotonic))  # should the clock be set meanwhile
        locks = foreign_locks(self._launch, {process.pid for process in self.members}, since)
        return LaunchFailed(failures.out_of_time(category, str(limit), limit.seconds, self.tracker.phase, where, sign, self._tail(), locks))

    def _tail(self) -> List[str]:
        return [] if self._log is None else read_tail(self._log, _TAIL_BYTES)


def read_tail(path: Path, size: int) -> List[str]:
    """The last lines of a log file, at most `size` bytes of it; empty where there is none."""
    try:
        with path.open("rb") as stream:
            length = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, length - size))
            return stream.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def _lives(process: Process) -> bool:
    stat = read_stat(process.pid)
    return stat is not None and stat.start_time == process.id.start_time and stat.state not in "ZX"


def _main_process(members: List[Process], launch: wire.Launch) -> Optional[Process]:
    """The member that was started as the launch says; its runner may have a parent in the same session."""
    entry = tuple(launch.entry)
    for process in members:
        if entry and process.arguments[1 : 1 + len(entry)] == entry:
            return process
    return min(members, key=lambda process: process.id.start_time, default=None)
