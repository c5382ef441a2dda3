"""Proving that a launch waits at its gate, and letting it through.

At the gate means: the socket that listens on the gate's port belongs to a process of the launch, and answers. The log only tells how far
it is, and that it was activated: a server whose gate's port is taken logs that it waits, and waits for ever.
"""

import dataclasses
import time
from pathlib import Path
from typing import Callable, Dict, FrozenSet, List, NamedTuple, NoReturn, Optional, Sequence

from orchestrator.agent import procfs, wire
from orchestrator.agent.clock import Deadline, steady
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.http import Client, HttpError
from orchestrator.agent.phases import BEYOND_GATE, Phase
from orchestrator.agent.port_holders import foreign_listener
from orchestrator.agent.procfs import Process
from orchestrator.agent.steps import LaunchFailed, Report
from orchestrator.agent.watch import ExitStatus, LoadWatch

STILL_SECONDS = 2.0
ACTIVATE_SECONDS = 10.0

_TICK = 0.1
_ACTIVATED_TICK = 0.02
_LOOK_EVERY = 0.25
"""Seconds between two looks at the kernel's table of sockets."""
_UNOWNED_PATIENCE = 5.0
_ASK_SECONDS = 2.0
_AGAIN_SECONDS = 1.5
"""From one activation to the next: SGLang looks once a second (POLL_INTERVAL_SECONDS, srt/distributed/gated_launch.py, 0.5.23)."""
SETTLE_SECONDS = 2.0
"""How long it has to stay at its gate: as SGLang looks but once a second, one that somebody else activated at once goes on only later."""
_AGAIN = "launch again: each start has a gate on another port"


class _Owner(NamedTuple):
    """The process of the launch to which the gate's sockets were proven to belong."""

    process: Process
    inodes: FrozenSet[int]


