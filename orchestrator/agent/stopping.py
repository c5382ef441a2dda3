"""Stopping a server: SIGTERM to its main process, a drain, a grace, SIGKILL to what is left. One way for all runners.

SIGTERM goes to the main process alone: SGLang's children have no handler of their own and would cut every stream. While it still
imports, the main process has none either: it dies at once and leaves children that go on loading, so they are ended here.
"""

import signal
import time
from dataclasses import dataclass, field
from typing import Callable, List, Optional, Sequence, Set

from orchestrator.agent import procfs, sglang, systemd, wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.command_lines import is_resource_tracker, is_scheduler, is_spawned_child
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.drain import Load, Requests, nothing_known
from orchestrator.agent.held import HeldProcesses
from orchestrator.agent.launch_files import ExitStatus
from orchestrator.agent.processes import Process, Server, remaining_members
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire import ManagerKind

Report = Callable[[str, str], None]
"""Takes a phase (one of :class:`Phase`) and a detail, for the screen."""

_LOAD_SECONDS = 0.25
_ABORT_SECONDS = 1.0
_REST_EVERY = 0.05
"""Between two looks whether a server has done all that matters."""
_AFTER_MAIN_SECONDS = 0.2
"""Once main has ended, PDEATHSIG takes its children within milliseconds, if they have got as far as setting it."""
_RECORDER_SECONDS = 1.0
"""For what is no child of a server: systemd's own hand in the unit, which writes down how the server ended, on a busy machine."""
_ORPHAN_SECONDS = 1.0
"""From SIGTERM to SIGKILL for children without a main process: they have nothing to finish and nobody to report to."""
_TRACKER_SECONDS = 2.0
"""For Python's resource tracker to remove the shared memory of a server that was killed, and end by itself."""
_EXIT_STATUS_SECONDS = 0.2


class Phase:
    """The phases that a stop reports, in their order; not every stop goes through all."""

    DRAINING = "draining"
    ABORTING = "aborting"
    GRACE = "grace"
    REST = "rest"
    ORPHANS = "orphans"
    KILLING = "killing"
    ENDED = "ended"


@dataclass(frozen=True)
class Stage:
    """One phase of a stop and how long it took."""

    name: str
    seconds: float


@dataclass(frozen=True)
class StopReport:
    """How a stop went.

    `killed` needed SIGKILL; `not_awaited` got it when all that matters was done (:class:`Rest`); `abandoned` outlived even that (state
    D: a hung driver) and are named, not waited for. `requests_left` were running or queued when the drain ended, `requests_lost` were
    aborted or cut off; None when the server did not say.
    """

    stages: List[Stage]
    killed: List[str] = field(default_factory=list)
    not_awaited: List[str] = field(default_factory=list)
    abandoned: List[str] = field(default_factory=list)
    requests_left: Optional[int] = None
    requests_lost: Optional[int] = None
    exit_status: Optional[str] = None
    last_end: Optional[float] = None
    """Monotonic time at which the last process was seen to have ended."""

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.abandoned:
            return f"{len(self.abandoned)} processes can't be ended: {'; '.join(self.abandoned)}"
        how = f"{len(self.killed)} of its processes needed SIGKILL" if self.killed else "it went by itself"
        if self.not_awaited:
            how += f", but {len(self.not_awaited)} processes that had nothing more to do were not waited for"
        status = f", exit status: {self.exit_status}" if self.exit_status else ""
        return f"stopped in {self.seconds:.1f} s: {how}{status}"


def _says_nothing() -> bool:
    return False


@dataclass(frozen=True)
class Rest:
    """How long a stop waits for a server that has done all that matters, in `seconds`.

    What it holds on GPUs is its schedulers' alone, and SGLang asks them to release it once it has no request left; to kill them in
    the midst of that is how GPU memory outlives them (0.5.14 to 0.5.23, ``tokenizer_manager.py``, `sigterm_watchdog`). After that main
    takes its imports down, for half a second or two. `releases`: they hold something there, and are waited for; without it the server's
    own word that no request is left, `done`, is enough.
    """

    seconds: float
    releases: bool = True
    done: Callable[[], bool] = _says_nothing


def stop_server(
    server: Server,
    policy: wire.Policy,
    report: Report,
    load: Load = nothing_known,
    abort: Optional[Callable[[], object]] = None,
    exit_status: Optional[Callable[[], Optional[ExitStatus]]] = None,
    version: Optional[str] = None,
    rest: Optional[Rest] = None,
) -> StopReport:
    """Stop a server, whoever started it, and return as soon as the last of its processes has ended.

    Args:
        server: as :mod:`processes` found it; it is looked at again before anything is touched.
        policy: `drain`, `drain_end`, `grace` and, for processes that resist SIGKILL, `clean`.
        report: told of each phase.
        load: asked four times a second while it drains; when it never answers there is no drain phase, only the grace.
        abort: called when the drain has run out with requests left, and again each second: new ones are still accepted. Not with
            the `drain_end` ``stop``.
        exit_status: a runner's, for a server of ours.
        version: SGLang's, to read the exit status with.
        rest: where each second counts; None: every process has the whole grace.

    Raises:
        AgentRefusal: the manager is unsupported or systemd does not obey (``refused``); not allowed to signal it (``rights``).
            Nothing has been touched then.
    """
    if server.manager.kind == ManagerKind.UNSUPPORTED:
        what = f"the server on port {server.port} is managed by {server.manager.name}, which is not supported"
        raise AgentRefusal("refused", what, [server.manager.detail])
    with HeldProcesses() as held:
        requests = Requests(load, abort if policy.drain_end == wire.DrainEnd.ABORT else None)
        stop = _Stop(held, lambda: remaining_members(server.ties, held.alive()), policy, report, requests, version, rest)
        stop.hold()
        stop.require_rights()
        if server.manager.kind == ManagerKind.SYSTEMD_UNIT:
            return _stop_in_unit(stop, server)
        return stop.run(server.main, exit_status)


def stop_members(find: Callable[[], List[Process]], policy: wire.Policy, report: Report) -> StopReport:
    """End at once whatever `find` finds (a runner's `members`): what is left of a launch whose main process died or failed."""
    with HeldProcesses() as held:
        stop = _Stop(held, find, policy, report)
        stop.hold()
        stop.require_rights()
        stop.end_orphans()
        return stop.finish()


def _stop_in_unit(stop: "_Stop", server: Server) -> StopReport:
    """Somebody's unit: kept from restarting meanwhile, and stopped as a whole when a wrapper still runs after its server.

    After a stop that went well it stays quiet until the clean gate: waking it takes a daemon-reload, and whoever waits for the stop
    should not wait for that.
    """
    unit = server.manager.name
    wrapped = systemd.show(unit, "MainPID").get("MainPID") != str(server.main.pid)
    systemd.quiet_unit(unit)
    try:
        return stop.run(server.main, None, (lambda: systemd.stop_unit(unit)) if wrapped else None)
    except BaseException:
        systemd.release_unit(unit)
        raise