class Gate:
    """The gate of one launch, which has a `gate_port`.

    Args:
        members: all live processes of the launch.
        log: the server's output; None where nobody keeps it.
        exit_status: of the main process, None while it lives or when nobody records it.
        cold: why the caches of compiled kernels are cold; empty when they are warm.
    """

    def __init__(
        self,
        launch: wire.Launch,
        members: Callable[[], List[Process]],
        log: Optional[Path],
        policy: wire.Policy,
        exit_status: Callable[[], Optional[ExitStatus]],
        cold: Sequence[str] = (),
    ) -> None:
        assert launch.gate_port is not None, "only a staged launch has a gate"
        self._port = launch.gate_port
        self._launch = launch
        self._members = members
        self._log = log
        self._policy = policy
        self._exit_status = exit_status
        self._cold = cold
        self._client = Client(self._port, launch.host)
        self._owner: Optional[_Owner] = None
        self._unowned_since: Optional[float] = None

    def wait(self, report: Report, pulse: Callable[[], None], old_lives: Callable[[], bool]) -> Dict[str, float]:
        """Follow the launch until it is proven to wait at its gate, and to stay there as long as there is an old server to lose.

        `pulse` is called each tick; what it raises ends the wait.

        Returns:
            How long each phase took on the way, seconds.

        Raises:
            LaunchFailed: it died, hung, ran out of time, somebody else holds the port, or it went on.
        """
        watch = self._watch(report)
        looked = 0.0
        settled: Optional[Deadline] = None
        report(watch.tracker.phase, "")
        try:
            while True:
                pulse()
                self._look(watch)
                now = steady.now()
                if now - looked >= _LOOK_EVERY:
                    looked = now
                    if self._is_reached(watch):
                        settled = settled or Deadline(SETTLE_SECONDS)
                        if settled.passed or not old_lives():
                            break
                time.sleep(_TICK)
        finally:
            watch.close()
        crash_point("the gate is reached")
        report(Phase.GATE, f"it waits at port {self._port}")
        phases = watch.tracker.seconds(steady.now())
        return {name: round(seconds, 2) for name, seconds in phases.items() if name != Phase.GATE}

    def require(self) -> None:
        """Look once more whether it waits there.

        Raises:
            LaunchFailed: it has died, has gone on, or does not answer there any more.
        """
        watch = self._watch(lambda *_: None)
        deadline = Deadline(STILL_SECONDS)
        try:
            while True:
                self._look(watch)
                if self._is_reached(watch):
                    return
                if deadline.passed:
                    self._fail("the staged server is not at its gate any more", watch)
                time.sleep(_TICK)
        finally:
            watch.close()

    def activate(self, report: Report) -> None:
        """Let it through, and see it go where its log tells. One that has gone on already is as good.

        Raises:
            LaunchFailed: it has died, does not take it, or somebody else has its port.
        """
        # A scan of all processes would be time without service, so the owner that was proven before is only looked at again.
        deadline = Deadline(ACTIVATE_SECONDS)
        taken = self._owns_still() and self._ask_activation()
        watch = self._watch(report)
        again = Deadline(_AGAIN_SECONDS)
        try:
            while True:
                watch.look(steady.now())
                phase = watch.tracker.phase
                if phase in BEYOND_GATE or (taken and phase != Phase.GATE):
                    return
                if deadline.passed:
                    self._fail("the staged server does not take its activation", watch)
                if not taken or again.passed:
                    again = Deadline(_AGAIN_SECONDS)
                    taken = self._is_reached(watch) and self._ask_activation()
                time.sleep(_ACTIVATED_TICK)
        finally:
            watch.close()

    def _watch(self, report: Report) -> LoadWatch:
        return LoadWatch(self._launch, self._members, self._log, self._policy, report, self._exit_status, self._cold, staging=True)

    def _is_reached(self, watch: LoadWatch) -> bool:
        """Whether the gate is the launch's own and answers.

        Raises:
            LaunchFailed: somebody else listens on its port.
        """
        return self._is_ours(watch) and self._answers()

    def _is_ours(self, watch: LoadWatch) -> bool:
        if self._owns_still():
            return True
        sockets = procfs.listeners(self._port)
        if not sockets:
            self._unowned_since = None
            return False
        owners = procfs.listening_pids(self._port, sockets)
        now = steady.now()
        # Read after the owners: a scheduler that has just opened its gate must be among them.
        watch.read_members(now)
        members = {process.pid: process for process in watch.members}
        strangers = sorted(owners - set(members))
        if not owners:
            self._unowned_since = now if self._unowned_since is None else self._unowned_since
            if now - self._unowned_since < _UNOWNED_PATIENCE:
                return False
        if strangers or not owners:
            raise LaunchFailed(_stolen(self._port, strangers))
        self._unowned_since = None
        self._owner = _Owner(members[min(owners)], frozenset(listener.inode for listener in sockets))
        return True

    def _owns_still(self) -> bool:
        """Whether the owner that was proven still holds every socket that listens on the port."""
        if self._owner is None or procfs.start_time(self._owner.process.pid) != self._owner.process.id.start_time:
            return False
        inodes = {listener.inode for listener in procfs.listeners(self._port)}
        held = set(procfs.descriptor_targets(self._owner.process.pid))
        return bool(inodes) and inodes <= self._owner.inodes and all(f"socket:[{inode}]" in held for inode in inodes)

    def _answers(self) -> bool:
        try:
            return self._client.get("/health", _ASK_SECONDS).status == 200
        except HttpError:
            return False

    def _ask_activation(self) -> bool:
        crash_point("before the activation")
        try:
            taken = self._client.post("/gate/activate", {}, _ASK_SECONDS).status == 200
        except HttpError:
            return False
        crash_point("the activation")
        return taken

    def _look(self, watch: LoadWatch) -> None:
        """One tick of a launch that is not to go on yet. If it did, that is its failure, also where it has ended since.

        Raises:
            LaunchFailed: it went on, has died, or ran out of time.
        """
        try:
            watch.look(steady.now())
        except LaunchFailed as failed:
            self._refuse_when_beyond(watch, f"since then: {failed.failure.summary}")
            raise
        self._refuse_when_beyond(watch)

    def _refuse_when_beyond(self, watch: LoadWatch, since: str = "") -> None:
        phase = watch.tracker.phase
        if phase not in BEYOND_GATE:
            return
        summary = f"the staged server went on to {phase} before its time: it was activated by somebody else, or does not wait at its gate"
        advice = "see who can reach the gate (fab preflight says); or relaunch with --sequential"
        evidence = [*watch.tail(3), *([since] if since else [])]
        raise LaunchFailed(wire.Failure(Category.GATE_OPENED, summary, evidence, advice))

    def _fail(self, summary: str, watch: LoadWatch) -> NoReturn:
        where = f"{summary} (port {self._port}, phase {watch.tracker.phase})"
        raise LaunchFailed(wire.Failure(Category.NOT_ACTIVATED, where, watch.tail(3), "see the server's log; " + _AGAIN, retry=True))


def _stolen(port: int, pids: Sequence[int]) -> wire.Failure:
    failure = foreign_listener(port, pids)
    summary = failure.summary.replace(f"port {port}", f"port {port}, which was to be the new server's gate,")
    return dataclasses.replace(failure, summary=summary, advice=_AGAIN, retry=True)