class _Stop:
    """One stop: the processes held, and what has been done to them so far."""

    def __init__(
        self,
        held: HeldProcesses,
        find: Callable[[], List[Process]],
        policy: wire.Policy,
        report: Report,
        requests: Optional[Requests] = None,
        version: Optional[str] = None,
        rest: Optional[Rest] = None,
    ) -> None:
        self._held = held
        self._find = find
        self._policy = policy
        self._report = report
        self._requests = requests or Requests(nothing_known)
        self._version = version
        self._rest = rest
        self._killed: List[str] = []
        self._not_awaited: List[str] = []
        self._requests_left: Optional[int] = None
        self._stages: List[Stage] = []
        self._began = time.monotonic()

    def hold(self) -> bool:
        """Hold what is there now and was not held yet; True when there was something new."""
        return bool([process for process in self._find() if self._held.add(process)])

    def require_rights(self) -> None:
        """Refuse, before anything is touched, what could not be signalled."""
        try:
            self._held.send(0)
        except PermissionError:
            raise AgentRefusal(
                "rights", "not allowed to signal the server's processes", next_step="connect as root, or set become: sudo for this place"
            ) from None

    def run(
        self,
        main: Process,
        exit_status: Optional[Callable[[], Optional[ExitStatus]]] = None,
        after_main: Optional[Callable[[], None]] = None,
    ) -> StopReport:
        only_main = {main.pid}
        crash_point("before SIGTERM")
        self._held.send(signal.SIGTERM, only_main)
        crash_point("SIGTERM")
        self._wake_stopped()
        self._drain(only_main)
        schedulers = {process.pid for process in self._held.alive() if is_scheduler(process)}
        if self._wait_grace(only_main, schedulers):
            if after_main is not None:
                after_main()
            self._held.wait(Deadline(_AFTER_MAIN_SECONDS))
            self.end_orphans()
        else:
            self._requests.cut_off()
            self._kill()
            if after_main is not None:
                after_main()
        return self.finish(exit_status)

    def end_orphans(self) -> None:
        """End children without a main process: SIGTERM to all, then soon SIGKILL, until a scan finds none."""
        self.hold()
        if not any(is_spawned_child(process) or is_resource_tracker(process) for process in self._held.alive()):
            self._held.wait(Deadline(_RECORDER_SECONDS))
        if not self._held.alive():
            return
        self._enter(Phase.ORPHANS, _names(self._held.alive()))
        crash_point("before SIGTERM to orphans")
        self._held.send(signal.SIGTERM)
        crash_point("SIGTERM to orphans")
        self._wake_stopped()
        self._held.wait(Deadline(_ORPHAN_SECONDS))
        if self.hold() or self._held.alive():
            self._kill()

    def finish(self, exit_status: Optional[Callable[[], Optional[ExitStatus]]] = None) -> StopReport:
        self._leave(Phase.ENDED)
        status: Optional[ExitStatus] = None
        deadline = Deadline(_EXIT_STATUS_SECONDS)
        while exit_status is not None and status is None:
            status = exit_status()
            if status is None and deadline.passed:
                break
            if status is None:
                time.sleep(0.02)
        meaning = sglang.exit_meaning(self._version, None if status is None else str(status), asked_to_stop=True)
        report = StopReport(
            stages=self._stages,
            killed=self._killed,
            not_awaited=self._not_awaited,
            abandoned=[_with_state(process) for process in self._held.alive()],
            requests_left=self._requests_left,
            requests_lost=self._requests.lost(finished=self._finished(meaning)),
            exit_status=str(status) if status is not None else None,
            last_end=self._held.last_end,
        )
        self._report(Phase.ENDED, report.summary)
        return report

    def _finished(self, meaning: str) -> Optional[bool]:
        """Whether the server ended of itself; None when nobody saw its exit status and it was gone before any SIGKILL."""
        if self._not_awaited and not self._killed:
            return True if self._rest is not None and self._rest.done() else None
        if meaning == sglang.Exit.UNKNOWN and not self._killed:
            return None
        return meaning == sglang.Exit.CLEAN

    def _drain(self, main: Set[int]) -> None:
        """Let running requests finish, for a time; a server that does not say what it has is not waited for here."""
        self._enter(Phase.DRAINING, "")
        deadline = Deadline(self._policy.drain)
        requests = self._requests
        requests.read()
        while requests.running and not deadline.passed:
            self._report(Phase.DRAINING, f"{requests.running} requests running or queued, {deadline.left():.0f} s left for them")
            if self._held.wait(deadline.earlier(_LOAD_SECONDS), main):
                return
            requests.read()
        self._requests_left = requests.running
        if requests.running and requests.abortable:
            self._enter(Phase.ABORTING, f"{requests.running} requests did not finish in {self._policy.drain:g} s")
            requests.abort()

    def _wait_grace(self, main: Set[int], schedulers: Set[int]) -> bool:
        """Wait for the main process to go by itself, or for all that matters of it; False when the grace has passed."""
        self._enter(Phase.GRACE, f"up to {self._policy.grace:g} s for the server to go by itself")
        deadline = Deadline(self._policy.grace)
        again = Deadline(_ABORT_SECONDS)
        while not self._held.wait(deadline.earlier(_ABORT_SECONDS / 2 if self._rest is None else _REST_EVERY), main):
            if deadline.passed:
                return False
            if self._rest is not None and self._only_rest_is_left(self._rest, schedulers):
                self._end_rest(self._rest)
                return True
            if not self._requests_left:
                continue
            self._requests.read()
            if again.passed:
                again = Deadline(_ABORT_SECONDS)
                self._requests.abort()
        return True

    def _only_rest_is_left(self, rest: Rest, schedulers: Set[int]) -> bool:
        if schedulers and not schedulers & self._held.pids():
            return True
        return not rest.releases and rest.done()

    def _end_rest(self, rest: Rest) -> None:
        """End a server that has done all that matters, but for the resource trackers, which clean up behind it."""
        self._enter(Phase.REST, _names(self._held.alive()))
        if self._held.wait(Deadline(rest.seconds)):
            return
        others = {process.pid for process in self._held.alive() if not is_resource_tracker(process)}
        crash_point("before SIGKILL to the rest")
        self._not_awaited = [str(process) for process in self._held.send(signal.SIGKILL, others)]
        crash_point("SIGKILL to the rest")
        self._held.wait(Deadline(_TRACKER_SECONDS))

    def _kill(self) -> None:
        """SIGKILL to all that is left, and to what a scan finds afterwards, until nothing is found or `clean` has passed."""
        self.hold()
        self._enter(Phase.KILLING, _names(self._held.alive()))
        deadline = Deadline(self._policy.clean)
        while True:
            trackers = {process.pid for process in self._held.alive() if is_resource_tracker(process)}
            rest = self._held.pids() - trackers
            self._kill_only(rest, deadline)
            # It ends by itself when the last holder of its pipe has gone, and cleans up after a killed server.
            if not self._held.wait(deadline.earlier(_TRACKER_SECONDS), trackers):
                self._kill_only(trackers, Deadline(max(_TRACKER_SECONDS, deadline.left())))
            if deadline.passed or not self.hold():
                return

    def _kill_only(self, pids: Set[int], deadline: Deadline) -> None:
        crash_point("before SIGKILL")
        self._killed += [str(process) for process in self._held.send(signal.SIGKILL, pids)]
        crash_point("SIGKILL")
        self._held.wait(deadline, pids)

    def _wake_stopped(self) -> None:
        """A process stopped by SIGSTOP or Ctrl-Z does not see SIGTERM before it is continued."""
        stopped = {process.pid for process in self._held.alive() if _state(process) == "T"}
        self._held.send(signal.SIGCONT, stopped)

    def _enter(self, phase: str, detail: str) -> None:
        self._leave(phase)
        self._report(phase, detail)

    def _leave(self, phase: str) -> None:
        now = time.monotonic()
        if self._stages:
            last = self._stages[-1]
            self._stages[-1] = Stage(last.name, round(now - self._began, 3))
        self._began = now
        if phase != Phase.ENDED:
            self._stages.append(Stage(phase, 0.0))


def _state(process: Process) -> str:
    found = procfs.read_process(process.pid)
    return found.state if found is not None and found.id == process.id else "X"


def _with_state(process: Process) -> str:
    return f"{process} (state {_state(process)})"


def _names(processes: Sequence[Process]) -> str:
    return ", ".join(str(process) for process in processes)
